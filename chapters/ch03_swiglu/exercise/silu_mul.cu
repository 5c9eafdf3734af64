// Exercise of chapter 3: silu(gate) * up with three holes. README.md beside this file says how to go about it.
//
//   grid    rows blocks
//   block   one thread for rows of up to 7 elements, else 256
//   thread  t owns elements t, t + 256, t + 512, … of the block's row; or packs, of 16 bytes, in the same way
//
// Rows of up to 7 elements need hole 1 alone; longer ones hole 2 as well; those that can be read in packs 1 and 3.
#include <stdexcept>
#include <string>

#include "cuda_platform.cuh"
#include "operators.h"
#include "vector_load.cuh"

namespace {

constexpr int kThreads = 256;

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kProductIsWritten = false;  // set it to true once it is

// Returns silu(gate) * up, not rounded. silu(z) = z / (1 + exp(-z)); expf is the exponential in fp32. What comes out
// for a gate of -100, whose exp(-z) no fp32 number can hold?
__device__ __forceinline__ float silu_mul(float gate, float up) {
  return gate * up;  // write it here
}

// One thread for a whole row. It is complete, and shows where things lie: gate and up are the two halves of a row.
template <class T>
__global__ void silu_mul_short_row(qwen::SiluMul args) {
  const T* gate = static_cast<const T*>(args.gate_up) + blockIdx.x * args.gate_up_stride;
  const T* up = gate + args.size;
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;
  for (int64_t i = 0; i < args.size; ++i) out[i] = from_float<T>(silu_mul(to_float(gate[i]), to_float(up[i])));
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kElementsAreWritten = false;  // set it to true once they are

// The same by the threads of a block. Neighbouring threads shall read neighbouring elements. Who takes element 256?
template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_elements(qwen::SiluMul args) {
  const T* gate = static_cast<const T*>(args.gate_up) + blockIdx.x * args.gate_up_stride;
  const T* up = gate + args.size;
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;

  (void)gate, (void)up, (void)out;  // write it here
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kPacksAreWritten = false;  // set it to true once they are

// The same with load_pack and store_pack of vector_load.cuh, which move Pack<T>::kSize elements at once. The launcher
// below comes here only if gate, up and the output begin and end at multiples of 16 bytes in every row.
template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_packs(qwen::SiluMul args) {
  const T* gate = static_cast<const T*>(args.gate_up) + blockIdx.x * args.gate_up_stride;
  const T* up = gate + args.size;
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;

  (void)gate, (void)up, (void)out;  // write it here
}

// ---- Given: from a call to the kernel that serves it ---------------------------------------------------------------
void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 3, ") + hole +
                           " is not written yet: write it in chapters/ch03_swiglu/exercise/silu_mul.cu, then set " +
                           flag + " to true.");
}

template <class T>
void launch_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const uintptr_t bits = uintptr_t(args.gate_up) | uintptr_t(args.out) |
                         uintptr_t(args.size | args.gate_up_stride | args.out_stride) * sizeof(T);
  const bool one_thread = args.size <= 7, packs = !one_thread && bits % 16 == 0;

  need(kProductIsWritten, "hole 1 (silu_mul)", "kProductIsWritten");
  if (!one_thread && !packs) need(kElementsAreWritten, "hole 2 (silu_mul_elements)", "kElementsAreWritten");
  if (packs) need(kPacksAreWritten, "hole 3 (silu_mul_packs)", "kPacksAreWritten");
  const auto kernel = one_thread ? silu_mul_short_row<T> : packs ? silu_mul_packs<T> : silu_mul_elements<T>;
  launch(kernel, dim3(unsigned(args.rows)), dim3(one_thread ? 1 : kThreads), 0, stream, args);
}

}  // namespace

void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_silu_mul<decltype(zero)>(args, stream); });
}
