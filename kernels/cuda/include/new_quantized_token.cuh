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

struct TokenHeads {
  const qwen::QkNormRopeCacheWrite& token;
  const TokenPlace& place;
  int sequence, kv_head, group;  // `group` query heads of kGroup exist
};

// Calls f with a scale format that goes with the values, as a constant. FP4's follows from the size of its groups.
template <ValueFormat kValues, int kParts, class F>
__device__ __forceinline__ void dispatch_scales(ScaleFormat format, F f) {
  if constexpr (kValues == ValueFormat::kE2M1) {
    f(std::integral_constant<ScaleFormat, kParts == 2 ? ScaleFormat::kE4M3 : ScaleFormat::kUE8M0>{});
  } else {
    if (format == ScaleFormat::kUE8M0) return f(std::integral_constant<ScaleFormat, ScaleFormat::kUE8M0>{});
    if (format == ScaleFormat::kE4M3) return f(std::integral_constant<ScaleFormat, ScaleFormat::kE4M3>{});
    f(std::integral_constant<ScaleFormat, ScaleFormat::kFloat32>{});
  }
}

template <class T, int kGroup>
struct NewQuantizedToken {
  static constexpr int kKey = kGroup, kValue = kKey + 1;
  static constexpr int kWarps = (kGroup + 2 + kHeadsOfWarp - 1) / kHeadsOfWarp;

  const TokenHeads of;
  const int warp, lane, part, head;  // `head` that the lane has a part of; none beyond kValue
  StoredPart weight;                 // of its norm
  PartAngles angles;

  __device__ __forceinline__ NewQuantizedToken(const TokenHeads& heads, int in_block, int in_warp)
      : of(heads),
        warp(in_block),
        lane(in_warp),
        part(lane % kLanesOfHead),
        head(warp * kHeadsOfWarp + lane / kLanesOfHead) {}

  // Whether this warp has heads.
  __device__ __forceinline__ bool is_needed() const { return warp < kWarps; }

  // What does not depend on the kernels ahead: weights, and the row of cos_sin.
  __device__ __forceinline__ void load_constants() {
    if (!is_needed()) return;
    const qwen::QkNormRopeCacheWrite& t = of.token;
    weight = StoredPart::load(head < kKey ? t.q_weight : t.k_weight, part);
    const float* row = t.cos_sin + (of.place.known ? of.place.position : 0) * t.cos_sin_stride;
    angles = load_part_angles(reinterpret_cast<const char*>(row), part);
  }

  // Queries into their tiles. Returns what of K and V is to be quantised.
  // --8<-- [start:take]
  template <class Queries>
  __device__ __forceinline__ StoredPart take(Queries& queries, float scale, float hadamard_scale) const {
    const qwen::QkNormRopeCacheWrite& t = of.token;
    const bool is_query = head < kKey, there = is_query ? head < of.group : head <= kValue;
    const int at = is_query       ? of.kv_head * of.group + head
                   : head == kKey ? t.num_heads + of.kv_head
                                  : t.num_heads + t.num_kv_heads + of.kv_head;
    StoredPart stored = {};
    const T* x = static_cast<const T*>(t.qkv) + of.sequence * t.qkv_stride + at * kHeadDim;
    if (there) stored = StoredPart::load(x, part);
    HeadPart values = HeadPart::of<T>(stored);
    normalize(values, HeadPart::of<T>(weight), t.eps);
    rotate(values, angles);
    if (is_query) {  // rounded, as it would go to memory
      StoredPart turned = values.rounded<T>();
      const uint32_t lost = of.place.known ? 0 : 0x7fff7fffu;  // NaN, twice
#pragma unroll
      for (uint32_t& pair : turned.pairs) pair = there ? pair | lost : 0;
      values = HeadPart::of<T>(turned);
#pragma unroll
      for (float& value : values.values) value *= scale * kLog2OfE;
    }
    if (hadamard_scale != 0.0f) hadamard(values, hadamard_scale, lane);
    put_query(values, queries);
    return head == kKey ? values.rounded<T>() : stored;
  }
  // --8<-- [end:take]

  // --8<-- [start:store]
  // K and V as codes into shared memory and into their slot, by the lanes that have them.
  template <ValueFormat kValues, int kParts>
  __device__ __forceinline__ void store(const StoredPart& taken,
                                        const QuantizedLayout& layout,
                                        const qwen::QuantizedRows& k,
                                        const qwen::QuantizedRows& v,
                                        FreshRows& fresh) const {
    dispatch_scales<kValues, kParts>(layout.scale_format, [&](auto scales) {
      const GroupCodes<T, kValues, decltype(scales)::value> codes(taken, 0, __ffs(layout.group) - 4);
      if (head != kKey && head != kValue) return;
      FreshRow& row = head == kKey ? fresh.k : fresh.v;
      codes.store(row.data, row.scales, part);
      if (!of.place.kept) return;
      const qwen::QuantizedRows& rows = head == kKey ? k : v;
      const RowOffset to = row_offset(layout, of.place.slot, of.kv_head);
      codes.store(rows.data + to.data, rows.scales + to.scales, part);
    });
  }
  // --8<-- [end:store]

 private:
  // By all lanes of the warp; the bits of QueryTiles::set.
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
