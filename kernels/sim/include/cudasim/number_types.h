// bfloat16 and half: storage, and conversions that round to the nearest, ties to even. Only explicit conversions are
// offered: that is what PyTorch's flags leave of CUDA's headers.
#pragma once

#include "cudasim/intrinsics.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct __half {
  unsigned short bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  CUDASIM_VECTOR_COPY_2(__nv_bfloat162, __nv_bfloat16)
};
struct alignas(4) __half2 {
  __half x, y;
  CUDASIM_VECTOR_COPY_2(__half2, __half)
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
using half = __half;
using half2 = __half2;

// ---- one number
inline float __bfloat162float(__nv_bfloat16 x) {
  return __uint_as_float(unsigned(x.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // every NaN becomes this one
  return {static_cast<unsigned short>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

inline float __half2float(__half x) {
  const unsigned sign = unsigned(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {  // zero or subnormal: fraction / 2^24, exact in fp32
    const float magnitude = float(fraction) * 0x1p-24f;
    return __uint_as_float(sign | __float_as_uint(magnitude));
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

inline __half __float2half_rn(float x) {
  const unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fff};
  if (magnitude >= 0x477ff000u) return {static_cast<unsigned short>(sign | 0x7c00u)};  // from 65520 on: infinity
  unsigned bits;
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal counts 2^-24, and adding 1/2 makes fp32 round to it
    bits = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    bits = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<unsigned short>(sign | bits)};
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return {bits};
}
inline unsigned short __half_as_ushort(__half x) {
  return x.bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return __float2bfloat16_rn(x);
}
inline __half __float2half(float x) {
  return __float2half_rn(x);
}

namespace cudasim {

// a * b + c, rounded to odd: to the nearest number toward zero, with its last bit set if anything was lost. fp32 has
// enough bits for the next rounding, to nearest in 16 bits, to be that of the exact result.
inline float fma_to_odd(float a, float b, float c) {
  const double product = double(a) * b, sum = product + c;  // the product is exact
  const double from_c = sum - product, lost = (product - (sum - from_c)) + (c - from_c);
  float rounded = float(sum);
  if (!std::isfinite(sum) || (double(rounded) == sum && lost == 0)) return rounded;
  const double beyond = (double(rounded) - sum) - lost;  // its sign alone counts
  unsigned bits = __float_as_uint(rounded);
  if (rounded != 0 && (beyond > 0) == (rounded > 0)) --bits;  // it was rounded away from zero
  return __uint_as_float(bits | 1);
}

}  // namespace cudasim

// ---- pairs, and arithmetic: in fp32 and then rounded, which is the correctly rounded result for + - * / in both types
#define CUDASIM_NUMBER(T, T2, to_float, from_float)                                \
  inline bool __hisnan(T x) {                                                      \
    return std::isnan(to_float(x));                                                \
  }                                                                                \
  inline int __hisinf(T x) {                                                       \
    return std::isinf(to_float(x)) ? (x.bits >> 15 ? -1 : 1) : 0;                  \
  }                                                                                \
  inline T __hneg(T x) {                                                           \
    return {static_cast<unsigned short>(x.bits ^ 0x8000)};                         \
  }                                                                                \
  inline T __habs(T x) {                                                           \
    return {static_cast<unsigned short>(x.bits & 0x7fff)};                         \
  }                                                                                \
  inline T __hadd(T a, T b) {                                                      \
    return from_float(to_float(a) + to_float(b));                                  \
  }                                                                                \
  inline T __hsub(T a, T b) {                                                      \
    return from_float(to_float(a) - to_float(b));                                  \
  }                                                                                \
  inline T __hmul(T a, T b) {                                                      \
    return from_float(to_float(a) * to_float(b));                                  \
  }                                                                                \
  inline T __hdiv(T a, T b) {                                                      \
    return from_float(to_float(a) / to_float(b));                                  \
  }                                                                                \
  inline T __hfma(T a, T b, T c) {                                                 \
    return from_float(cudasim::fma_to_odd(to_float(a), to_float(b), to_float(c))); \
  }                                                                                \
  inline T __hmax(T a, T b) {                                                      \
    return from_float(std::fmax(to_float(a), to_float(b)));                        \
  }                                                                                \
  inline T __hmin(T a, T b) {                                                      \
    return from_float(std::fmin(to_float(a), to_float(b)));                        \
  }                                                                                \
  inline bool __heq(T a, T b) {                                                    \
    return to_float(a) == to_float(b);                                             \
  }                                                                                \
  inline bool __hne(T a, T b) {                                                    \
    return to_float(a) != to_float(b);                                             \
  }                                                                                \
  inline bool __hlt(T a, T b) {                                                    \
    return to_float(a) < to_float(b);                                              \
  }                                                                                \
  inline bool __hle(T a, T b) {                                                    \
    return to_float(a) <= to_float(b);                                             \
  }                                                                                \
  inline bool __hgt(T a, T b) {                                                    \
    return to_float(a) > to_float(b);                                              \
  }                                                                                \
  inline bool __hge(T a, T b) {                                                    \
    return to_float(a) >= to_float(b);                                             \
  }                                                                                \
  inline T2 __hadd2(T2 a, T2 b) {                                                  \
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};                                   \
  }                                                                                \
  inline T2 __hsub2(T2 a, T2 b) {                                                  \
    return {__hsub(a.x, b.x), __hsub(a.y, b.y)};                                   \
  }                                                                                \
  inline T2 __hmul2(T2 a, T2 b) {                                                  \
    return {__hmul(a.x, b.x), __hmul(a.y, b.y)};                                   \
  }                                                                                \
  inline T2 __hfma2(T2 a, T2 b, T2 c) {                                            \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                         \
  }                                                                                \
  inline float __low2float(T2 v) {                                                 \
    return to_float(v.x);                                                          \
  }                                                                                \
  inline float __high2float(T2 v) {                                                \
    return to_float(v.y);                                                          \
  }
CUDASIM_NUMBER(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16_rn)
CUDASIM_NUMBER(__half, __half2, __half2float, __float2half_rn)
#undef CUDASIM_NUMBER

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
  return {x, x};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return __floats2bfloat162_rn(x, x);
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return __floats2bfloat162_rn(v.x, v.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) {
  return v.x;
}
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) {
  return v.y;
}

inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __half2half2(__half x) {
  return {x, x};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float2half2_rn(float x) {
  return __floats2half2_rn(x, x);
}
inline __half2 __float22half2_rn(float2 v) {
  return __floats2half2_rn(v.x, v.y);
}
inline float2 __half22float2(__half2 v) {
  return make_float2(__half2float(v.x), __half2float(v.y));
}
inline __half __low2half(__half2 v) {
  return v.x;
}
inline __half __high2half(__half2 v) {
  return v.y;
}
