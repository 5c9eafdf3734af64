// paged_attention.cuh: one block reads the keys and values of one KV head, for tokens [begin, end) of one sequence, and
// serves all query heads of the group with them. Chapter 5's kernel gives it the whole context, chapter 6's a part.
//
// Lanes     A lane holds kDims dimensions of a token, kPerToken lanes together all of it: one stream. The kStreams
//           streams of a warp read different tokens, kRun each in a turn: they lie in one page, as kRun divides 8.
// Loads     16 bytes a lane. The lanes of a stream ask for 16 * kPerToken consecutive bytes in one instruction, so
//           each sector is used whole. While a turn is computed, the next one's keys and values are on their way, and
//           the entry of the block table for the one after that.
// Order     A stream takes its tokens in order; then the streams of a warp are merged, then the warps. The order
//           follows from begin and end alone: the same tokens give the same bits, alone and in a batch.
// Policy    An entry of the block table that is no block of the cache is skipped: its tokens count as absent.
#pragma once

#include "kv_pages.cuh"
#include "online_softmax.cuh"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

constexpr int kAttentionWarps = 8, kAttentionThreads = kAttentionWarps * kWarpSize;

// --8<-- [start:mapping]
template <int kHeadDimension, int kGroupSize>
struct AttentionLanes {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kGroup = kGroupSize;           // query heads: 1, 2, 4 or 8
  static constexpr int kDims = kGroup <= 2 ? 16 : 8;  // of a lane; heads need registers, too
  static constexpr int kPacks = kDims / 8;
  static constexpr int kPerToken = kHeadDim / kDims, kStreams = kWarpSize / kPerToken;
  static constexpr int kRun = kGroup <= 4 ? 4 : 2;            // tokens of a stream in a turn
  static constexpr int kTurn = kStreams * kRun;               // tokens of a warp in a turn
  static constexpr int kBlockTurn = kAttentionWarps * kTurn;  // tokens of the block in a turn
  // Warps of a block, and dimensions of the values that are the block's: all of them.
  static constexpr int kWarps = kAttentionWarps, kThreads = kWarps * kWarpSize, kShares = 1, kValueDim = kHeadDim;
  // Element i of a lane's kDims is this dimension of the head.
  static __device__ __forceinline__ int dimension(int lane, int i) {
    return i / 8 * (8 * kPerToken) + lane % kPerToken * 8 + i % 8;
  }
};
// --8<-- [end:mapping]

// The same heads in larger blocks, of which kDimensionShares take the same tokens: each of them all of the keys, and
// its share of the values' dimensions. What it has then is right as it is, and nothing is merged.
template <class Lanes, int kBlockWarps, int kDimensionShares>
struct SharedLanes : Lanes {
  static constexpr int kWarps = kBlockWarps, kThreads = kWarps * kWarpSize, kShares = kDimensionShares;
  static constexpr int kValueDim = Lanes::kHeadDim / kShares;
};

// Where a lane's first token lies, counted from the begin of the block's tokens.
template <class Lanes>
__device__ __forceinline__ int first_token_of_lane(int warp, int lane) {
  return warp * Lanes::kTurn + lane / Lanes::kPerToken * Lanes::kRun;
}

// What the warps of a block bring together.
template <class Lanes>
struct WarpPartials {
  float m[Lanes::kWarps][Lanes::kGroup], l[Lanes::kWarps][Lanes::kGroup];
  alignas(16) float o[Lanes::kWarps][Lanes::kGroup][Lanes::kValueDim];

  // Dimension d, of the block's, of query head g over all warps: its softmax state, and o.
  __device__ __forceinline__ SoftmaxState merged(int g, int d, float& total) const {
    SoftmaxState all;
#pragma unroll
    for (int w = 0; w < Lanes::kWarps; ++w) all.m = fmaxf(all.m, m[w][g]);
    total = 0.0f;
#pragma unroll
    for (int w = 0; w < Lanes::kWarps; ++w) {
      const float weight = all.weight(m[w][g]);
      all.l += weight * l[w][g];
      total += weight * o[w][g][d];
    }
    return all;
  }
};

// One warp's reader: (m, l, o) of its tokens, for each query head of the group.
template <class T, class Lanes>
struct AttentionReader {
  static constexpr int kGroup = Lanes::kGroup, kDims = Lanes::kDims, kRun = Lanes::kRun;
  using Run = TokenRun<T, Lanes>;
  using Weights = float[kRun][kGroup];

  float q[kGroup][kDims];  // times scale * log2(e)
  SoftmaxState state[kGroup];
  float o[kGroup][kDims] = {};

  // The group's queries as they come from memory; `from`: its first head. A head beyond `group` is 0: it is computed
  // like the others, and not written.
  struct RawQuery {
    uint4 packs[kGroup][Lanes::kPacks];

