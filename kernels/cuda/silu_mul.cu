// silu_mul.cu: out = silu(gate) * up, where gate and up are the two halves of each row of one matrix.
//
// Mapping   The packs of 16 bytes of all rows of out are numbered through, and thread p of the grid has pack p. It
//           reads that pack of gate and of up, which nobody else needs.
// Traffic   gate and up in, out out: 3 * rows * size elements. About ten operations an element: memory decides.
// Contract  fp32 arithmetic, one rounding. With kHf silu(gate) is rounded too, and computed as PyTorch computes it.
#include "operators.h"
#include "vector_load.cuh"

namespace {

template <class T>
struct Operands {
  const T* gate_up;
  T* out;
  int64_t gate_up_stride, out_stride;
  int size;
  unsigned row_packs, packs;  // of a row of out, and of all rows
};

// silu(z) = z / (1 + exp(-z)). exp(-z) overflows where z < -88, although silu(z) is no zero yet: so the exponential is
// taken of -|z|, and for a negative z both parts of the fraction are multiplied by exp(z).
// --8<-- [start:silu]
template <class T, bool kHf>
__device__ __forceinline__ float silu(float z) {
  if constexpr (kHf) {
    return intermediate<T, kHf>(z / (1.0f + expf(-z)));
  } else if constexpr (sizeof(T) == sizeof(float)) {
    const float power = expf(-fabsf(z));
    return (z < 0.0f ? z * power : z) / (1.0f + power);
  } else {  // an error of 2^-17 at most: little beside the rounding to 16 bits
    const float power = __expf(-fabsf(z));
    return __fdividef(z < 0.0f ? z * power : z, 1.0f + power);
  }
}
// --8<-- [end:silu]

// --8<-- [start:kernel]
template <class T, int kThreads, bool kAligned, bool kHf>
__global__ void __launch_bounds__(kThreads) silu_mul_packs(Operands<T> a) {
  const unsigned p = blockIdx.x * kThreads + threadIdx.x;
  grid_dependency_trigger();
  grid_dependency_wait();
  if (p >= a.packs) return;
  const int64_t row = p / a.row_packs;
  const int q = static_cast<int>(p % a.row_packs);

  const T* gate_row = a.gate_up + row * a.gate_up_stride;
  const Pack<T> gate = load_pack_of<kAligned>(gate_row, q, a.size);
  const Pack<T> up = load_pack_of<kAligned>(gate_row + a.size, q, a.size);
  Pack<T> out;
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) {
    const float z = to_float(gate.values[k]);
    out.values[k] = from_float<T>(silu<T, kHf>(z) * to_float(up.values[k]));
  }
  store_pack_of<kAligned>(a.out + row * a.out_stride, q, a.size, out);
}
// --8<-- [end:kernel]

template <int kThreads, bool kAligned, bool kHf, class T>
void launch_packs(const Operands<T>& a, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const unsigned blocks = (a.packs + kThreads - 1) / kThreads;
  launch(options, silu_mul_packs<T, kThreads, kAligned, kHf>, dim3(blocks), dim3(kThreads), 0, stream, a);
}

// Small blocks spread few packs over all SMs; large ones keep an SM full when there are many. Two packs a thread lose
// at every size. The border is measured on an H200: docs/experiments.md.
template <bool kAligned, bool kHf, class T>
void choose(const Operands<T>& a, cudaStream_t stream) {
  if (a.packs < 1 << 16) {
    launch_packs<64, kAligned, kHf>(a, stream);
  } else {
    launch_packs<512, kAligned, kHf>(a, stream);
  }
}

template <class T>
void silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t row_packs = (args.size + kSize - 1) / kSize;
  const int64_t most = INT32_MAX / row_packs;  // rows of a launch: their packs are counted in 32 bits
  const auto* gate_up = static_cast<const T*>(args.gate_up);
  auto* out = static_cast<T*>(args.out);
  const bool aligned = args.size % kSize == 0 && rows_are_aligned(gate_up, args.gate_up_stride) &&
                       rows_are_aligned(out, args.out_stride);
  for (int64_t row = 0; row < args.rows; row += most) {
    const int64_t rows = args.rows - row < most ? args.rows - row : most;
    const Operands<T> a{gate_up + row * args.gate_up_stride,
                        out + row * args.out_stride,
                        args.gate_up_stride,
                        args.out_stride,
                        int(args.size),
                        unsigned(row_packs),
                        unsigned(rows * row_packs)};
    dispatch_switch(aligned, [&](auto whole_packs) {
      dispatch_switch(args.hf_rounding, [&](auto hf) { choose<whole_packs.value, hf.value>(a, stream); });
    });
  }
}

}  // namespace

void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { silu_mul<decltype(zero)>(args, stream); });
}
