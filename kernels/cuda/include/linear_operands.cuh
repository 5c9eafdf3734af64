// linear_operands.cuh: the arguments of a linear layer's kernel, typed, and what becomes of a finished sum.
#pragma once

#include "operators.h"
#include "vector_load.cuh"

// W: of weight and norm_weight. X: of x.
template <class W, class X>
struct LinearOperands {
  using Weight = W;
  using Input = X;
  const W *weight, *norm_weight;
  const X* x;
  const void* residual;
  void* out;
  int64_t x_stride, residual_stride;
  int batch, k, columns;   // columns: of out
  float eps, mean_factor;  // 1 / k
  bool silu_mul, prefetch, wide_out;

  // Row r of W. With silu_mul rows `to` and columns + to, of gate and of up, serve column `to` of out.
  __device__ __forceinline__ const W* row(int r) const { return weight + int64_t(r) * k; }
  __device__ __forceinline__ const X* x_row(int i) const { return x + i * x_stride; }

  // 1 / sqrt(mean(x^2) + eps), from the sum of squares.
  __device__ __forceinline__ float norm_scale(float squares) const { return rsqrtf(fmaf(squares, mean_factor, eps)); }

  // SiLU(z) = z / (1 + exp(-z)). The exponential of -|z|, because exp(-z) overflows where SiLU is no zero yet. The
  // short form errs by less than 2^-16: little beside the rounding to 16 bits.
  __device__ __forceinline__ float silu(float z) const {
    if (wide_out) {
      const float power = expf(-fabsf(z));
      return (z < 0.0f ? z * power : z) / (1.0f + power);
    }
    const float power = __expf(-fabsf(z));
    return __fdividef(z < 0.0f ? z * power : z, 1.0f + power);
  }

  // A number of the output's dtype, not yet converted: who asks need not wait for it.
  __device__ __forceinline__ unsigned residual_bits(int i, int column) const {
    const int64_t at = i * residual_stride + column;
    return wide_out ? static_cast<const unsigned*>(residual)[at] : static_cast<const unsigned short*>(residual)[at];
  }
  __device__ __forceinline__ float residual_of(unsigned bits) const {
    return wide_out ? __uint_as_float(bits) : element<W>(make_uint4(bits, 0, 0, 0), 0);
  }
  __device__ __forceinline__ void store(int i, int column, float value) const {
    const int64_t at = int64_t(i) * columns + column;
    if (wide_out) {
      static_cast<float*>(out)[at] = value;
    } else {
      static_cast<W*>(out)[at] = from_float<W>(value);
    }
  }
};

template <class W, class X>
LinearOperands<W, X> linear_operands(const qwen::DecodeLinear& args) {
  return {static_cast<const W*>(args.weight),
          static_cast<const W*>(args.norm_weight),
          static_cast<const X*>(args.x),
          args.residual,
          args.out,
          args.x_stride,
          args.residual_stride,
          int(args.batch),
          int(args.k),
          int(args.silu_mul ? args.n / 2 : args.n),
          args.eps,
          1.0f / float(args.k),
          args.silu_mul,
          args.prefetch,
          args.out_dtype == qwen::Dtype::kFloat32};
}

// Whether W, x and the gain can be read in words of 16 bytes.
template <class W, class X>
bool is_aligned(const LinearOperands<W, X>& a) {
  return rows_are_aligned(a.weight, a.k) && rows_are_aligned(a.norm_weight, 0) && rows_are_aligned(a.x, a.x_stride);
}

// Calls f(operands) with the types that the arguments name.
template <class F>
void dispatch_linear(const qwen::DecodeLinear& args, F f) {
  const auto with = [&](auto zero) {
    using W = decltype(zero);
    if (args.x_dtype == qwen::Dtype::kFloat32) return f(linear_operands<W, float>(args));
    f(linear_operands<W, W>(args));
  };
  if (args.dtype == qwen::Dtype::kFloat16) return with(__half{});
  with(__nv_bfloat16{});
}
