// query_tiles.cuh: fp32 numbers as halves, and the queries of a group as Tensor Cores meet them with a quantised cache.
#pragma once

#include "head_transform.cuh"
#include "paged_attention.cuh"
#include "quantized_pages.cuh"

// 2^n for a whole number n from -126 to 127.
__device__ __forceinline__ float power_of_two(int n) {
  return __uint_as_float(unsigned(n + 127) << 23);
}
// The whole part of log2 of a magnitude: -127 for zero and subnormals.
__device__ __forceinline__ int exponent_of(float magnitude) {
  return int(__float_as_uint(magnitude) >> 23) - 127;
}
constexpr int kLeastExponent = -126, kLargestExponent = 126;  // whose power and its inverse are normal numbers
__device__ __forceinline__ int limited(int exponent) {
  return min(max(exponent, kLeastExponent), kLargestExponent);
}

// Two numbers as halves and what the halves leave, which is two halves as well.
// --8<-- [start:split]
struct SplitPair {
  uint32_t high, low;

  SplitPair() = default;
  __device__ __forceinline__ SplitPair(float x, float y) {
    const __half2 near = __floats2half2_rn(x, y);
    const float2 lost = {x - __low2float(near), y - __high2float(near)};
    const __half2 rest = __floats2half2_rn(lost.x, lost.y);
    high = *reinterpret_cast<const uint32_t*>(&near);
    low = *reinterpret_cast<const uint32_t*>(&rest);
  }
};
// --8<-- [end:split]

// The group's queries as columns of b, for all warps of the block.
template <int kGroup, ValueFormat kValues>
struct QueryTiles {
  static constexpr int kTiles = (kGroup + 1) / 2, kSteps = 8, kZeros = 8;
  using Codes = CodeWords<kValues>;
  // Of a column's own 32 rows: four numbers a step, high and low. One column more has zeros.
  alignas(16) __half2 columns[kTiles][kSteps][kZeros + 1][4];
  float unit[2 * kTiles];  // what scores are in

  // Warp w has head w. A head beyond `group` is 0: it is computed like the others, and not written.
  // --8<-- [start:queries]
  template <class T>
  __device__ __forceinline__ void set(const T* from, int group, float scale, float hadamard_scale, int warp, int lane) {
    set_zeros();
    if (warp >= 2 * kTiles) return;
    float q[kOfLane] = {};
    if (warp < group) {
      const auto loaded = load_chunk<true, kOfLane>(from + warp * kChunk + kOfLane * lane);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) q[i] = to_float(loaded.values[i]) * (scale * kLog2OfE);
    }
    put(warp, q, hadamard_scale, lane);
  }
  // A head by its warp: lane l has numbers 4 l to 4 l + 3.
  __device__ __forceinline__ void put(int head, float (&q)[kOfLane], float hadamard_scale, int lane) {
    if (hadamard_scale != 0.0f) hadamard<kWarpSize>(q, hadamard_scale, lane);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) largest = fmaxf(largest, fabsf(q[i]));
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    const float raised = power_of_two(set_unit(head, largest, lane == 0));
    const int column = lane / 8 * 2 + head % 2;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int number = lane % 8 * kOfLane + i, code = Codes::code_of(number);
      const SplitPair split(q[i] * raised, 0.0f);
      auto* to = reinterpret_cast<__half*>(columns[head / 2][Codes::word_of(number)][column]);
      to[code] = reinterpret_cast<const __half&>(split.high);
      to[code + 4] = reinterpret_cast<const __half&>(split.low);
    }
  }
  // --8<-- [end:queries]
  __device__ __forceinline__ void set_zeros() {
    static_assert(kTiles * kSteps * 4 <= kAttentionThreads, "one for each thread");
    const unsigned i = threadIdx.x;
    if (i >= kTiles * kSteps * 4) return;
    columns[i / (4 * kSteps)][i / 4 % kSteps][kZeros][i % 4] = __floats2half2_rn(0.0f, 0.0f);
  }
  // The unit of a head with this largest magnitude, by one of its lanes. Returns by how many powers its numbers go up.
  __device__ __forceinline__ int set_unit(int head, float largest, bool mine) {
    const int up = limited(10 - exponent_of(largest));  // to between 2^10 and 2^11
    if (mine) unit[head] = power_of_two(-up) * Codes::kUnit;
    return up;
  }
};
