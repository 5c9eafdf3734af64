// CUDA's mathematical and bit functions. Where the GPU's answer is approximate, ours is the correctly rounded one, or
// the C library's: within the error that CUDA allows, but not the same bits.
#pragma once

#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cudasim/language.h"

namespace cudasim {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// To an integer, as the GPU does: NaN becomes 0, and what is out of range the nearest end of it.
template <class I, class F>
inline I to_integer(F whole) {
  constexpr F low = F(std::numeric_limits<I>::min());
  const F high = std::ldexp(F(1), std::numeric_limits<I>::digits);  // one above the largest
  if (!(whole == whole)) return 0;
  return whole < low ? std::numeric_limits<I>::min() : whole >= high ? std::numeric_limits<I>::max() : I(whole);
}

}  // namespace cudasim

// ---- bits
inline unsigned __float_as_uint(float x) {
  return cudasim::bits_as<unsigned>(x);
}
inline int __float_as_int(float x) {
  return cudasim::bits_as<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return cudasim::bits_as<float>(x);
}
inline float __int_as_float(int x) {
  return cudasim::bits_as<float>(x);
}
inline long long __double_as_longlong(double x) {
  return cudasim::bits_as<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return cudasim::bits_as<double>(x);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __clz(int x) {
  return x ? __builtin_clz(unsigned(x)) : 32;
}
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(unsigned(x))) << 32 | __brev(unsigned(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (s & 7)) & 0xff);
    r |= (s & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);  // bit 3 asks for the sign, eight times
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}

// ---- integers
inline int __dp4a(int a, int b, int c) {  // c + the dot product of four signed bytes
  unsigned sum = unsigned(c);
  for (int i = 0; i < 4; ++i) sum += unsigned(int8_t(unsigned(a) >> (8 * i)) * int8_t(unsigned(b) >> (8 * i)));
  return int(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
  return c;
}
inline int __mulhi(int a, int b) {
  return int(int64_t(a) * b >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned(uint64_t(a) * b >> 32);
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {  // of the lower and of the upper 16 bits
  return ((a >> 16 > b >> 16 ? a : b) & 0xffff0000u) | (((a & 0xffffu) > (b & 0xffffu) ? a : b) & 0xffffu);
}
inline unsigned __vminu2(unsigned a, unsigned b) {
  return ~__vmaxu2(~a, ~b);
}

#define CUDASIM_MIN_MAX(T) \
  inline T min(T a, T b) { \
    return b < a ? b : a;  \
  }                        \
  inline T max(T a, T b) { \
    return a < b ? b : a;  \
  }
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
#undef CUDASIM_MIN_MAX
// A NaN loses against a number.
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}

// ---- floating point, correctly rounded
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float __frsqrt_rn(float x) {
  return float(1.0 / std::sqrt(double(x)));
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}  // NaN becomes 0

// ---- floating point, approximate on a GPU
inline float rsqrtf(float x) {
  return float(1.0 / std::sqrt(double(x)));
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __exp10f(float x) {
  return std::pow(10.0f, x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline float __log10f(float x) {
  return std::log10(x);
}
inline float __powf(float x, float y) {
  return std::pow(x, y);
}
inline float __sinf(float x) {
  return std::sin(x);
}
inline float __cosf(float x) {
  return std::cos(x);
}
inline float __tanf(float x) {
  return std::tan(x);
}
inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = std::sin(x), *cosine = std::cos(x);
}

// ---- conversions: rn to nearest even, rz toward zero, rd down, ru up
#define CUDASIM_CONVERSIONS(From, from, I, to)        \
  inline I __##from##2##to##_rn(From x) {             \
    return cudasim::to_integer<I>(std::nearbyint(x)); \
  }                                                   \
  inline I __##from##2##to##_rz(From x) {             \
    return cudasim::to_integer<I>(std::trunc(x));     \
  }                                                   \
  inline I __##from##2##to##_rd(From x) {             \
    return cudasim::to_integer<I>(std::floor(x));     \
  }                                                   \
  inline I __##from##2##to##_ru(From x) {             \
    return cudasim::to_integer<I>(std::ceil(x));      \
  }
CUDASIM_CONVERSIONS(float, float, int, int)
CUDASIM_CONVERSIONS(float, float, unsigned, uint)
CUDASIM_CONVERSIONS(float, float, long long, ll)
CUDASIM_CONVERSIONS(double, double, int, int)
#undef CUDASIM_CONVERSIONS
inline float __int2float_rn(int x) {
  return float(x);
}
inline float __uint2float_rn(unsigned x) {
  return float(x);
}
inline float __ll2float_rn(long long x) {
  return float(x);
}
inline double __int2double_rn(int x) {
  return x;
}
inline float __double2float_rn(double x) {
  return float(x);
}
