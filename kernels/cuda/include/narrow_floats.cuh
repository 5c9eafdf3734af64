// narrow_floats.cuh: numbers of 8 and of 4 bits, and the scales that groups of them share.
//
//   E4M3   sign, 4 bits of exponent, 3 of significand: 0, 2^-9 … 448, NaN (0x7f)
//   E2M1   sign, 2 bits of exponent, 1 of significand: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN
//   UE8M0  8 bits of exponent: the powers of two from 2^-127 (0) to 2^127 (254); NaN (255)
//
// Conversions round to nearest, ties to even, and saturate: beyond the largest number, infinity too, it is that number.
// A NaN becomes 0x7f as E4M3 and 6 as E2M1. GPUs that have an instruction for four or two numbers at a time use it, to
// the same bits.
#pragma once

#include "number_types.cuh"

constexpr float kLargestE4M3 = 448.0f, kLargestE2M1 = 6.0f;
constexpr unsigned kInfinityBits = 0x7f800000u;  // of fp32; those of a NaN are more, without the sign

// --8<-- [start:e4m3]
__device__ __forceinline__ unsigned to_e4m3(float value) {
  const unsigned bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  unsigned code;
  if (magnitude > kInfinityBits) return 0x7f;
  if (magnitude >= 0x43e00000u) {  // 448
    code = 0x7e;
  } else if (magnitude < 0x3c800000u) {  // below 2^-6 the numbers are 2^-9 apart, those above 2^14 too
    code = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - __float_as_uint(16384.0f);
  } else {  // 20 bits fall away; a carry runs into the exponent, as it should
    code = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  }
  return (bits >> 24 & 0x80u) | code;
}

__device__ __forceinline__ float from_e4m3(unsigned code) {
  if ((code & 0x7fu) == 0x7fu) return __uint_as_float(0x7fffffffu);
  // With the same fields a float is 2^120 times smaller. The product is exact, subnormals too.
  const float value = __uint_as_float((code & 0x7fu) << 20) * 0x1p120f;
  return code & 0x80u ? -value : value;
}
// --8<-- [end:e4m3]

__device__ __forceinline__ unsigned to_e2m1(float value) {
  const unsigned bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  unsigned code;
  if (magnitude > kInfinityBits) return 7;
  if (magnitude >= 0x40c00000u) {  // 6
    code = 7;
  } else if (magnitude < 0x3f800000u) {  // below 1 the numbers are 0.5 apart, those above 2^22 too
    code = __float_as_uint(__uint_as_float(magnitude) + 4194304.0f) - __float_as_uint(4194304.0f);
  } else {
    code = (magnitude + 0x1fffffu + ((magnitude >> 22) & 1u) - (126u << 23)) >> 22;
  }
  return (bits >> 28 & 8u) | code;
}

__device__ __forceinline__ float from_e2m1(unsigned code) {
  const float value = __uint_as_float((code & 7u) << 22) * 0x1p126f;
  return code & 8u ? -value : value;
}

// Two or four numbers, the first in the lowest bits.
__device__ __forceinline__ unsigned to_e4m3x2(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return to_e4m3(first) | to_e4m3(second) << 8;
#endif
}
__device__ __forceinline__ uint32_t to_e4m3x4(const float (&values)[4]) {
  return to_e4m3x2(values[2], values[3]) << 16 | to_e4m3x2(values[0], values[1]);
}

__device__ __forceinline__ uint16_t to_e2m1x4(const float (&values)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && defined(__CUDA_ARCH_FAMILY_SPECIFIC__)  // of sm_100f, sm_120a, …
  unsigned short low, high;
  asm("{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2; mov.b16 %0, {pair, 0}; }"
      : "=h"(low)
      : "f"(values[1]), "f"(values[0]));
  asm("{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2; mov.b16 %0, {pair, 0}; }"
      : "=h"(high)
      : "f"(values[3]), "f"(values[2]));
  return uint16_t(high << 8 | low);
#else
  return uint16_t(to_e2m1(values[0]) | to_e2m1(values[1]) << 4 | to_e2m1(values[2]) << 8 | to_e2m1(values[3]) << 12);
#endif
}

// Eight numbers times 2^-14, as bfloat16 has them in units of a scale. As fp16, sign, exponent and significand are then
// those of E2M1, subnormals too, with nine bits more: so two at a time are rounded as integers. That fp16 has rounded
// before shows in no code: what is near a tie of E2M1, and not a tie, is further from it than fp16 rounds.
// --8<-- [start:e2m1x8]
__device__ __forceinline__ uint32_t to_e2m1x8(const float (&values)[8]) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 both = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(&both);
    // 6 at most, for a NaN too. A carry runs into the exponent, as it should.
    const uint32_t size = __vminu2(bits & 0x7fff7fffu, 0x0e000e00u);
    const uint32_t rounded = size + 0x00ff00ffu + (size >> 9 & 0x00010001u);
    pairs[i] = (bits & 0x80008000u) | (rounded & 0x7fff7fffu);
  }
  // Of each number one byte, with its sign in bit 7 and its code in bits 1 to 3: those of
  // the first numbers of all pairs, and of the second ones.
  const uint32_t low = __byte_perm(pairs[0], pairs[1], 0x7351);
  const uint32_t high = __byte_perm(pairs[2], pairs[3], 0x7351);
  const uint32_t first = __byte_perm(low, high, 0x5410);
  const uint32_t second = __byte_perm(low, high, 0x7632);
  const uint32_t lower = (first >> 1 & 0x07070707u) | (first >> 4 & 0x08080808u);
  return lower | (second << 3 & 0x70707070u) | (second & 0x80808080u);
}
// --8<-- [end:e2m1x8]

// --8<-- [start:ue8m0]
// The smallest power of two not below amax / largest, amax given by its bits. `largest`
// is a significand times a power of two: what is added carries into the exponent exactly
// if amax has a larger significand. No division, no logarithm.
__device__ __forceinline__ unsigned to_ue8m0(unsigned amax_bits, bool e4m3) {
  const int exponent = e4m3 ? int(amax_bits + 0x1fffffu >> 23) - 8   // 448 = 1.75 * 2^8
                            : int(amax_bits + 0x3fffffu >> 23) - 2;  // 6 = 1.5 * 2^2
  return exponent < 0 ? 0 : unsigned(exponent);
}
__device__ __forceinline__ float from_ue8m0(unsigned code) {
  if (code == 255) return __uint_as_float(0x7fffffffu);
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);  // 2^-127 is a subnormal
}
// --8<-- [end:ue8m0]
