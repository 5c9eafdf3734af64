// v1: a thread for each element. The formula as it stands.
//
//   grid    rows * ceil(size / 256) blocks: the chunks of a row follow each other
//   block   256 threads
//   thread  t of chunk c owns element 256 c + t of its row: one gate, one up, one output
//
// Traffic: gate and up in, out out: 6 * rows * size bytes in bf16. That much must move, in every version. A warp reads
// 64 consecutive bytes of gate and 64 of up, and uses every byte that it is given.
//
// The idea: nothing has to be exchanged, so one kernel can do what takes PyTorch two. silu(gate) stays in a register;
// written to memory and read again it would cost 4 * rows * size bytes more.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256;

// --8<-- [start:kernel]
// For z < -88.7 exp(-z) is infinite in fp32, and the result -0: right to 3e-37.
__device__ __forceinline__ float silu(float z) {
  return z / (1.0f + expf(-z));
}

template <class T>
__global__ void silu_mul_kernel(qwen::SiluMul args, unsigned chunks) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = int64_t{blockIdx.x % chunks} * kThreads + threadIdx.x;
  if (i >= args.size) return;
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  const T* up = gate + args.size;  // packed: the other half of the same row
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  out[i] = from_float<T>(silu(to_float(gate[i])) * to_float(up[i]));
}
// --8<-- [end:kernel]

template <class T>
void launch_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const auto chunks = static_cast<unsigned>((args.size + kThreads - 1) / kThreads);
  const auto blocks = static_cast<unsigned>(args.rows * chunks);
  launch(silu_mul_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream, args, chunks);
}

}  // namespace

void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_silu_mul<decltype(zero)>(args, stream); });
}
