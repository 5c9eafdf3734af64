// quantized_reader.cuh: one warp's (m, l, o) of its tokens of a quantised cache, with the products on Tensor Cores.
//
// Numbers   A code is a half exactly. What it meets is an fp32 number, cut into two halves, high + low, within 2^-22 of
//           it. Both products are exact and are added in fp32: as good as fp32 products, for half the instructions or
//           fewer.
// Scales    Two heads are a tile, and a tile has 8 columns: column 2 c + h is head h and class c of a row's numbers,
//           those with the scale of a quarter. For scores b has zeros but for a class's own rows of q: each lane gets
//           the sum of what it has loaded, and scales that. For values column 2 c + h has the weights of head h times
//           the scales of class c; of the sums only those that stand where row and column have one class are kept.
// Range     Weights times scales go beyond what a half can hold. Each column counts in units of a power of two, which
//           follows the largest seen, as the softmax follows its maximum.
#pragma once

#include "query_tiles.cuh"
#include "tensor_cores.cuh"

template <int kGroup, ValueFormat kValues, int kParts, int kMostAhead>
struct QuantizedReader {
  using Queries = QueryTiles<kGroup, kValues>;
  using Turn = QuantizedTurn<kValues, kParts>;
  using Codes = CodeWords<kValues>;
  using Scores = float[Queries::kTiles][2];
  using Weights = SplitPair[Queries::kTiles][kParts][2];
  static constexpr int kTiles = Queries::kTiles, kWords = 4;   // words of four codes: an eighth of a row
  static constexpr int kAhead = kTiles == 1 ? kMostAhead : 1;  // turns on their way; they are computed side by side
  static constexpr int kChains = kTiles == 1 ? 2 : 1;          // sums of a score that do not wait for each other
  static constexpr int kStep = kAttentionWarps * kTurnTokens;  // tokens of the block in a turn
  // In units the largest weight is from 2^kAbove on, and has room up to the largest half.
  static constexpr int kAbove = 8;
  static constexpr float kRoom = 0x1p15f;

  const Queries& queries;
  const ScaleReader& scale_of;
  const int lane, g = lane / 4, t = lane % 4;
  SoftmaxState state[kTiles];  // of head t % 2 of each tile; l of this lane's tokens alone
  // Of column g: log2 of the largest weight so far, and of the unit.
  float largest[kTiles][kParts];
  int unit[kTiles][kParts];
  float o[kTiles][2 * kWords][4] = {};

  __device__ __forceinline__ QuantizedReader(const Queries& q, const ScaleReader& scales, int in_warp)
      : queries(q), scale_of(scales), lane(in_warp) {
#pragma unroll
    for (int i = 0; i < kTiles * kParts; ++i) {
      largest[i / kParts][i % kParts] = unit[i / kParts][i % kParts] = kLeastExponent;
    }
  }

