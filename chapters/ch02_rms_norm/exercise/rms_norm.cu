// Exercise of chapter 2: RMSNorm with three holes. README.md beside this file says how to go about it.
//
//   grid    rows blocks
//   block   one warp for rows of up to 32 elements, else 256 threads
//   thread  t owns packs t, t + threads, t + 2 threads, … of the block's row; a pack is 16 bytes, 8 elements of bf16
//
// Rows of up to 32 elements need hole 1 alone; longer ones hole 2 as well; those that can be read in packs all three.
#include <stdexcept>
#include <string>

#include "cuda_platform.cuh"
#include "operators.h"
#include "vector_load.cuh"

namespace {

constexpr int kThreads = 256;

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kWarpSumIsWritten = false;  // set it to true once it is

// Returns, to each of the 32 lanes of a warp, the sum of their values. All 32 call it. No shared memory is needed:
// __shfl_xor_sync(mask, value, distance) gives lane l what lane l ^ distance holds.
__device__ float warp_sum(float value) {
  return value;  // write it here
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kBlockSumIsWritten = false;  // set it to true once it is

// Returns, to each thread of the block, the sum of their values. All call it. `partial` is shared memory, one word for
// each of the blockDim.x / 32 warps. Who must have written before who may read?
__device__ float block_sum(float value, float* partial) {
  return value + partial[0];  // write it here
}

// One element a load, for the rows that hole 3 cannot serve. It is complete. A thread's elements lie side by side, so
// that both kernels add the same numbers in the same order, and give the same bits.
template <class T>
__global__ void __launch_bounds__(kThreads) rms_norm_elements(qwen::RmsNorm args) {
  __shared__ float partial[kThreads / 32];
  constexpr int kSize = Pack<T>::kSize;
  const T* x = static_cast<const T*>(args.x) + blockIdx.x * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;

  float sum = 0.0f;
  for (int64_t i = threadIdx.x * kSize; i < args.hidden; i += blockDim.x * kSize) {
    for (int64_t j = i; j < i + kSize && j < args.hidden; ++j) sum += to_float(x[j]) * to_float(x[j]);
  }
  sum = blockDim.x == 32 ? warp_sum(sum) : block_sum(sum, partial);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.hidden) + args.eps);
  for (int64_t i = threadIdx.x * kSize; i < args.hidden; i += blockDim.x * kSize) {
    for (int64_t j = i; j < i + kSize && j < args.hidden; ++j) {
      out[j] = from_float<T>(to_float(x[j]) * scale * to_float(weight[j]));
    }
  }
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kPacksAreWritten = false;  // set it to true once they are

// The same with load_pack and store_pack of vector_load.cuh, which move Pack<T>::kSize elements at once. The launcher
// below comes here only if every row begins and ends at a multiple of 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) rms_norm_packs(qwen::RmsNorm args) {
  __shared__ float partial[kThreads / 32];
  const T* x = static_cast<const T*>(args.x) + blockIdx.x * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;

  (void)x, (void)weight, (void)out, (void)partial;  // write it here
}

// ---- Given: from a call to the kernel that serves it ---------------------------------------------------------------
void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 2, ") + hole +
                           " is not written yet: write it in chapters/ch02_rms_norm/exercise/rms_norm.cu, then set " +
                           flag + " to true.");
}

template <class T>
void launch_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const uintptr_t bits = uintptr_t(args.x) | uintptr_t(args.weight) | uintptr_t(args.out) |
                         uintptr_t(args.hidden | args.x_stride | args.out_stride) * sizeof(T);
  const bool one_warp = args.hidden <= 32, packs = !one_warp && bits % 16 == 0;

  need(kWarpSumIsWritten, "hole 1 (warp_sum)", "kWarpSumIsWritten");
  if (!one_warp) need(kBlockSumIsWritten, "hole 2 (block_sum)", "kBlockSumIsWritten");
  if (packs) need(kPacksAreWritten, "hole 3 (rms_norm_packs)", "kPacksAreWritten");
  launch(packs ? rms_norm_packs<T> : rms_norm_elements<T>, dim3(unsigned(args.rows)), dim3(one_warp ? 32 : kThreads), 0,
         stream, args);
}

}  // namespace

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_rms_norm<decltype(zero)>(args, stream); });
}
