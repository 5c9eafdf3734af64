// warp_reduce.cuh: sums over the 32 lanes of a warp, in registers, and what else its lanes do together.
#pragma once

#include "cuda_platform.cuh"

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The same value, known from here on. The shuffle moves nothing, but the compiler may not put off what comes before it:
// a load is asked for, an address is computed, before the wait that follows. All lanes of the warp call it.
__device__ __forceinline__ int settled(int value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}

// Every lane gets the sum. In step d, lane l adds the value of lane l ^ d: after 16, 8, 4, 2, 1 each holds all 32. All
// lanes add the same pairs, so all hold the same bits.
// --8<-- [start:warp_sum]
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
// --8<-- [end:warp_sum]

// The sums of kCount values (a power of two, 32 at most) with fewer shuffles: in each of the first steps a lane gives
// away half of its values and adds what it gets to the others. Lane l returns the sum of values[l * kCount / 32], to
// the bits of warp_sum.
// --8<-- [start:warp_sums]
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&values)[kCount], int lane) {
  static_assert(kWarpSize % kCount == 0, "a power of two, 32 at most");
#pragma unroll
  for (int step = 2; step <= kCount; step *= 2) {
    const int distance = kWarpSize / step, half = kCount / step;
    const bool upper = lane & distance;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= half) break;
      const float given = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(kAllLanes, given, distance);
    }
  }
#pragma unroll
  for (int distance = kWarpSize / kCount / 2; distance > 0; distance /= 2) {
    values[0] += __shfl_xor_sync(kAllLanes, values[0], distance);
  }
  return values[0];
}
// --8<-- [end:warp_sums]