  // The scores of tokens g and g + 8 with head t % 2 of each tile; -inf where there is no token.
  // --8<-- [start:scores]
  __device__ __forceinline__ void scores(const Turn& turn, Scores& score) {
    float sums[kTiles][2][kChains][4] = {};  // of the first and the last 16 numbers
    const int column = g / 2 == t ? g : Queries::kZeros;
#pragma unroll
    for (int j = 0; j < Queries::kSteps; ++j) {
      const uint32_t k0 = Codes::word(turn.keys[0], j);
      const uint32_t k8 = Codes::word(turn.keys[1], j);
      const uint32_t a[4] = {halves(k0, 0), halves(k8, 0), halves(k0, 1), halves(k8, 1)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 q = *reinterpret_cast<const uint4*>(queries.columns[n][j][column]);
        mma_m16n8k16(sums[n][j / kWords][0], a, {q.x, q.y});
        mma_m16n8k16(sums[n][j / kWords][kChains - 1], a, {q.z, q.w});
      }
    }
    const bool odd = t % 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = scale_of(turn.key_scales[r][0]);
      const float last = scale_of(turn.key_scales[r][kParts - 1]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float of_head[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float sum = sums[n][half][0][2 * r + h];
            if (kChains == 2) sum += sums[n][half][kChains - 1][2 * r + h];
            of_head[h] += sum * (half == 0 ? first : last);
          }
        }
        // The quarters of a row are added, and each lane goes on with one of the two heads.
        float total = odd ? of_head[1] : of_head[0];
        total += __shfl_xor_sync(kAllLanes, odd ? of_head[0] : of_head[1], 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        score[n][r] = g < turn.tokens[r] ? total * queries.unit[2 * n + t % 2] : -INFINITY;
      }
    }
  }
  // --8<-- [end:scores]

  // A new unit for column g, whose largest weight of this turn is `top`, after a maximum rose by -`raised`.
  // --8<-- [start:unit]
  __device__ __forceinline__ void change_unit(int n, int s, float top, float raised) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, distance));
    }
    largest[n][s] = fmaxf(largest[n][s] + raised, float(limited(exponent_of(top))));
    const int wanted = limited(int(floorf(largest[n][s])) - kAbove);
    const float to_unit = power_of_two(limited(unit[n][s] - wanted));
    const float factor = exp2_approximate(raised) * to_unit;
    unit[n][s] = wanted;
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // of column 2 t + h, which this lane has in o
      const float of_column = __shfl_sync(kAllLanes, factor, 8 * t + 4 * h);
#pragma unroll
      for (int j = 2 * kWords / kParts * s; j < 2 * kWords / kParts * (s + 1); ++j) {
        o[n][j][h] *= of_column, o[n][j][h + 2] *= of_column;
      }
    }
  }
  // --8<-- [end:unit]

  // --8<-- [start:absorb]
  // Scores become weights; each lane gets those of the tokens whose values it has, for head g % 2 of the tile.
  template <int kTurns>
  __device__ __forceinline__ void weigh(const Turn* turns, int n, const Scores* score, Weights* b) {
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2 * kTurns; ++i) highest = fmaxf(highest, score[i / 2][n][i % 2]);
#pragma unroll
    for (int distance = 4; distance < kWarpSize; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, distance));
    }
    const float before = state[n].m;
    state[n].raise(highest);
    float scaled[kTurns][kParts][4], top[kParts] = {};
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      const float weight[2] = {state[n].weight(score[p][n][0]), state[n].weight(score[p][n][1])};
      state[n].l += weight[0] + weight[1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float mine = __shfl_sync(kAllLanes, weight[i / 2], 4 * (2 * t + i % 2) + g % 2);
#pragma unroll
        for (int s = 0; s < kParts; ++s) {
          scaled[p][s][i] = mine * scale_of(turns[p].value_scales[i][s]);
          top[s] = fmaxf(top[s], fabsf(scaled[p][s][i]));
        }
      }
    }
    bool fits = state[n].m == before;
#pragma unroll
    for (int s = 0; s < kParts; ++s) fits = fits && top[s] * power_of_two(-unit[n][s]) < kRoom;
    if (__any_sync(kAllLanes, !fits)) {
      const float raised = __shfl_sync(kAllLanes, before - state[n].m, lane / 4 * 4 + g % 2);
#pragma unroll
      for (int s = 0; s < kParts; ++s) change_unit(n, s, top[s], raised);
    }
