// number_formats.h: bfloat16 and float16 as C++ types that convert to and from float, to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "operators.h"

namespace qwen::cpu {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t b = bits_of(value);
    const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    bits = static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);  // NaN stays NaN
  }
  explicit operator float() const { return float_of(uint32_t(bits) << 16); }
};

struct Float16 {
  uint16_t bits;

  Float16() = default;
  // The two branches round in the floating-point unit: adding a power of two pushes the bits that have no place off the
  // end of the significand, which rounds to nearest even.
  explicit Float16(float value) {
    const uint32_t b = bits_of(value), sign = (b >> 16) & 0x8000u, magnitude = b & 0x7fffffffu;
    uint32_t half;
    if (magnitude >= 0x47800000u) {  // 65536 and above, infinity, NaN
      half = magnitude > 0x7f800000u ? 0x7fffu : 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal, in units of 2^-24
      half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    } else {  // 13 bits fall away; a carry runs into the exponent, as it should
      half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    }
    bits = static_cast<uint16_t>(sign | half);
  }
  explicit operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Taken as a float with the same fields, the exponent is 112 too low: one exact product mends it, subnormals too.
    return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
  }
};

// A result on the way to the output: kept in fp32, or, in Hugging Face's order of operations, rounded to T.
template <class T, bool kHf>
float intermediate(float value) {
  if constexpr (kHf) {
    return static_cast<float>(T(value));
  } else {
    return value;
  }
}

// Calls f(T{}, hf) with the type of `dtype`, and hf a std::true_type or std::false_type.
template <class F>
void dispatch(Dtype dtype, bool hf_rounding, F f) {
  const auto with = [&](auto zero) { hf_rounding ? f(zero, std::true_type{}) : f(zero, std::false_type{}); };
  switch (dtype) {
    case Dtype::kFloat32:
      return with(float{});
    case Dtype::kFloat16:
      return with(Float16{});
    case Dtype::kBFloat16:
      return with(BFloat16{});
  }
}

}  // namespace qwen::cpu
