// new_quantized_token.cuh: the heads of one new token that a KV head's block needs: Q of its group on their way to the
// Tensor Cores, K and V as codes.
//
// Warps     Four heads to a warp, eight lanes each (four_heads.cuh): Q of the group, then K, then V. Of two query heads
//           it is one warp, of eight three. The others find what they need in shared memory.
// Contract  The bits of norm_rope_hadamard_quant_store, and of a query that has been to memory and back.
#pragma once

#include "group_codes.cuh"
#include "query_tiles.cuh"

struct FreshRows {
  FreshRow k, v;
};

// What the new token's warps are told.
struct TokenHeads {
  const qwen::QkNormRopeCacheWrite& token;
  const TokenPlace& place;
  int sequence, kv_head, group;
  float scale, hadamard_scale;
};

template <class T, int kGroup>
struct NewQuantizedToken {
  static constexpr int kKey = kGroup, kValue = kKey + 1;
  static constexpr int kWarps = (kGroup + 2 + kHeadsOfWarp - 1) / kHeadsOfWarp;

  const int lane, part, head;  // that the lane has a part of; none beyond kValue
  StoredPart weight;           // of its norm
  PartAngles angles;

  __device__ __forceinline__ NewQuantizedToken(int warp, int in_warp)
      : lane(in_warp), part(lane % kLanesOfHead), head(warp * kHeadsOfWarp + lane / kLanesOfHead) {}

  // What does not depend on the kernels ahead: weights, and the row of cos_sin.
  __device__ __forceinline__ void load_constants(const qwen::QkNormRopeCacheWrite& t, const TokenPlace& place) {
    weight = StoredPart::load(head < kKey ? t.q_weight : t.k_weight, part);
    const float* row = t.cos_sin + (place.known ? place.position : 0) * t.cos_sin_stride;
    angles = load_part_angles(reinterpret_cast<const char*>(row), part);
  }

  // --8<-- [start:take]
  // Queries into their tiles; where `keep` is called, with a row's part as it is quantised, K and V.
  template <class Queries, class Keep>
  __device__ __forceinline__ void take(const TokenHeads& h, Queries& queries, Keep keep) const {
    const qwen::QkNormRopeCacheWrite& t = h.token;
    const bool is_query = head < kKey, there = is_query ? head < h.group : head <= kValue;
    const int at = is_query       ? h.kv_head * h.group + head
                   : head == kKey ? t.num_heads + h.kv_head
                                  : t.num_heads + t.num_kv_heads + h.kv_head;
    StoredPart stored = {};
    if (there) {
      const T* x = static_cast<const T*>(t.qkv) + h.sequence * t.qkv_stride + at * kHeadDim;
      stored = StoredPart::load(x, part);
    }
    HeadPart values = HeadPart::of<T>(stored);
    normalize(values, HeadPart::of<T>(weight), t.eps);
    rotate(values, angles);
    if (is_query) {  // rounded, as it would go to memory
      StoredPart turned = values.rounded<T>();
#pragma unroll
      for (uint32_t& pair : turned.pairs) pair = !there ? 0 : h.place.known ? pair : 0x7fff7fffu;  // NaN, twice
      values = HeadPart::of<T>(turned);
#pragma unroll
      for (float& value : values.values) value *= h.scale * kLog2OfE;
    }
    if (h.hadamard_scale != 0.0f) hadamard(values, h.hadamard_scale, lane);
    put_query(values, queries);
    if (head == kKey) stored = values.rounded<T>();
    keep(stored);
  }
  // --8<-- [end:take]

 private:
  // The bits of QueryTiles::set.
  template <class Queries>
  __device__ __forceinline__ void put_query(HeadPart values, Queries& queries) const {
    float largest = 0.0f;
#pragma unroll
    for (const float value : values.values) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int distance = 1; distance < kLanesOfHead; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    if (head >= kKey) return;
    const float raised = power_of_two(queries.set_unit(head, largest, part == 0));
#pragma unroll
    for (float& value : values.values) value *= raised;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      queries.put_eight(head, 2 * half + part / 4, part % 4, values.values + half * kOfHalf);
    }
  }
};