#pragma unroll
    for (int i = 0; i < 2 * kTurns * kParts; ++i) {
      const int p = i / (2 * kParts), s = i / 2 % kParts, half = i % 2;
      const float *two = scaled[p][s] + 2 * half, in_units = power_of_two(-unit[n][s]);
      b[p][n][s][half] = SplitPair(two[0] * in_units, two[1] * in_units);
    }
  }
  __device__ __forceinline__ void add_values(const Turn& turn, const Weights& b) {
#pragma unroll
    for (int j = 0; j < 2 * kWords; ++j) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = Codes::word(turn.values[i], j / 2);
      // Two codes of each token: neighbours are now one number of two tokens.
      const int codes = j % 2 == 0 ? 0x5140 : 0x7362;
      const uint32_t first = __byte_perm(word[0], word[1], codes), second = __byte_perm(word[2], word[3], codes);
      const uint32_t a[4] = {halves(first, 0), halves(first, 1), halves(second, 0), halves(second, 1)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const SplitPair(&weights)[2] = b[n][j * kParts / (2 * kWords)];
        mma_m16n8k16(o[n][j], a, {weights[0].high, weights[1].high});
        mma_m16n8k16(o[n][j], a, {weights[0].low, weights[1].low});
      }
    }
  }
  // --8<-- [end:absorb]
  // The tokens of kTurns turns, from `token` on. Where all on their way count, the next ones are asked for.
  // --8<-- [start:turns]
  template <int kTurns, class AddNew>
  __device__ __forceinline__ void absorb(
      Turn* turns, const QuantizedPages& head, TurnPages<kStep>& next, int token, int end, int stored, AddNew add_new) {
    constexpr bool kMore = kTurns == kAhead;
    Scores score[kTurns];
    Weights weights[kTurns];
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      add_new(turns[p], token + p * kStep);
      scores(turns[p], score[p]);
      if (kMore) turns[p].advance(head, next, end, stored, lane);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) weigh<kTurns>(turns, n, score, weights);
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      add_values(turns[p], weights[p]);
      if (kMore) turns[p].load_values(head, lane);
    }
  }
  // --8<-- [end:turns]
  // Reads this warp's tokens from `token` up to `end`; those up to `stored` lie in the cache. ready() sees to the
  // queries while the first rows are coming. add_new(turn, token) may put one more into a turn, told its first token.
  // --8<-- [start:read]
  template <class Ready, class AddNew>
  __device__ __forceinline__ void read(
      const QuantizedPages& head, int token, int end, int stored, Ready ready, AddNew add_new) {
    TurnPages<kStep> next(head, token, end, lane);
    Turn turns[kAhead];
#pragma unroll
    for (int p = 0; p < kAhead; ++p) {
      turns[p].advance(head, next, end, stored, lane);
      turns[p].load_values(head, lane);
    }
    ready();
    const int all = end - (kAhead - 1) * kStep;  // before it the last of the turns has tokens, too
    for (; token < all; token += kAhead * kStep) absorb<kAhead>(turns, head, next, token, end, stored, add_new);
    if (kAhead == 2 && token < end) absorb<1>(turns, head, next, token, end, stored, add_new);
  }
  // --8<-- [end:read]
  // --8<-- [start:leave]
  // Of o the elements whose row and column are of one class.
  template <class Partials>
  __device__ __forceinline__ void leave(Partials& shared, int warp) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        state[n].l += __shfl_xor_sync(kAllLanes, state[n].l, distance);
      }
      if (g == 0 && t < 2 && 2 * n + t < kGroup)
        shared.m[warp][2 * n + t] = state[n].m, shared.l[warp][2 * n + t] = state[n].l;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int s = 0; s < kParts; ++s) {
          const float in_units = power_of_two(__shfl_sync(kAllLanes, unit[n][s], 8 * t + 4 * h));
          if (g / 2 != t || 2 * n + h >= kGroup) continue;
#pragma unroll
          for (int i = 0; i < 16 / kParts; ++i) {  // the numbers of a part
            const int w = Codes::word_of(i), code = Codes::code_of(i), j = 2 * (w + kWords / kParts * s) + code / 2;
            const int dimension = 16 / kParts * g + 64 * s + i;
            shared.o[warp][2 * n + h][dimension] = o[n][j][h + code % 2 * 2] * Codes::kUnit * in_units;
          }
        }
      }
    }
  }
  // --8<-- [end:leave]
};
