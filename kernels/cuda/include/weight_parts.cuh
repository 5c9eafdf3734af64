// weight_parts.cuh: an fp32 weight as three 16-bit numbers, which together hold all 24 bits of it.
#pragma once

#include "number_types.cuh"

// Part `part` of two weights from 0 to 1, in units of unit(part), as one word. A NaN is a NaN in each part.
template <class T>
struct WeightParts;

// The range of fp32: 8 bits of a significand after the other, cut off by a mask.
template <>
struct WeightParts<__nv_bfloat16> {
  static __device__ __forceinline__ float unit(int) { return 1.0f; }
  static __device__ __forceinline__ uint32_t pair(float x, float y, int part) {
    return __byte_perm(__float_as_uint(rest(x, part)), __float_as_uint(rest(y, part)), 0x7632);
  }
  // What the parts before leave.
  static __device__ __forceinline__ float rest(float x, int part) {
    const uint32_t first = part >= 1 ? 0xffff0000u : 0, second = part >= 2 ? 0xffff0000u : 0;
    x -= __uint_as_float(__float_as_uint(x) & first);
    return x - __uint_as_float(__float_as_uint(x) & second);
  }
};

// Halves end at 2^-24, so each part has a unit of its own: a weight keeps its 24 bits down to 2^-34, and what is below
// 2^-58 is lost.
template <>
struct WeightParts<__half> {
  static constexpr int kFirst = 14, kStep = 10;  // exponents: 1 is 2^14 units, and the next unit is 2^10 times smaller
  static __device__ __forceinline__ float unit(int part) {
    return __uint_as_float(unsigned(127 - kFirst - kStep * part) << 23);
  }
  static __device__ __forceinline__ uint32_t pair(float x, float y, int part) {
    x *= float(1 << kFirst), y *= float(1 << kFirst);
    __half2 near = __floats2half2_rn(x, y);
#pragma unroll
    for (int p = 1; p < 3; ++p) {
      x = (x - __low2float(near)) * float(1 << kStep), y = (y - __high2float(near)) * float(1 << kStep);
      const __half2 next = __floats2half2_rn(x, y);
      if (part >= p) near = next;
    }
    return *reinterpret_cast<const uint32_t*>(&near);
  }
};
