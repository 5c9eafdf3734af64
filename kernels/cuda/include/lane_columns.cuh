// lane_columns.cuh: a warp and a segment of a row, 256 neighbouring columns. A lane has 8 of them: of 16-bit numbers
// one load of 16 bytes, and the warp's is 512 bytes in a line.
#pragma once

#include "vector_load.cuh"
#include "warp_reduce.cuh"

constexpr int kLaneColumns = 8;
constexpr int kSegmentColumns = kWarpSize * kLaneColumns;

// Zero, which the compiler does not know, as soon as `loaded` is there. Loads whose address it is part of are issued
// after the wait for `loaded`. Otherwise nvcc may let both share a counter of loads on their way; the wait for the
// first is then one for the second too, and nothing is in flight while a warp works.
__device__ __forceinline__ unsigned after(unsigned loaded) {
  return loaded & (gridDim.z - 1);
}

// A lane's columns as they lie in memory: a conversion waits for its load, a load waits for nothing.
// --8<-- [start:lane_columns]
template <class T>
struct LaneColumns {
  static constexpr int kWordNumbers = Pack<T>::kSize;
  static constexpr int kWords = kLaneColumns / kWordNumbers;  // of 16 bytes
  uint4 words[kWords];

  // Of the numbers from `from` on `left` exist, the others are zeros: all exist where they are aligned. kOnce: nobody
  // reads them again soon.
  template <bool kAligned, bool kOnce>
  __device__ __forceinline__ void load(const T* from, int left) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const T* word = from + w * kWordNumbers;
      if constexpr (!kAligned) {
        const Pack<T> pack = load_elements(word, left - w * kWordNumbers);
        words[w] = *reinterpret_cast<const uint4*>(&pack);
      } else {
        words[w] = kOnce ? load_once(word) : *reinterpret_cast<const uint4*>(word);
      }
    }
  }

  __device__ __forceinline__ float number(int i) const {
    return number_of<T>(words[i / kWordNumbers], i % kWordNumbers);
  }
};
// --8<-- [end:lane_columns]

// What a lane multiplies weights by: its columns of x, in fp32, times the gain of the norm where there is one.
struct LaneInput {
  float values[kLaneColumns];

  // Returns the sum of the squares of x, without the gain, for the norm; else 0.
  template <bool kNorm, class X, class W>
  __device__ __forceinline__ float set(const LaneColumns<X>& x, const LaneColumns<W>& gain) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const float value = x.number(i);
      if constexpr (kNorm) squares = fmaf(value, value, squares);
      values[i] = kNorm ? __fmul_rn(value, gain.number(i)) : value;  // rounded, whatever it is cut into
    }
    return squares;
  }

  // Explicit fused multiply-adds: the same bits in every kernel.
  template <class W>
  __device__ __forceinline__ float dot(const LaneColumns<W>& weights) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sum = fmaf(weights.number(i), values[i], sum);
    return sum;
  }
};
