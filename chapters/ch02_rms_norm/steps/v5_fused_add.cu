// v5: the residual addition in the same pass. The mapping is v4's; the registers hold x + residual in fp32.
//
//   grid    rows blocks
//   block   32 to 256 threads, enough for the row's packs of 16 bytes, in whole warps
//   thread  t owns packs t, t + threads, …, up to 4 of them; what a longer row has beyond is read a second time
//
// Traffic: x and residual in, out and the new residual out: 8 * rows * hidden + 2 * hidden bytes in bf16. An addition
// (6 bytes an element) and v4 after it (4) move 10, and the norm then starts from a sum that has been rounded.
//
// The idea: what the next operation needs is in registers already. Fusing saves a launch, a fifth of the bytes and one
// rounding. Without a residual this is v4.
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

// --8<-- [start:kernel]
template <class T, int kPacks, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) add_rms_norm_kernel(qwen::AddRmsNorm args) {
  __shared__ float partial[kMaxThreads / kWarpSize];
  constexpr int kSize = Pack<T>::kSize;
  const int64_t row = blockIdx.x;
  const bool add = args.residual != nullptr;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* residual = static_cast<const T*>(args.residual) + row * args.residual_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  T* residual_out = static_cast<T*>(args.residual_out) + row * args.residual_out_stride;
  const int hidden = static_cast<int>(args.hidden), packs = packs_of<T>(hidden);

  // --8<-- [start:read_write]
  // x + residual of pack q, not rounded, into `sum`; returns its sum of squares.
  const auto read = [&](int q, float (&sum)[kSize]) {
    const Pack<T> a = load_pack_of<kAligned>(x, q, hidden);
    const Pack<T> b = add ? load_pack_of<kAligned>(residual, q, hidden) : Pack<T>{};
    float squares = 0.0f;
    for (int e = 0; e < kSize; ++e) {
      sum[e] = to_float(a.values[e]) + to_float(b.values[e]);
      squares += sum[e] * sum[e];
    }
    return squares;
  };
  // Rounds once: the norm of the sum, and the sum.
  const auto write = [&](int q, const float (&sum)[kSize], Pack<T> gain, float scale) {
    Pack<T> y, s;
    for (int e = 0; e < kSize; ++e) {
      y.values[e] = from_float<T>(sum[e] * scale * to_float(gain.values[e]));
      s.values[e] = from_float<T>(sum[e]);
    }
    store_pack_of<kAligned>(out, q, hidden, y);
    if (add) store_pack_of<kAligned>(residual_out, q, hidden, s);
  };
  // --8<-- [end:read_write]

  Pack<T> gain[kPacks];
  float kept[kPacks][kSize], squares = 0.0f;
  float again[kSize];  // for what the registers do not hold
  int q = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPacks; ++k, q += blockDim.x) {
    if (q < packs) gain[k] = load_pack_of<kAligned>(weight, q, hidden);
    if (q < packs) squares += read(q, kept[k]);
  }
  for (; q < packs; q += blockDim.x) squares += read(q, again);

  squares = block_sum(squares, partial);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(hidden) + args.eps);
  q = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPacks; ++k, q += blockDim.x) {
    if (q < packs) write(q, kept[k], gain[k], scale);
  }
  for (; q < packs; q += blockDim.x) {
    read(q, again);
    write(q, again, load_pack_of<kAligned>(weight, q, hidden), scale);
  }
}
// --8<-- [end:kernel]

template <class T, int kPacks>
void launch_with(const qwen::AddRmsNorm& a, cudaStream_t stream) {
  const auto fits = [](const void* p, int64_t stride) { return rows_are_aligned(static_cast<const T*>(p), stride); };
  const bool aligned = fits(a.weight, a.hidden) && fits(a.x, a.x_stride) && fits(a.residual, a.residual_stride) &&
                       fits(a.out, a.out_stride) && fits(a.residual_out, a.residual_out_stride);
  const auto kernel = aligned ? add_rms_norm_kernel<T, kPacks, true> : add_rms_norm_kernel<T, kPacks, false>;
  const int warps = (packs_of<T>(a.hidden) + kPacks * kWarpSize - 1) / (kPacks * kWarpSize);
  const dim3 block(warps * kWarpSize < kMaxThreads ? warps * kWarpSize : kMaxThreads);
  launch(kernel, dim3(unsigned(a.rows)), block, 0, stream, a);
}

template <class T>
void launch_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;  // a grid without blocks is an error
  const int packs = packs_of<T>(args.hidden);
  if (packs <= kMaxThreads) return launch_with<T, 1>(args, stream);
  if (packs <= 2 * kMaxThreads) return launch_with<T, 2>(args, stream);
  launch_with<T, 4>(args, stream);
}

}  // namespace

void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_add_rms_norm<decltype(zero)>(args, stream); });
}

void qwen_rms_norm(const qwen::RmsNorm& a, cudaStream_t s) {
  qwen_add_rms_norm({a.x, nullptr, a.weight, a.out, nullptr, a.rows, a.hidden, a.x_stride, 0, a.out_stride, 0, a.eps,
                     a.dtype, a.hf_rounding},
                    s);
}
