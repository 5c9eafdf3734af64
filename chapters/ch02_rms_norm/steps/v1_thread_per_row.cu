// v1: a thread for each row. The formula as on a CPU, thousands of times side by side.
//
//   grid    ceil(rows / 32) blocks
//   block   32 threads, one warp
//   thread  t of block b owns row 32 b + t and walks it from left to right, twice
//
// Traffic: x in, out out, weight in once: 4 * rows * hidden + 2 * hidden bytes in bf16. That much must move, in every
// version. But each instruction of a warp reads 32 rows, 32 sectors of 32 bytes for 64 bytes that it wants. The other
// 30 bytes of a sector are for the next 15 steps, if the cache still holds them by then.
//
// The idea: none yet. Each later version removes one waste of this one.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 32;  // few rows to a block: the most blocks, and so the most of the card

// --8<-- [start:kernel]
template <class T>
__global__ void rms_norm_kernel(qwen::RmsNorm args) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.rows) return;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;

  float sum = 0.0f;
  for (int64_t i = 0; i < args.hidden; ++i) {
    const float value = to_float(x[i]);
    sum += value * value;
  }
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.hidden) + args.eps);
  for (int64_t i = 0; i < args.hidden; ++i) {
    out[i] = from_float<T>(to_float(x[i]) * scale * to_float(weight[i]));
  }
}
// --8<-- [end:kernel]

// --8<-- [start:launch]
template <class T>
void launch_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const auto blocks = static_cast<unsigned>((args.rows + kThreads - 1) / kThreads);
  launch(rms_norm_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream, args);
}
// --8<-- [end:launch]

}  // namespace

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_rms_norm<decltype(zero)>(args, stream); });
}
