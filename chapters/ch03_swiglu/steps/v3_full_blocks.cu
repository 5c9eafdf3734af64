// v3: no thread without work, and no waiting to begin.
//
//   grid    ceil(rows * packs / threads) blocks: the packs of all rows are numbered through
//   block   64 threads for few packs, 512 for many
//   thread  p of the grid owns pack p: 16 bytes of gate, 16 of up, 16 of the output
//
// Traffic: that of v1, 6 * rows * size bytes in bf16.
//
// The ideas: in v2 a row of 3,072 elements has 384 packs for two blocks of 256 threads, and every fourth thread has
// none. Here a block takes what comes next, be it of the next row, and only the last one is not full. Few packs go to
// small blocks, so that as many SMs as possible have some; for many, large blocks fill an SM with fewer to manage. And
// the launch is a dependent one: blocks are brought in while the kernel ahead still runs.
#include <stdexcept>

#include "cuda_platform.cuh"
#include "operators.h"
#include "vector_load.cuh"

namespace {

constexpr unsigned kManyPacks = 1 << 16;  // as in kernels/cuda/silu_mul.cu

__device__ __forceinline__ float silu(float z) {
  return z / (1.0f + expf(-z));
}

// --8<-- [start:kernel]
template <class T>
__device__ __forceinline__ Pack<T> silu_mul(const Pack<T>& gate, const Pack<T>& up) {
  Pack<T> out;
  for (int k = 0; k < Pack<T>::kSize; ++k) {
    out.values[k] = from_float<T>(silu(to_float(gate.values[k])) * to_float(up.values[k]));
  }
  return out;
}

template <class T, bool kAligned>
__global__ void silu_mul_kernel(qwen::SiluMul args, unsigned row_packs, unsigned packs) {
  const unsigned p = blockIdx.x * blockDim.x + threadIdx.x;
  grid_dependency_trigger();  // the next kernel may be brought in now: it waits as we do
  grid_dependency_wait();     // nothing is read before the kernel ahead has ended
  if (p >= packs) return;
  const int64_t row = p / row_packs;
  const int q = static_cast<int>(p % row_packs), size = static_cast<int>(args.size);
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const Pack<T> g = load_pack_of<kAligned>(gate, q, size);
  const Pack<T> u = load_pack_of<kAligned>(gate + size, q, size);
  store_pack_of<kAligned>(out, q, size, silu_mul(g, u));
}
// --8<-- [end:kernel]

// --8<-- [start:launch]
template <class T>
void launch_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const int64_t row_packs = (args.size + Pack<T>::kSize - 1) / Pack<T>::kSize;
  const int64_t packs = args.rows * row_packs, threads = packs < kManyPacks ? 64 : 512;
  if (packs > INT32_MAX) {  // a 32-bit division is much cheaper than a 64-bit one
    throw std::runtime_error("v3 counts packs in 32 bits: pass fewer rows.");
  }
  bool aligned = args.size % Pack<T>::kSize == 0;  // up is then aligned where gate is
  aligned &= rows_are_aligned(static_cast<const T*>(args.gate_up), args.gate_up_stride);
  aligned &= rows_are_aligned(static_cast<const T*>(args.out), args.out_stride);
  const auto kernel = aligned ? silu_mul_kernel<T, true> : silu_mul_kernel<T, false>;
  const dim3 grid(unsigned((packs + threads - 1) / threads)), block { unsigned(threads) };
  LaunchOptions options;
  options.dependent = true;
  const auto of_row = unsigned(row_packs), of_all = unsigned(packs);
  launch(options, kernel, grid, block, 0, stream, args, of_row, of_all);
}
// --8<-- [end:launch]

}  // namespace

void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_silu_mul<decltype(zero)>(args, stream); });
}
