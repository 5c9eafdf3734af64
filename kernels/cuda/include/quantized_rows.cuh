// quantized_rows.cuh: a group's scale, its numbers, and where both lie: in a paged cache, or one row after the other.
#pragma once

#include "narrow_floats.cuh"
#include "operators.h"

using qwen::QuantizedLayout;
using qwen::ScaleFormat;
using qwen::ValueFormat;

// A group has 2^n numbers. A division by what the compiler does not know takes some forty instructions.
__device__ __forceinline__ int group_shift(const QuantizedLayout& layout) {
  return __ffs(layout.group) - 1;
}

// Bytes from the first row of a cache to that of (slot, head).
struct RowOffset {
  int64_t data, scales;
};
__device__ __forceinline__ RowOffset row_offset(const QuantizedLayout& layout, int64_t slot, int head) {
  const int64_t block = slot >> layout.block_shift, place = slot & ((int64_t(1) << layout.block_shift) - 1);
  const int64_t row = place * layout.heads + head;
  return {block * layout.data_block_stride + row * layout.data_row_stride,
          block * layout.scale_block_stride + row * layout.scale_row_stride};
}

// --8<-- [start:scale]
struct GroupScale {
  float value;
  unsigned code;  // what is stored: a byte, or the bits of an fp32 number
};

// Of a group whose largest magnitude has these bits. It is never 0: a group of zeros has the smallest scale there is. A
// group with a NaN or an infinity has the scale NaN, and so reads as NaN.
__device__ __forceinline__ GroupScale scale_of(unsigned amax_bits, const QuantizedLayout& layout) {
  const bool e4m3 = layout.values == ValueFormat::kE4M3, finite = amax_bits < kInfinityBits;
  if (layout.scale_format == ScaleFormat::kUE8M0) {
    const unsigned code = finite ? to_ue8m0(amax_bits, e4m3) : 255;
    return {from_ue8m0(code), code};
  }
  const float quotient = __uint_as_float(amax_bits) / (e4m3 ? kLargestE4M3 : kLargestE2M1);
  if (layout.scale_format == ScaleFormat::kE4M3) {
    const unsigned code = finite ? to_e4m3(quotient) : 0x7f;
    return {from_e4m3(code == 0 ? 1 : code), code == 0 ? 1 : code};
  }
  const float value = finite ? fmaxf(quotient, 0x1p-126f) : __uint_as_float(0x7fffffffu);
  return {value, __float_as_uint(value)};
}
// --8<-- [end:scale]

// The group's numbers in units of its scale. A product with a power of two is the quotient, to the bit.
__device__ __forceinline__ void divide(float (&values)[4], const GroupScale& scale, ScaleFormat format) {
  if (format == ScaleFormat::kUE8M0) {
    const float inverse = scale.code == 255 ? scale.value : __uint_as_float((254u - scale.code) << 23);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= inverse;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] /= scale.value;
  }
}

// Four codes, 32 or 16 bits of them, and back.
__device__ __forceinline__ uint32_t encode(const float (&values)[4], ValueFormat format) {
  return format == ValueFormat::kE4M3 ? to_e4m3x4(values) : to_e2m1x4(values);
}
__device__ __forceinline__ float decode(uint32_t codes, int i, ValueFormat format) {
  return format == ValueFormat::kE4M3 ? from_e4m3(codes >> 8 * i & 0xffu) : from_e2m1(codes >> 4 * i & 0xfu);
}
