// narrow_floats.h: numbers of 8 and of 4 bits and the scales of groups, as kernels/cuda/include/narrow_floats.cuh has
// them, by another way: a number is taken apart, scaled so that its last place is 1, and rounded by the processor.
#pragma once

#include <cmath>
#include <limits>

#include "number_formats.h"

namespace qwen::cpu {

// A format of kFraction bits of significand whose smallest normal number is 2^kLowest; `largest` is the code and `top`
// the value of its largest number.
template <int kFraction, int kLowest>
uint32_t to_code(float value, uint32_t largest, float top) {
  const float magnitude = std::fabs(value);
  if (magnitude >= top) return largest;
  // The binade, from the fields: 2^binade <= magnitude, or the lowest one that has numbers of its own.
  const int field = int(bits_of(magnitude) >> 23) - 127, binade = field < kLowest ? kLowest : field;
  const float unit = float_of(uint32_t(binade - kFraction + 127) << 23);
  const auto steps = uint32_t(std::nearbyint(magnitude / unit));  // of the unit: to nearest, ties to even
  return (uint32_t(binade - kLowest) << kFraction) + steps;       // a full binade carries into the next one
}

inline uint32_t to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  return (std::signbit(value) ? 0x80u : 0u) | to_code<3, -6>(value, 0x7e, 448.0f);
}
inline uint32_t to_e2m1(float value) {
  if (std::isnan(value)) return 7;
  return (std::signbit(value) ? 8u : 0u) | to_code<1, 0>(value, 7, 6.0f);
}

template <int kFraction, int kLowest>
float from_code(uint32_t code) {
  const uint32_t fraction = code & ((1u << kFraction) - 1), field = code >> kFraction;
  const uint32_t steps = field == 0 ? fraction : fraction | 1u << kFraction;
  const int binade = kLowest + (field == 0 ? 0 : int(field) - 1);
  return float(steps) * float_of(uint32_t(binade - kFraction + 127) << 23);
}

inline float from_e4m3(uint32_t code) {
  const float value =
      (code & 0x7fu) == 0x7fu ? std::numeric_limits<float>::quiet_NaN() : from_code<3, -6>(code & 0x7fu);
  return code & 0x80u ? -value : value;
}
inline float from_e2m1(uint32_t code) {
  const float value = from_code<1, 0>(code & 7u);
  return code & 8u ? -value : value;
}

// The smallest power of two from 2^-127 on that is not below amax / largest: its code.
inline uint32_t to_ue8m0(float amax, float largest) {
  const double wanted = double(amax) / double(largest);  // two factors of 24 bits: no quotient rounds to a power of two
  if (wanted <= 0x1p-127) return 0;
  int exponent;
  const double part = std::frexp(wanted, &exponent);  // from 0.5, below 1
  return uint32_t(exponent - (part == 0.5 ? 1 : 0) + 127);
}
inline float from_ue8m0(uint32_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return float_of(code == 0 ? 0x00400000u : code << 23);
}

}  // namespace qwen::cpu
