// v2: a block for each row, a sum through shared memory.
//
//   grid    rows blocks
//   block   256 threads
//   thread  t owns elements t, t + 256, t + 512, … of the block's row
//
// Traffic: as in v1, 4 * rows * hidden + 2 * hidden bytes in bf16, but the 32 lanes of a warp now read 64 bytes that
// lie side by side: two sectors instead of 32, both used whole. x is read twice; the second time it comes from the L1
// cache.
//
// The idea: neighbouring threads read neighbouring addresses (the reads are coalesced). The price: no thread sees a
// whole row, so 256 partial sums must meet. They do in shared memory, in a tree of 8 levels with a barrier before each.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256;  // a power of two, for the tree

// --8<-- [start:kernel]
template <class T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(qwen::RmsNorm args) {
  __shared__ float partial[kThreads];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;

  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    const float value = to_float(x[i]);
    sum += value * value;
  }

  partial[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // the level above is written before this one reads it
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  __syncthreads();  // partial[0] is complete before all threads read it

  const float scale = 1.0f / sqrtf(partial[0] / static_cast<float>(args.hidden) + args.eps);
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    out[i] = from_float<T>(to_float(x[i]) * scale * to_float(weight[i]));
  }
}
// --8<-- [end:kernel]

template <class T>
void launch_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  launch(rms_norm_kernel<T>, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
}

}  // namespace

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_rms_norm<decltype(zero)>(args, stream); });
}
