// warp_reduce.cuh: sums over the 32 lanes of a warp, in registers.
#pragma once

#include "cuda_platform.cuh"

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

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
