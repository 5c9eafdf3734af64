// head_weights.cuh: the weight of an output head as int8 with scales, or as bf16 or fp16: how a lane loads 16 bytes of
// a row, and what they stand for.
#pragma once

#include "lane_columns.cuh"
#include "operators.h"

// --8<-- [start:convert]
// The four bytes of a word as floats. With its sign bit flipped a byte q is u = q + 128. One byte permutation makes the
// fp32 number 2^23 + u, whose last bits are u, and what is subtracted leaves q. All of these are integers that fp32
// has: exact for every byte, in 2.25 instructions, where four conversions from int cost the slower unit one each.
__device__ __forceinline__ void bytes_to_floats(unsigned word, float (&q)[4]) {
  const unsigned biased = word ^ 0x80808080u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 + i)) - 8388736.0f;  // 2^23 + 128
  }
}
// --8<-- [end:convert]

// Word j of 16 bytes.
__device__ __forceinline__ unsigned word_of(const uint4& raw, int j) {
  return j == 0 ? raw.x : j == 1 ? raw.y : j == 2 ? raw.z : raw.w;
}

// A weight has
//   kColumns      columns of a row in the 16 bytes of a lane
//   kSteps        such pieces of a row that a lane has in flight, where x has one row; kBlocks: blocks on an SM then
//   Loaded        what a lane loads: those bytes, and what they are to be multiplied with
//   Place         where the columns of a lane are in one row
//   place         that of columns `column` … of a row; aligned, a column beyond the end stands for the last ones
//   load          those columns, r rows further on
//   columns_of    four of them as floats: 4 j, 4 j + 1, …
//   added         sum + dot, where dot is the product of the lane's columns with those of x
struct Int8Weight {
  static constexpr int kColumns = 16, kSteps = 2, kBlocks = 3;
  struct Loaded {
    uint4 raw;
    float scale;
  };
  struct Place {
    const int8_t* values;
    const float* scale;
    int left;  // columns from here to the end of the row
  };
  const int8_t* values;
  const float* scales;
  int64_t rows;
  int k, groups, shift;  // groups of a row; a group has 2^shift columns where there are several

  explicit Int8Weight(const qwen::W8Weight& w, int64_t columns)
      : values(w.qweight), scales(w.scales), rows(w.n), k(int(columns)), groups(int(columns / w.group)), shift(0) {
    while (int64_t(1) << shift < w.group) ++shift;
  }
  bool aligned() const { return k % kColumns == 0 && rows_are_aligned(values, 0); }

  template <bool kAligned>
  __device__ __forceinline__ Place place(int64_t row, int column) const {
    const unsigned c = min(column, k - (kAligned ? kColumns : 1));
    return {values + row * k + c, scales + row * groups + (groups == 1 ? 0 : c >> shift), k - column};
  }
  template <bool kAligned>
  __device__ __forceinline__ Loaded load(const Place& at, unsigned r) const {
    const int8_t* from = at.values + r * unsigned(k);
    Loaded loaded;
    if constexpr (kAligned) {
      loaded.raw = load_once(from);
    } else {
      unsigned words[4] = {};
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < at.left) words[i / 4] |= unsigned(uint8_t(from[i])) << 8 * (i % 4);
      }
      loaded.raw = make_uint4(words[0], words[1], words[2], words[3]);
    }
    loaded.scale = at.scale[r * unsigned(groups)];
    return loaded;
  }
  __device__ __forceinline__ static void columns_of(const Loaded& loaded, int j, float (&q)[4]) {
    bytes_to_floats(word_of(loaded.raw, j), q);
  }
  __device__ __forceinline__ static float added(float sum, float dot, const Loaded& loaded) {
    return fmaf(dot, loaded.scale, sum);
  }
};

template <class T>
struct FloatWeight {
  static constexpr int kColumns = 8, kSteps = 4, kBlocks = 2;
  struct Loaded {
    uint4 raw;
  };
  struct Place {
    const T* values;
    int left;
  };
  const T* values;
  int64_t rows;
  int k;

  bool aligned() const { return k % kColumns == 0 && rows_are_aligned(values, 0); }

  template <bool kAligned>
  __device__ __forceinline__ Place place(int64_t row, int column) const {
    return {values + row * k + min(column, k - (kAligned ? kColumns : 1)), k - column};
  }
  template <bool kAligned>
  __device__ __forceinline__ Loaded load(const Place& at, unsigned r) const {
    const T* from = at.values + r * unsigned(k);
    if constexpr (kAligned) {
      return {load_once(from)};
    } else {
      const Pack<T> pack = load_elements(from, at.left);
      return {*reinterpret_cast<const uint4*>(&pack)};
    }
  }
  __device__ __forceinline__ static void columns_of(const Loaded& loaded, int j, float (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = number_of<T>(loaded.raw, 4 * j + i);
  }
  __device__ __forceinline__ static float added(float sum, float dot, const Loaded&) { return sum + dot; }
};
