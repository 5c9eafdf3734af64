// v4: 16 bytes an instruction, and the row stays in registers.
//
//   grid    rows blocks
//   block   32 to 256 threads, enough for the row's packs of 16 bytes (8 elements of bf16), in whole warps
//   thread  t owns packs t, t + threads, …, up to 4 of them, and keeps them in registers. What a row of more than 8,192
//           elements has beyond that is read a second time.
//
// Traffic: x in, out out, weight in once: 4 * rows * hidden + 2 * hidden bytes in bf16, in an eighth of the
// instructions.
//
// The idea: one load instead of eight, and none for the second use. And what does not depend on the sum, the weight, is
// asked for before the barrier, so that x and the weight are on their way at the same time.
// Rows whose size, stride or address is no multiple of 16 bytes go through the same code, element by element.
#include "cuda_platform.cuh"
#include "operators.h"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

namespace {

constexpr int kMaxThreads = 256;

// The sum over the block, in every thread, as in v3.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float total = 0.0f;
  for (unsigned w = 0; w < blockDim.x / kWarpSize; ++w) total += partial[w];
  return total;
}

template <class T>
__host__ __device__ int packs_of(int64_t hidden) {
  return static_cast<int>((hidden + Pack<T>::kSize - 1) / Pack<T>::kSize);
}

template <class T>
__device__ __forceinline__ float sum_of_squares(const Pack<T>& pack) {
  float sum = 0.0f;
  for (const T value : pack.values) sum += to_float(value) * to_float(value);
  return sum;
}

template <class T>
__device__ __forceinline__ Pack<T> normed(Pack<T> x, const Pack<T>& weight, float scale) {
  for (int e = 0; e < Pack<T>::kSize; ++e) {
    x.values[e] = from_float<T>(to_float(x.values[e]) * scale * to_float(weight.values[e]));
  }
  return x;
}

// --8<-- [start:kernel]
template <class T, int kPacks, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kernel(qwen::RmsNorm args) {
  __shared__ float partial[kMaxThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const int hidden = static_cast<int>(args.hidden), packs = packs_of<T>(hidden);

  Pack<T> kept[kPacks], gain[kPacks];
  float sum = 0.0f;
  int q = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPacks; ++k, q += blockDim.x) {
    if (q < packs) gain[k] = load_pack_of<kAligned>(weight, q, hidden);
    if (q < packs) kept[k] = load_pack_of<kAligned>(x, q, hidden);
    if (q < packs) sum += sum_of_squares(kept[k]);
  }
  for (; q < packs; q += blockDim.x) {  // what the registers do not hold
    sum += sum_of_squares(load_pack_of<kAligned>(x, q, hidden));
  }
  sum = block_sum(sum, partial);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(hidden) + args.eps);

  q = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPacks; ++k, q += blockDim.x) {
    if (q < packs) store_pack_of<kAligned>(out, q, hidden, normed(kept[k], gain[k], scale));
  }
  for (; q < packs; q += blockDim.x) {
    const Pack<T> again = load_pack_of<kAligned>(x, q, hidden);
    const Pack<T> its_gain = load_pack_of<kAligned>(weight, q, hidden);
    store_pack_of<kAligned>(out, q, hidden, normed(again, its_gain, scale));
  }
}
// --8<-- [end:kernel]

template <class T, int kPacks>
void launch_with(const qwen::RmsNorm& args, cudaStream_t stream) {
  const bool aligned = rows_are_aligned(static_cast<const T*>(args.weight), args.hidden) &&
                       rows_are_aligned(static_cast<const T*>(args.x), args.x_stride) &&
                       rows_are_aligned(static_cast<const T*>(args.out), args.out_stride);
  const auto kernel = aligned ? rms_norm_kernel<T, kPacks, true> : rms_norm_kernel<T, kPacks, false>;
  const int warps = (packs_of<T>(args.hidden) + kPacks * kWarpSize - 1) / (kPacks * kWarpSize);
  const dim3 block(warps * kWarpSize < kMaxThreads ? warps * kWarpSize : kMaxThreads);
  launch(kernel, dim3(unsigned(args.rows)), block, 0, stream, args);
}

template <class T>
void launch_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const int packs = packs_of<T>(args.hidden);
  if (packs <= kMaxThreads) return launch_with<T, 1>(args, stream);
  if (packs <= 2 * kMaxThreads) return launch_with<T, 2>(args, stream);
  launch_with<T, 4>(args, stream);
}

}  // namespace

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_rms_norm<decltype(zero)>(args, stream); });
}
