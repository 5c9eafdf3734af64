// v3: the sum inside a warp goes from register to register.
//
//   grid    rows blocks
//   block   256 threads, 8 warps
//   thread  t owns elements t, t + 256, t + 512, … of the block's row
//   sum     5 shuffles within each warp; lane 0 leaves one word in shared memory; after one barrier every thread adds
//           the 8 words, all in the same order, so that all hold the same bits
//
// Traffic: that of v2, 4 * rows * hidden + 2 * hidden bytes in bf16.
//
// The idea: the 32 lanes of a warp can read each other's registers. One barrier is left of nine, and 32 bytes of shared
// memory of 1,024. Not removed: each lane still moves 2 bytes an instruction, and x is still read twice.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// --8<-- [start:warp_sum]
// Lane l adds what lane l ^ distance holds: after five steps every lane has the whole sum.
__device__ __forceinline__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
// --8<-- [end:warp_sum]

// --8<-- [start:block_sum]
// The sum over the block, in every thread. `partial` has one word for each warp.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += partial[w];
  return total;
}
// --8<-- [end:block_sum]

// --8<-- [start:kernel]
template <class T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(qwen::RmsNorm args) {
  __shared__ float partial[kWarps];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;

  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    const float value = to_float(x[i]);
    sum += value * value;
  }
  sum = block_sum(sum, partial);

  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.hidden) + args.eps);
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