    RawQuery() = default;
    __device__ __forceinline__ RawQuery(const T* from, int group, int lane) {
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int p = 0; p < Lanes::kPacks; ++p) {
          packs[g][p] = make_uint4(0, 0, 0, 0);
          if (g < group) {
            const T* pack = from + g * Lanes::kHeadDim + Lanes::dimension(lane, 8 * p);
            packs[g][p] = *reinterpret_cast<const uint4*>(pack);
          }
        }
      }
    }
  };
  __device__ __forceinline__ void set_query(const RawQuery& raw, float scale) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) q[g][i] = element<T>(raw.packs[g][i / 8], i % 8) * (scale * kLog2OfE);
    }
  }

  // --8<-- [start:scores]
  // The scores of a turn, the same in all lanes of a stream; -inf where there is no token.
  __device__ __forceinline__ void scores(const Run& k, int tokens, Weights& score) const {
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
#pragma unroll
      for (int g = 0; g < kGroup; ++g) score[t][g] = 0.0f;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const float key = k.value(t, i);
#pragma unroll
        for (int g = 0; g < kGroup; ++g) score[t][g] += q[g][i] * key;
      }
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int distance = Lanes::kPerToken / 2; distance > 0; distance /= 2) {
          score[t][g] += __shfl_xor_sync(kAllLanes, score[t][g], distance);
        }
        if (t >= tokens) score[t][g] = -INFINITY;
      }
    }
  }
  // --8<-- [end:scores]

  // --8<-- [start:absorb]
  // Scores become weights; one rescaling of o for a whole turn.
  __device__ __forceinline__ void weigh(Weights& score) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float largest = score[0][g];
#pragma unroll
      for (int t = 1; t < kRun; ++t) largest = fmaxf(largest, score[t][g]);
      const float factor = state[g].raise(largest);
#pragma unroll
      for (int i = 0; i < kDims; ++i) o[g][i] *= factor;
#pragma unroll
      for (int t = 0; t < kRun; ++t) state[g].l += score[t][g] = state[g].weight(score[t][g]);
    }
  }
  __device__ __forceinline__ void add_values(const Run& v, const Weights& weight) {
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const float value = v.value(t, i);
#pragma unroll
        for (int g = 0; g < kGroup; ++g) o[g][i] += weight[t][g] * value;
      }
    }
  }
  // --8<-- [end:absorb]

  // --8<-- [start:read]
  // Reads this warp's tokens up to `end`; those up to `stored` lie in the cache. `token` is
  // the lane's first one, in page `first`. When the first keys are on their way, ready() sets
  // q; then add_new(k, v, token) may put a token that is not stored into each turn.
  template <class Head, class Ready, class AddNew>
  __device__ __forceinline__ void read(
      const Head& head, int token, int first, int end, int stored, int lane, Ready ready, AddNew add_new) {
    Run k, v;
    const auto there = [&](int block) { return head.has(block) ? end - token : 0; };
    int tokens = there(first), in_cache = min(tokens, stored - token);
    if (in_cache > 0) {
      const int64_t offset = head.offset(first, token);
      k.load(head.k + offset, head.slot_stride, in_cache, lane);
      v.load(head.v + offset, head.slot_stride, in_cache, lane);
    }
    int block = head.block_of(token + Lanes::kBlockTurn, end);
    ready();
    int turn = token - lane / Lanes::kPerToken * Lanes::kRun;  // the warp's first token
    for (; turn < end; turn += Lanes::kBlockTurn) {
      Weights weight;
      add_new(k, v, token);
      scores(k, tokens, weight);
      token += Lanes::kBlockTurn;
      tokens = there(block), in_cache = min(tokens, stored - token);
      const int64_t offset = in_cache > 0 ? head.offset(block, token) : 0;
      block = head.block_of(token + Lanes::kBlockTurn, end);
      k.load(head.k + offset, head.slot_stride, in_cache, lane);
      weigh(weight);
      add_values(v, weight);
      v.load(head.v + offset, head.slot_stride, in_cache, lane);
    }
  }
  // --8<-- [end:read]

  // All tokens are stored; q was asked for before.
  __device__ __forceinline__ void read(
      const PagedHead<T>& head, const RawQuery& query, float scale, int token, int first, int end, int lane) {
    read(head, token, first, end, end, lane, [&] { set_query(query, scale); }, [](Run&, Run&, int) {});
  }

  // --8<-- [start:streams]
  // Merges the streams of the warp and leaves the result in shared memory. In each step a
  // lane gives half of its dimensions away and gets the other half from a lane of another
  // stream: at the end each lane has its own few.
  __device__ __forceinline__ void leave(WarpPartials<Lanes>& shared, int warp, int lane) {
    constexpr int kKept = kDims / Lanes::kStreams;
    int first = 0;  // of the dimensions that the lane keeps
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float largest = state[g].m;
#pragma unroll
      for (int distance = kWarpSize / 2; distance >= Lanes::kPerToken; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      }
      const float factor = state[g].raise(largest);
#pragma unroll
      for (int i = 0; i < kDims; ++i) o[g][i] *= factor;
      first = 0;
#pragma unroll
      for (int step = 2; step <= Lanes::kStreams; step *= 2) {
        const int distance = kWarpSize / step, half = kDims / step;
        const bool upper = lane & distance;
        first += upper ? half : 0;
        state[g].l += __shfl_xor_sync(kAllLanes, state[g].l, distance);
#pragma unroll
        for (int i = 0; i < kDims / 2; ++i) {
          if (i >= half) break;
          const float given = upper ? o[g][i] : o[g][i + half];
          const float kept = upper ? o[g][i + half] : o[g][i];
          o[g][i] = kept + __shfl_xor_sync(kAllLanes, given, distance);
        }
      }
      if (lane == 0) shared.m[warp][g] = state[g].m, shared.l[warp][g] = state[g].l;
#pragma unroll
      for (int i = 0; i < kKept; ++i) shared.o[warp][g][Lanes::dimension(lane, first + i)] = o[g][i];
    }
  }
  // --8<-- [end:streams]
};
