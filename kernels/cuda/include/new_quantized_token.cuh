// new_quantized_token.cuh: the heads of one new token that a KV head's block needs: Q of its group on their way to the
// Tensor Cores, K and V as codes.
//
// Warps     A head each, four numbers to a lane (head_transform.cuh): what all wait for is as short as it can be. The
//           block has no more than eight warps; with more heads the first ones take two. All others find what these
//           leave in shared memory.
// Contract  The bits of norm_rope_hadamard_quant_store, and of a query that has been to memory and back.
#pragma once

#include "chunk_codes.cuh"
#include "query_tiles.cuh"

struct FreshRows {
  FreshRow k, v;
};

struct TokenHeads {
  const qwen::QkNormRopeCacheWrite& token;
  const TokenPlace& place;
  int sequence, kv_head, group;  // `group` query heads of kGroup exist
};

template <class T, int kGroup, ValueFormat kValues>
struct NewQuantizedToken {
  using Queries = QueryTiles<kGroup, kValues>;
  static constexpr int kKey = 2 * Queries::kTiles, kValue = kKey + 1, kHeads = kValue + 1;

  const TokenHeads of;
  const int warp, lane;
  NormWeight<T, 1> weight;  // of the warp's head
  Chunk<float, kOfLane> cosine, sine;
  int from;            // where the lane's numbers of the head lie in the row of qkv; -1: there is no such head
  ChunkCodes codes{};  // of K or V, if the warp has made them
  bool is_made = false;

  __device__ __forceinline__ NewQuantizedToken(const TokenHeads& heads, int in_block, int in_warp)
      : of(heads), warp(in_block), lane(in_warp) {}

  // What does not depend on the kernels ahead: where the head will be, its weights, and the row of cos_sin.
  __device__ __forceinline__ void load_constants(int head) {
    const qwen::QkNormRopeCacheWrite& t = of.token;
    const int at =
        head < kKey ? of.kv_head * of.group + head : t.num_heads + (head == kKey ? 0 : t.num_kv_heads) + of.kv_head;
    const bool exists = head < of.group || head >= kKey;
    from = settled(exists ? at * kHeadDim + kOfLane * lane : -1, lane);
    if (head > kKey) return;
    weight = NormWeight<T, 1>::load(head < kKey ? t.q_weight : t.k_weight, lane);
    const float* row = t.cos_sin + of.place.row() * t.cos_sin_stride;
    cosine = load_chunk<true, kOfLane>(row + kOfLane * lane % kHalf);
    sine = load_chunk<true, kOfLane>(row + kHalf + kOfLane * lane % kHalf);
  }

  // Each of the warp's heads goes where it belongs: queries into their tiles, with the bits of QueryTiles::set; K and V
  // as codes into shared memory, in the block that has them to read or nobody has.
  // --8<-- [start:set]
  __device__ __forceinline__ void make(Queries& queries,
                                       float scale,
                                       float hadamard_scale,
                                       bool is_last,
                                       const QuantizedLayout& layout,
                                       FreshRows& fresh) {
    for (int head = warp; head < kHeads; head += kAttentionWarps) {
      if (head >= kAttentionWarps) load_constants(head);
      HeadValues<1> values = load();
      if (head < kKey) {
        set(queries, head, values, scale, hadamard_scale);
      } else if (is_last) {
        encode(values, head == kKey, hadamard_scale, layout, head == kKey ? fresh.k : fresh.v);
      }
    }
  }
  // And into their slot, when nobody waits for the warp any more.
  __device__ __forceinline__ void store(const QuantizedLayout& layout,
                                        const qwen::QuantizedRows& k,
                                        const qwen::QuantizedRows& v) const {
    if (!is_made || !of.place.kept) return;
    const bool is_key = (kHeads <= kAttentionWarps ? warp : warp + kAttentionWarps) == kKey;
    const RowOffset to = row_offset(layout, of.place.slot, of.kv_head);
    codes.store((is_key ? k.data : v.data) + to.data, (is_key ? k.scales : v.scales) + to.scales, layout, lane);
  }

 private:
  __device__ __forceinline__ void set(
      Queries& queries, int head, HeadValues<1>& q, float scale, float hadamard_scale) const {
    if (from >= 0) {
      const float unit = of.place.known ? scale * kLog2OfE : not_a_number();
      turn(q);
      q.for_each([&](float& value) { value = to_float(from_float<T>(value)) * unit; });
    }
    queries.put(head, q.values[0], hadamard_scale, lane);
  }
  // --8<-- [end:set]
  __device__ __forceinline__ void encode(
      HeadValues<1>& head, bool is_key, float hadamard_scale, const QuantizedLayout& layout, FreshRow& fresh) {
    if (is_key) {
      turn(head);
      if (hadamard_scale != 0.0f) hadamard(head, hadamard_scale, lane);
      head.for_each([](float& value) { value = to_float(from_float<T>(value)); });
    }
    codes = ChunkCodes(head.values[0], layout);
    codes.store(fresh.data, fresh.scales, layout, lane);
    is_made = true;
  }
  // Zeros, if there is no such head.
  __device__ __forceinline__ HeadValues<1> load() const {
    HeadValues<1> values = {};
    if (from < 0) return values;
    const T* row = static_cast<const T*>(of.token.qkv) + of.sequence * of.token.qkv_stride;
    const auto loaded = load_chunk<true, kOfLane>(row + from);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) values.values[0][i] = to_float(loaded.values[i]);
    return values;
  }
  // Norm and rotation.
  __device__ __forceinline__ void turn(HeadValues<1>& head) const {
    normalize(head, weight, of.token.eps, lane);
    const bool first = lane < kWarpSize / 2;  // of its pairs
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      float& value = head.values[0][i];
      const float partner = __shfl_xor_sync(kAllLanes, value, kWarpSize / 2);
      value = fmaf(value, cosine.values[i], partner * (first ? -sine.values[i] : sine.values[i]));
    }
  }
};
