// four_heads.cuh: norm, rotation and Hadamard transform of four heads of 128 in a warp: eight lanes have a head. Lane
// part p has the elements 8 p + i and 64 + 8 p + i, i < 8: two loads of 16 bytes. The partner of a rotation, bit 6 of
// an index, is in the same lane, and so are bits 0 to 2; bits 3 to 5 are three shuffles. The bits of
// head_transform.cuh.
#pragma once

#include "cache_slot.cuh"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

constexpr int kHeadsOfWarp = 4, kLanesOfHead = kWarpSize / kHeadsOfWarp, kOfHalf = kHalf / kLanesOfHead;

// Two neighbours of 16 bits, the first in the lower half.
template <class T>
__device__ __forceinline__ float2 floats_of(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    const __half2 both = *reinterpret_cast<const __half2*>(&pair);
    return {__low2float(both), __high2float(both)};
  }
}

// What a lane has of a head as it is stored: pairs of those below 64, then of those above.
struct StoredPart {
  uint32_t pairs[kOfHalf];

  __device__ __forceinline__ static StoredPart load_once(const void* head, int part) {
    const uint4* from = static_cast<const uint4*>(head) + part;
    return of(::load_once(from), ::load_once(from + kLanesOfHead));
  }
  __device__ __forceinline__ static StoredPart load(const void* head, int part) {
    const uint4* from = static_cast<const uint4*>(head) + part;
    return of(from[0], from[kLanesOfHead]);
  }
  __device__ __forceinline__ static StoredPart of(const uint4& low, const uint4& high) {
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  __device__ __forceinline__ void store(void* head, int part) const {
    uint4* to = static_cast<uint4*>(head) + part;
    to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    to[kLanesOfHead] = {pairs[4], pairs[5], pairs[6], pairs[7]};
  }
};

struct HeadPart {
  float values[2 * kOfHalf];  // those below 64, then those above

  template <class T>
  __device__ __forceinline__ static HeadPart of(const StoredPart& stored) {
    HeadPart part;
#pragma unroll
    for (int i = 0; i < kOfHalf; ++i) {
      const float2 both = floats_of<T>(stored.pairs[i]);
      part.values[2 * i] = both.x, part.values[2 * i + 1] = both.y;
    }
    return part;
  }
  template <class T>
  __device__ __forceinline__ StoredPart rounded() const {
    StoredPart stored;
#pragma unroll
    for (int i = 0; i < kOfHalf; ++i) {
      const T both[2] = {from_float<T>(values[2 * i]), from_float<T>(values[2 * i + 1])};
      stored.pairs[i] = *reinterpret_cast<const uint32_t*>(both);
    }
    return stored;
  }
};

__device__ __forceinline__ float square_sum(const HeadPart& head) {
  float sums[kOfHalf];
#pragma unroll
  for (int i = 0; i < kOfHalf; ++i) {
    const float low = head.values[i], high = head.values[i + kOfHalf];
    sums[i] = fmaf(low, low, high * high);
  }
#pragma unroll
  for (int n = kOfHalf / 2; n > 0; n /= 2) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
#pragma unroll
  for (int distance = 1; distance < kLanesOfHead; distance *= 2) {
    sums[0] += __shfl_xor_sync(kAllLanes, sums[0], distance);
  }
  return sums[0];
}

__device__ __forceinline__ void normalize(HeadPart& head, const HeadPart& weight, float eps) {
  const float scale = 1.0f / sqrtf(square_sum(head) / kHeadDim + eps);
#pragma unroll
  for (int i = 0; i < 2 * kOfHalf; ++i) head.values[i] = head.values[i] * scale * weight.values[i];
}

struct PartAngles {
  Pack<float> cosine[2], sine[2];
};
// `row` has 64 cosines, then as many sines.
__device__ __forceinline__ PartAngles load_part_angles(const char* row, int part) {
  const float* from = reinterpret_cast<const float*>(row) + kOfHalf * part;
  return {{load_pack(from), load_pack(from + 4)}, {load_pack(from + kHalf), load_pack(from + kHalf + 4)}};
}

__device__ __forceinline__ void rotate(HeadPart& head, const PartAngles& angles) {
#pragma unroll
  for (int i = 0; i < kOfHalf; ++i) {
    const float cosine = angles.cosine[i / 4].values[i % 4], sine = angles.sine[i / 4].values[i % 4];
    const float u = head.values[i], v = head.values[i + kOfHalf];
    head.values[i] = fmaf(u, cosine, v * -sine);
    head.values[i + kOfHalf] = fmaf(v, cosine, u * sine);
  }
}

// --8<-- [start:hadamard]
template <int kDistance>
__device__ __forceinline__ void butterfly(HeadPart& head) {
#pragma unroll
  for (int i = 0; i < 2 * kOfHalf; ++i) {
    if (i & kDistance) continue;
    const float u = head.values[i], w = head.values[i + kDistance];
    head.values[i] = u + w;
    head.values[i + kDistance] = u - w;
  }
}

// Sylvester's matrix times scale: bits 0 to 2, 3 to 5, 6.
__device__ __forceinline__ void hadamard(HeadPart& head, float scale, int lane) {
  butterfly<1>(head), butterfly<2>(head), butterfly<4>(head);
#pragma unroll
  for (int distance = 1; distance < kLanesOfHead; distance *= 2) {
    // Times that, one instruction adds or subtracts.
    const float sign = lane & distance ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 2 * kOfHalf; ++i) {
      const float value = head.values[i];
      head.values[i] = fmaf(value, sign, __shfl_xor_sync(kAllLanes, value, distance));
    }
  }
  butterfly<kOfHalf>(head);
#pragma unroll
  for (int i = 0; i < 2 * kOfHalf; ++i) head.values[i] *= scale;
}
// --8<-- [end:hadamard]
