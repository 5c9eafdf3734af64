// group_codes.cuh: codes and scales of four heads in a warp, as four_heads.cuh shares them out. Formats are known when
// it is compiled. A group of 16 elements is two lanes, one of 64 eight; one of 128 is both halves of eight lanes.
#pragma once

#include "four_heads.cuh"
#include "quantized_rows.cuh"

// --8<-- [start:largest]
// The largest magnitudes of the groups that a lane has a part of: that of its elements
// below 64 in the lower 16 bits, and of those above. As integers; a NaN is above all.
__device__ __forceinline__ unsigned largest_bits(const StoredPart& head, int group_shift) {
  constexpr unsigned kSizes = 0x7fff7fffu;  // without signs
  unsigned low = head.pairs[0] & kSizes, high = head.pairs[kOfHalf / 2] & kSizes;
#pragma unroll
  for (int i = 1; i < kOfHalf / 2; ++i) {
    low = __vmaxu2(low, head.pairs[i] & kSizes);
    high = __vmaxu2(high, head.pairs[i + kOfHalf / 2] & kSizes);
  }
  const unsigned firsts = __byte_perm(low, high, 0x5410);
  unsigned largest = __vmaxu2(firsts, __byte_perm(low, high, 0x7632));
  largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  if (group_shift > 1) largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  if (group_shift > 2) largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, 4));
  if (group_shift > 3) largest = __vmaxu2(largest, __byte_perm(largest, 0, 0x1032));
  return largest;
}
// --8<-- [end:largest]

// a / b of many numbers a of 16 bits: a product with 1 / b, and what that is off, corrected. 1 / b may be off by a unit
// or two in the last place. The sign stands where it keeps -0. What is off must be no subnormal: b is 2^-64 or more.
// --8<-- [start:quotient]
__device__ __forceinline__ float quotient(float a, float b, float reciprocal) {
  const float near = a * reciprocal;
  return fmaf(fmaf(b, near, -a), -reciprocal, near);
}
// --8<-- [end:quotient]

// A group's scale, and how numbers come into its units.
template <class T, ValueFormat kValues, ScaleFormat kScales>
struct GroupUnit {
  static constexpr bool kE4M3 = kValues == ValueFormat::kE4M3;
  static constexpr float kLargest = kE4M3 ? kLargestE4M3 : kLargestE2M1;
  static constexpr bool kWide = std::is_same_v<T, __nv_bfloat16>;  // the exponents of fp32
  static constexpr bool kPacked = !kE4M3 && kWide;                 // to_e2m1x8
  static constexpr float kRaised = 0x1p64f;
  unsigned code;
  float value, reciprocal;
  bool tiny = false;

  __device__ __forceinline__ explicit GroupUnit(float amax) : value(1.0f) {
    const bool finite = __float_as_uint(amax) < kInfinityBits;
    if constexpr (kScales == ScaleFormat::kUE8M0) {
      code = finite ? to_ue8m0(__float_as_uint(amax), kE4M3) : 255;
      reciprocal = finite ? __uint_as_float((254u - code) << 23) : __uint_as_float(0x7fffffffu);
    } else {
      const float exact = quotient(amax, kLargest, 1.0f / kLargest);
      if constexpr (kScales == ScaleFormat::kE4M3) {
        code = finite ? max(to_e4m3x2(exact, 0.0f), 1u) : 0x7fu;
        value = from_e4m3(code);
      } else {
        value = finite ? fmaxf(exact, 0x1p-126f) : __uint_as_float(0x7fffffffu);
        code = __float_as_uint(value);
        tiny = kWide && value < 1 / kRaised;
        if (tiny) value *= kRaised;
      }
      reciprocal = __fdividef(1.0f, value);
    }
    if constexpr (kPacked) reciprocal *= 0x1p-14f;
  }

