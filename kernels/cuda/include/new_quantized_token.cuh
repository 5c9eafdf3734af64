// new_quantized_token.cuh: the heads of one new token that a KV head's block needs: Q of its group on their way to the
// Tensor Cores, K and V as codes.
//
// Warps     Four heads to a warp, eight lanes each (four_heads.cuh). Q of the group has one warp or two, K and V the
//           next one: so both are on their way at once, and no warp goes two ways. All others find what these leave
//           in shared memory.
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

template <class T, int kGroup, ValueFormat kValues, int kParts>
struct NewQuantizedToken {
  static constexpr int kQueryWarps = (kGroup + kHeadsOfWarp - 1) / kHeadsOfWarp;
  static constexpr int kKey = kQueryWarps * kHeadsOfWarp, kValue = kKey + 1;

  const TokenHeads of;
  const int warp, lane, part, head;  // `head` that the lane has a part of: a query, kKey, kValue or none
  StoredPart weight;                 // of its norm
  PartAngles angles;

  __device__ __forceinline__ NewQuantizedToken(const TokenHeads& heads, int in_block, int in_warp)
      : of(heads),
        warp(in_block),
        lane(in_warp),
        part(lane % kLanesOfHead),
        head(warp * kHeadsOfWarp + lane / kLanesOfHead) {}

  __device__ __forceinline__ bool has_queries() const { return warp < kQueryWarps; }
  __device__ __forceinline__ bool has_rows() const { return warp == kQueryWarps; }

  // What does not depend on the kernels ahead: weights, and the row of cos_sin.
  __device__ __forceinline__ void load_constants() {
    if (warp > kQueryWarps) return;
    const qwen::QkNormRopeCacheWrite& t = of.token;
    weight = StoredPart::load(has_queries() ? t.q_weight : t.k_weight, part);
    const float* row = t.cos_sin + (of.place.known ? of.place.position : 0) * t.cos_sin_stride;
    angles = load_part_angles(reinterpret_cast<const char*>(row), part);
  }

  // Queries into their tiles, with the bits of QueryTiles::set.
  __device__ __forceinline__ void set(QueryTiles<kGroup, kValues>& queries, float scale, float hadamard_scale) const {
    // --8<-- [start:set]
    const bool there = head < of.group;
    const HeadPart whole = turned(load(of.kv_head * of.group + head, there));
    const StoredPart rounded = whole.rounded<T>();
    const uint32_t lost = of.place.known ? 0 : 0x7fff7fffu;  // NaN, twice
    const uint32_t kept = there ? ~0u : 0;
    StoredPart query;
#pragma unroll
    for (int i = 0; i < kOfHalf; ++i) query.pairs[i] = (rounded.pairs[i] | lost) & kept;
    HeadPart values = HeadPart::of<T>(query);
#pragma unroll
    for (float& value : values.values) value *= scale * kLog2OfE;
    if (hadamard_scale != 0.0f) hadamard(values, hadamard_scale, lane);
    float largest = 0.0f;
#pragma unroll
    for (const float value : values.values) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int distance = 1; distance < kLanesOfHead; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    if (head >= kGroup) return;
    const float raised = power_of_two(queries.set_unit(head, largest, part == 0));
#pragma unroll
    for (float& value : values.values) value *= raised;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* eight = values.values + half * kOfHalf;
      queries.put_eight(head, 2 * half + part / 4, part % 4, eight);
    }
    // --8<-- [end:set]
  }

  // K and V as codes into shared memory and into their slot.
  __device__ __forceinline__ void store(float hadamard_scale,
                                        const QuantizedLayout& layout,
                                        const qwen::QuantizedRows& k,
                                        const qwen::QuantizedRows& v,
                                        FreshRows& fresh) const {
    const bool is_key = head == kKey, there = is_key || head == kValue;
    const int first = of.token.num_heads + (is_key ? 0 : of.token.num_kv_heads);
    StoredPart stored = load(first + of.kv_head, there);
    HeadPart key = turned(stored);
    if (hadamard_scale != 0.0f) hadamard(key, hadamard_scale, lane);
    if (is_key) stored = key.rounded<T>();
    dispatch_scales<kValues, kParts>(layout.scale_format, [&](auto scales) {
      const GroupCodes<T, kValues, decltype(scales)::value> codes(stored, 0, __ffs(layout.group) - 4);
      if (!there) return;
      FreshRow& row = is_key ? fresh.k : fresh.v;
      codes.store(row.data, row.scales, part);
      if (!of.place.kept) return;
      const qwen::QuantizedRows& rows = is_key ? k : v;
      const RowOffset to = row_offset(layout, of.place.slot, of.kv_head);
      codes.store(rows.data + to.data, rows.scales + to.scales, part);
    });
  }

 private:
  // This lane's part of a head of qkv; zeros if it is not there.
  __device__ __forceinline__ StoredPart load(int at, bool there) const {
    const qwen::QkNormRopeCacheWrite& t = of.token;
    const T* x = static_cast<const T*>(t.qkv) + of.sequence * t.qkv_stride + at * kHeadDim;
    return there ? StoredPart::load(x, part) : StoredPart{};
  }
  __device__ __forceinline__ HeadPart turned(const StoredPart& stored) const {
    HeadPart values = HeadPart::of<T>(stored);
    normalize(values, HeadPart::of<T>(weight), of.token.eps);
    rotate(values, angles);
    return values;
  }
};
