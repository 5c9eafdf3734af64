// lane_columns.cuh: a warp and a row of numbers. The row is cut into chunks of 1024 columns; of each, a lane holds four
// packs of 8 neighbouring columns, 256 columns apart: a warp's load of a row of 16-bit numbers is 512 bytes in a line.
#pragma once

#include "vector_load.cuh"
#include "warp_reduce.cuh"

constexpr int kPackColumns = 8;
constexpr int kLanePacks = 4;
constexpr int kChunkColumns = kLanePacks * kWarpSize * kPackColumns;

// The first column of a lane's pack j.
__device__ __forceinline__ int lane_column(int chunk, int j, int lane) {
  return chunk * kChunkColumns + (j * kWarpSize + lane) * kPackColumns;
}

// Number i of 16 bytes, as `element`. A bf16 is the upper half of an fp32: taken by a shift or a mask, two numbers stay
// in one register until they are needed, where the conversion of one splits the pair as soon as it is loaded.
template <class T>
__device__ __forceinline__ float number_of(const uint4& raw, int i) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const unsigned pair = i < 2 ? raw.x : i < 4 ? raw.y : i < 6 ? raw.z : raw.w;
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  } else {
    return element<T>(raw, i);
  }
}

// What a lane holds of a chunk, as it lies in memory: a conversion waits for its load, a load waits for nothing.
// --8<-- [start:lane_columns]
template <class T>
struct LaneColumns {
  static constexpr int kWordNumbers = Pack<T>::kSize;
  static constexpr int kWords = kPackColumns / kWordNumbers;  // of 16 bytes
  uint4 words[kLanePacks][kWords];

  // Columns from `size` on are zeros, and so is a row that is not `present`. kOnce: nobody reads them again soon.
  template <bool kAligned, bool kOnce>
  __device__ __forceinline__ void load(const T* row, int chunk, int size, int lane, bool present = true) {
#pragma unroll
    for (int j = 0; j < kLanePacks; ++j) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const int column = lane_column(chunk, j, lane) + w * kWordNumbers;
        words[j][w] = make_uint4(0, 0, 0, 0);
        if (!present || column >= size) continue;
        if constexpr (!kAligned) {
          const Pack<T> pack = load_elements(row + column, size - column);
          words[j][w] = *reinterpret_cast<const uint4*>(&pack);
        } else if constexpr (kOnce) {
          words[j][w] = load_once(row + column);
        } else {
          words[j][w] = *reinterpret_cast<const uint4*>(row + column);
        }
      }
    }
  }

  __device__ __forceinline__ float number(int j, int i) const {
    return number_of<T>(words[j][i / kWordNumbers], i % kWordNumbers);
  }
};
// --8<-- [end:lane_columns]

// What a lane multiplies weights by: its columns of x, in fp32, times the gain of the norm where there is one.
struct LaneInput {
  float values[kLanePacks][kPackColumns];

  // Returns the sum of the squares of x, without the gain, for the norm; else 0.
  template <bool kNorm, class X, class W>
  __device__ __forceinline__ float set(const LaneColumns<X>& x, const LaneColumns<W>& gain) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kLanePacks; ++j) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kPackColumns; ++i) {
        const float value = x.number(j, i);
        if constexpr (kNorm) sum = fmaf(value, value, sum);
        values[j][i] = kNorm ? value * gain.number(j, i) : value;
      }
      squares += sum;
    }
    return squares;
  }

  // The products with one pack of weights, summed. Explicit fused multiply-adds: the same bits in every kernel.
  template <class W>
  __device__ __forceinline__ float dot(const LaneColumns<W>& weights, int j) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPackColumns; ++i) sum = fmaf(weights.number(j, i), values[j][i], sum);
    return sum;
  }
};