  __device__ __forceinline__ float in_units(float a) const {
    if constexpr (kPacked || kScales == ScaleFormat::kUE8M0) {
      return a * reciprocal;
    } else {
      return quotient(a, value, reciprocal);
    }
  }
  // Of eight neighbours, from pair `first` on.
  __device__ __forceinline__ uint2 codes_of(const StoredPart& stored, int first) const {
    float eight[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = floats_of<T>(stored.pairs[first + i]);
      eight[2 * i] = both.x, eight[2 * i + 1] = both.y;
    }
    if (tiny) {
#pragma unroll
      for (float& number : eight) number *= kRaised;
    }
#pragma unroll
    for (float& number : eight) number = in_units(number);
    const float four[2][4] = {{eight[0], eight[1], eight[2], eight[3]}, {eight[4], eight[5], eight[6], eight[7]}};
    if constexpr (kPacked) {
      return {to_e2m1x8(eight), 0};
    } else if constexpr (kE4M3) {
      return {to_e4m3x4(four[0]), to_e4m3x4(four[1])};
    } else {
      return {uint32_t(to_e2m1x4(four[1])) << 16 | to_e2m1x4(four[0]), 0};
    }
  }
};

// A lane's codes of a head, and the units of the two groups that it has a part of. `lost` is NaN, twice, for a head
// that reads as NaN. All lanes of a warp make one.
template <class T, ValueFormat kValues, ScaleFormat kScales>
struct GroupCodes {
  static constexpr bool kE4M3 = kValues == ValueFormat::kE4M3;
  using Unit = GroupUnit<T, kValues, kScales>;
  using Codes = std::conditional_t<kE4M3, uint2, uint32_t>;
  using Scale = std::conditional_t<kScales == ScaleFormat::kFloat32, uint32_t, uint8_t>;
  int group_shift;
  Unit low, high;
  uint2 codes[2];

  __device__ __forceinline__ GroupCodes(const StoredPart& stored, unsigned lost, int any_group_shift)
      : GroupCodes(
            stored, shift_of(any_group_shift), floats_of<T>(largest_bits(stored, shift_of(any_group_shift)) | lost)) {}

  // The scales of a lane's two groups by two lanes.
  __device__ __forceinline__ void store(uint8_t* to_data, uint8_t* to_scales, unsigned part) const {
    Codes* data = reinterpret_cast<Codes*>(to_data) + part;
    data[0] = reinterpret_cast<const Codes&>(codes[0]);
    data[kLanesOfHead] = reinterpret_cast<const Codes&>(codes[1]);
    const unsigned in_group = part & ((1u << group_shift) - 1);
    if (in_group > (group_shift < 4 ? 1u : 0u)) return;
    const unsigned group = (part + kLanesOfHead * in_group) >> group_shift, code = in_group ? high.code : low.code;
    reinterpret_cast<Scale*>(to_scales)[group] = Scale(code);
  }

 private:
  static __device__ __forceinline__ int shift_of(int any) {
    return kE4M3 ? any : kScales == ScaleFormat::kE4M3 ? 1 : 2;
  }
  __device__ __forceinline__ GroupCodes(const StoredPart& stored, int shift, const float2& amax)
      : group_shift(shift),
        low(amax.x),
        high(amax.y),
        codes{low.codes_of(stored, 0), high.codes_of(stored, kOfHalf / 2)} {}
};

// Where a head's codes and scales go, in bytes from the first of a cache.
struct RowPlace {
  uint64_t data, scales;
  bool there;  // the head is to be stored
};

// Stores a head: its codes, and the scales of its groups.
template <class T, ValueFormat kValues, ScaleFormat kScales>
__device__ __forceinline__ void store_groups(const StoredPart& stored,
                                             unsigned lost,
                                             int any_group_shift,
                                             const qwen::QuantizedRows& rows,
                                             const RowPlace& to,
                                             unsigned part) {
  const GroupCodes<T, kValues, kScales> codes(stored, lost, any_group_shift);
  if (to.there) codes.store(rows.data + to.data, rows.scales + to.scales, part);
}
