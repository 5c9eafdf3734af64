// new_token.cuh: the heads of one new token that a KV head's block needs: Q of its group, K and V, normed and rotated
// in registers, by every warp for itself.
//
// Lanes     Eight lanes take a head, so that a warp takes four heads at once: kPasses times for kGroup + 2 heads. As in
//           qk_norm_rope_cache_write.cu lane l of a head owns the pairs (8 l + p, 64 + 8 l + p). The attention's lanes
//           then fetch by shuffles what they need: no shared memory, no barrier.
// Contract  The bits of qk_norm_rope_cache_write: the same operations in the same order, one rounding.
#pragma once

#include "cache_slot.cuh"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

// K and V of one head of it, where its block's attention finds them.
template <class T>
struct NewHead {
  alignas(16) T k[kHeadDim], v[kHeadDim];
  int64_t slot;  // where they belong; -1: nowhere

  // Into the cache, by a warp: half of it has K, half V.
  __device__ __forceinline__ void store(const qwen::QkNormRopeCacheWrite& a, int kv_head, int lane) const {
    if (slot < 0) return;
    static_assert(sizeof k == kWarpSize / 2 * sizeof(uint4), "a lane has a pack");
    const bool is_key = lane < kWarpSize / 2;
    const int first = lane % (kWarpSize / 2) * Pack<T>::kSize;
    T* to = static_cast<T*>(is_key ? a.k_cache : a.v_cache) + (slot * a.num_kv_heads + kv_head) * kHeadDim;
    *reinterpret_cast<uint4*>(to + first) = *reinterpret_cast<const uint4*>((is_key ? k : v) + first);
  }
};

template <class T, class Lanes>
struct NewToken {
  static constexpr int kHeads = Lanes::kGroup + 2, kKey = Lanes::kGroup, kValue = kKey + 1;
  static constexpr int kLanes = 8, kPairs = kHalf / kLanes, kPerPass = kWarpSize / kLanes;
  static constexpr int kPasses = (kHeads + kPerPass - 1) / kPerPass;

  uint4 low[kPasses], high[kPasses];                // of this lane's head in each pass
  uint4 low_weight[kPasses], high_weight[kPasses];  // of its norm
  float4 cosine[2], sine[2];
  int from[kPasses];  // where the head begins in its row of qkv, plus the lane's first number; -1: nowhere

  static __device__ __forceinline__ int head_of(int pass, int lane) { return pass * kPerPass + lane / kLanes; }

  // What does not depend on the kernels ahead: weights, and the row of cos_sin.
  __device__ __forceinline__ void load_constants(const qwen::QkNormRopeCacheWrite& a, int of_cos_sin, int lane) {
    const int first = lane % kLanes * kPairs;
    const auto* row = reinterpret_cast<const float4*>(a.cos_sin + of_cos_sin * a.cos_sin_stride + first);
#pragma unroll
    for (int i = 0; i < 2; ++i) cosine[i] = row[i], sine[i] = row[kHalf / 4 + i];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto* weight = static_cast<const T*>(head_of(pass, lane) < kKey ? a.q_weight : a.k_weight) + first;
      low_weight[pass] = *reinterpret_cast<const uint4*>(weight);
      high_weight[pass] = *reinterpret_cast<const uint4*>(weight + kHalf);
    }
  }

  // Where the heads will be; `group` of kGroup query heads exist. Settled: before the kernel ahead has ended.
  __device__ __forceinline__ void look_up(const qwen::QkNormRopeCacheWrite& a, int kv_head, int group, int lane) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int head = head_of(pass, lane);
      const int at = head < kKey    ? kv_head * group + head
                     : head == kKey ? a.num_heads + kv_head
                                    : a.num_heads + a.num_kv_heads + kv_head;
      const bool exists = head < group || (kKey <= head && head < kHeads);
      from[pass] = settled(exists ? at * kHeadDim + lane % kLanes * kPairs : -1, lane);
    }
  }
  // The heads as they come. Those that do not exist are 0.
  __device__ __forceinline__ void load(const T* row) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      low[pass] = high[pass] = make_uint4(0, 0, 0, 0);
      if (from[pass] < 0) continue;
      low[pass] = *reinterpret_cast<const uint4*>(row + from[pass]);
      high[pass] = *reinterpret_cast<const uint4*>(row + from[pass] + kHalf);
    }
  }

  // --8<-- [start:turn]
  __device__ __forceinline__ void norm_and_turn(float eps, bool known, int lane) {
    const float* c = reinterpret_cast<const float*>(cosine);
    const float* s = reinterpret_cast<const float*>(sine);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float sums[kPairs];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float u = element<T>(low[pass], p), v = element<T>(high[pass], p);
        sums[p] = fmaf(u, u, v * v);
      }
#pragma unroll
      for (int n = kPairs; n > 1; n /= 2) {
#pragma unroll
        for (int p = 0; p < n / 2; ++p) sums[p] = sums[2 * p] + sums[2 * p + 1];
      }
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) {
        sums[0] += __shfl_xor_sync(kAllLanes, sums[0], distance);
      }
      if (head_of(pass, lane) >= kValue) continue;  // V is copied
      const float scale = known ? 1.0f / sqrtf(sums[0] / kHeadDim + eps) : not_a_number();
      Pack<T> low_out, high_out;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float u = element<T>(low[pass], p) * scale * element<T>(low_weight[pass], p);
        const float v = element<T>(high[pass], p) * scale * element<T>(high_weight[pass], p);
        low_out.values[p] = from_float<T>(fmaf(u, c[p], -(v * s[p])));
        high_out.values[p] = from_float<T>(fmaf(v, c[p], u * s[p]));
      }
      low[pass] = *reinterpret_cast<const uint4*>(&low_out);
      high[pass] = *reinterpret_cast<const uint4*>(&high_out);
    }
  }
  // --8<-- [end:turn]

  // K and V into shared memory, by the lanes that have them. All lanes of the warp call it.
  __device__ __forceinline__ void leave(NewHead<T>& shared, int64_t slot, int lane) const {
    if (lane == 0) shared.slot = slot;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int head = head_of(pass, lane);
      if (head != kKey && head != kValue) continue;
      T* to = (head == kKey ? shared.k : shared.v) + lane % kLanes * kPairs;
      *reinterpret_cast<uint4*>(to) = low[pass];
      *reinterpret_cast<uint4*>(to + kHalf) = high[pass];
    }
    __syncwarp();
  }

  // Numbers 32 p + 8 t to 32 p + 8 t + 7 of a query head; each lane asks for its own, t from 0 to 3. All lanes of the
  // warp call it.
  __device__ __forceinline__ uint4 pack(int head, int p, int t) const {
    const int from = head % kPerPass * kLanes + p % 2 * 4 + t;
    uint4 mine;
#pragma unroll
    for (int pass = 0; pass < (kKey + kPerPass - 1) / kPerPass; ++pass) {
      const uint4 found = shuffle(p < 2 ? low[pass] : high[pass], from);
      if (head / kPerPass == pass) mine = found;
    }
    return mine;
  }
  static __device__ __forceinline__ uint4 shuffle(const uint4& mine, int from) {
    return make_uint4(__shfl_sync(kAllLanes, mine.x, from), __shfl_sync(kAllLanes, mine.y, from),
                      __shfl_sync(kAllLanes, mine.z, from), __shfl_sync(kAllLanes, mine.w, from));
  }
};
