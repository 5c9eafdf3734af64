// gumbel.cuh: random numbers without a state, and from them Gumbel noise, to the bits of qwen3_ref/gumbel.py.
//
// Philox4x32-10 makes 128 random bits of a key and a counter (Salmon et al., Parallel Random Numbers: As Easy as 1, 2,
// 3, 2011). Sums and products are rounded one by one: a compiler that contracts a * b + c would change a bit, and with
// it, some day, a token.
#pragma once

#include "cuda_platform.cuh"

constexpr float kLn2 = 0.6931471805599453;
constexpr int kSqrtHalfBits = 0x3f3504f3;  // of the float next to sqrt(1/2)

// --8<-- [start:philox]
__device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
  constexpr int kRounds = 10;
  constexpr unsigned kMultiply0 = 0xd2511f53u, kMultiply2 = 0xcd9e8d57u;
  constexpr unsigned kStep0 = 0x9e3779b9u, kStep1 = 0xbb67ae85u;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const unsigned high0 = __umulhi(kMultiply0, counter.x), low0 = kMultiply0 * counter.x;
    const unsigned high2 = __umulhi(kMultiply2, counter.z), low2 = kMultiply2 * counter.z;
    counter = make_uint4(high2 ^ counter.y ^ key.x, low2, high0 ^ counter.w ^ key.y, low0);
    key = make_uint2(key.x + kStep0, key.y + kStep1);
  }
  return counter;
}
// --8<-- [end:philox]

// ln(a/b) from a - b and a + b, for a/b from sqrt(1/2) to sqrt(2), as 2 artanh((a - b)/(a + b)).
__device__ __forceinline__ float log_of_ratio(float difference, float total) {
  const float z = __fdiv_rn(difference, total), square = __fmul_rn(z, z);
  float series = __fmul_rn(square, float(1.0 / 9));
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 7)), square);
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 5)), square);
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 3)), square);
  return __fmul_rn(__fadd_rn(z, z), __fadd_rn(series, 1.0f));
}

// ln y within 2^-18, for |ln y| up to 24.
__device__ __forceinline__ float natural_log(float y) {
  const int bits = __float_as_int(y), exponent = (bits - kSqrtHalfBits) >> 23;
  const float mantissa = __int_as_float(bits - exponent * (1 << 23));  // from sqrt(1/2) to sqrt(2)
  const float log = log_of_ratio(__fadd_rn(mantissa, -1.0f), __fadd_rn(mantissa, 1.0f));
  return __fadd_rn(__fmul_rn(float(exponent), kLn2), log);
}

// -ln(-ln u) for u = 1 - (word + 1/2) / 2^32.
// --8<-- [start:gumbel]
__device__ __forceinline__ float gumbel(unsigned word) {
  constexpr float kScale = 1.0f / 4294967296.0f;
  float log_u;
  if (word < 1u << 30) {  // u is near 1: few digits of its logarithm are left in it
    const float v = __fmul_rn(__fadd_rn(float(word), 0.5f), kScale);
    log_u = log_of_ratio(-v, __fadd_rn(2.0f, -v));
  } else {
    log_u = natural_log(__fmul_rn(__fadd_rn(float(~word), 0.5f), kScale));
  }
  return -natural_log(-log_u);
}
// --8<-- [end:gumbel]

// gumbel(word) is at most this, by a margin for its roundings: -ln u is at least 1 - u, and that at least
// 2^-(zeros + 1) for so many leading zeros of the word. It costs a tenth.
__device__ __forceinline__ float most_gumbel(unsigned word) {
  return 0.694f * float(__clz(int(word)) + 1);
}
