// head_transform.cuh: norm, rotation and Hadamard transform of a head that a warp holds: of each 128 elements, a chunk,
// lane l has the four from 4 l on. All in fp32; nothing is rounded to another format.
#pragma once

#include "cache_slot.cuh"
#include "chunk_load.cuh"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

constexpr int kChunk = 128, kOfLane = kChunk / kWarpSize;

template <int kChunks>
struct HeadValues {
  float values[kChunks][kOfLane];

  template <class F>
  __device__ __forceinline__ void for_each(F f) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) f(values[c][i]);
    }
  }
};

// The squares of a chunk's pairs (r, r + 64) are added in a binary tree over r, as qk_norm_rope_cache_write does, and
// then those of the chunks.
// --8<-- [start:sum]
template <int kChunks>
__device__ __forceinline__ float square_sum(const HeadValues<kChunks>& head, int lane) {
  float sums[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    float pairs[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float mine = head.values[c][i], other = __shfl_xor_sync(kAllLanes, mine, kWarpSize / 2);
      const float low = lane < kWarpSize / 2 ? mine : other, high = lane < kWarpSize / 2 ? other : mine;
      pairs[i] = fmaf(low, low, high * high);
    }
    sums[c] = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
#pragma unroll
    for (int distance = 1; distance < kWarpSize / 2; distance *= 2) {
      sums[c] += __shfl_xor_sync(kAllLanes, sums[c], distance);
    }
  }
#pragma unroll
  for (int n = kChunks; n > 1; n /= 2) {
#pragma unroll
    for (int c = 0; c < n / 2; ++c) sums[c] = sums[2 * c] + sums[2 * c + 1];
  }
  return sums[0];
}
// --8<-- [end:sum]

// What a lane has of a norm's weight, as it lies in memory: nobody waits for it before its numbers are needed.
template <class T, int kChunks>
struct NormWeight {
  using Word = typename WordOf<kOfLane* int(sizeof(T))>::Type;
  Word words[kChunks];

  __device__ __forceinline__ static NormWeight load(const void* weight, int lane) {
    NormWeight loaded;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      loaded.words[c] = static_cast<const Word*>(weight)[c * kWarpSize + lane];
    }
    return loaded;
  }
  __device__ __forceinline__ float number(int c, int i) const {
    if constexpr (sizeof(T) == 2)
      return number_of<T>(make_uint4(words[c].x, words[c].y, 0, 0), i);
    else
      return number_of<T>(words[c], i);
  }
};

template <class T, int kChunks>
__device__ __forceinline__ void normalize(HeadValues<kChunks>& head,
                                          const NormWeight<T, kChunks>& weight,
                                          float eps,
                                          int lane) {
  const float scale = 1.0f / sqrtf(square_sum(head, lane) / (kChunk * kChunks) + eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      head.values[c][i] = head.values[c][i] * scale * weight.number(c, i);
    }
  }
}

// Of each element of a lane that is rotated: cosine, and sine with the sign that its product has. A pair (u, v) becomes
// (u c - v s, v c + u s).
// --8<-- [start:rotate]
template <int kChunks>
struct Angles {
  Chunk<float, kOfLane> cosine[kChunks], sine[kChunks];
};

// `row` has rotary_dim / 2 cosines, then as many sines.
template <int kChunks>
__device__ __forceinline__ Angles<kChunks> load_angles(
    const float* row, int rotary_dim, bool interleaved, bool conjugate, int lane) {
  const int offset = kChunk * kChunks - rotary_dim, half = rotary_dim / 2;
  Angles<kChunks> angles = {};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int turned = c * kChunk + kOfLane * lane - offset;
    if (turned < 0) continue;
    if (interleaved) {
      const auto cosines = load_chunk<true, kOfLane / 2>(row + turned / 2);
      const auto sines = load_chunk<true, kOfLane / 2>(row + half + turned / 2);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        angles.cosine[c].values[i] = cosines.values[i / 2];
        angles.sine[c].values[i] = sines.values[i / 2];
      }
    } else {
      const int angle = turned < half ? turned : turned - half;
      angles.cosine[c] = load_chunk<true, kOfLane>(row + angle);
      angles.sine[c] = load_chunk<true, kOfLane>(row + half + angle);
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const bool first = interleaved ? i % 2 == 0 : turned < half;  // of its pair
      if (first != conjugate) angles.sine[c].values[i] = -angles.sine[c].values[i];
    }
  }
  return angles;
}

// The last rotary_dim elements are turned. `exchange` is the warp's own, as long as the head: an element meets its
// partner there, whichever lane has it.
template <int kChunks>
__device__ __forceinline__ void rotate(HeadValues<kChunks>& head,
                                       const Angles<kChunks>& angles,
                                       int rotary_dim,
                                       bool interleaved,
                                       float* exchange,
                                       int lane) {
  const int offset = kChunk * kChunks - rotary_dim, half = rotary_dim / 2;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    Chunk<float, kOfLane> mine;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) mine.values[i] = head.values[c][i];
    store_chunk<true>(exchange + c * kChunk + kOfLane * lane, mine);
  }
  __syncwarp();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int place = c * kChunk + kOfLane * lane, turned = place - offset;
    if (turned < 0) continue;
    const int other = interleaved ? place : turned < half ? place + half : place - half;
    const auto partners = load_chunk<true, kOfLane>(exchange + other);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float partner = interleaved ? partners.values[i ^ 1] : partners.values[i];
      head.values[c][i] = fmaf(head.values[c][i], angles.cosine[c].values[i], partner * angles.sine[c].values[i]);
    }
  }
}
// --8<-- [end:rotate]

// Sylvester's matrix times scale, of the elements that kLanes neighbouring lanes hold, kSize each. Stage b adds and
// subtracts elements that differ in bit b of their index: the first stages within a lane, the others among the lanes.
// --8<-- [start:hadamard]
template <int kLanes, int kSize>
__device__ __forceinline__ void hadamard(float (&v)[kSize], float scale, int lane) {
#pragma unroll
  for (int bit = 1; bit < kSize; bit *= 2) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (i & bit) continue;
      const float u = v[i], w = v[i + bit];
      v[i] = u + w;
      v[i + bit] = u - w;
    }
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, v[i], distance);
      v[i] = lane & distance ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) v[i] *= scale;
}

// That of each chunk.
template <int kChunks>
__device__ __forceinline__ void hadamard(HeadValues<kChunks>& head, float scale, int lane) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) hadamard<kWarpSize>(head.values[c], scale, lane);
}
// --8<-- [end:hadamard]
