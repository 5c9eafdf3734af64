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
//           follows the largest seen. The softmax follows its maximum likewise, by leaps: what is summed is not
//           rescaled for a weight of up to 2^kSlack.
#pragma once
#include "query_tiles.cuh"
#include "staged_quantized_turn.cuh"
#include "tensor_cores.cuh"

template <int kGroup, ValueFormat kValues, int kParts, bool kPowers>
struct QuantizedReader {
  using Queries = QueryTiles<kGroup, kValues>;
  using Pages = QuantizedPages<kPowers>;
  using Turn = QuantizedTurn<kValues, kParts, kPowers>;
  using Staged = StagedQuantizedTurn<kValues, kParts, kPowers>;
  using Codes = CodeWords<kValues>;
  using Scores = float[Queries::kTiles][2];
  using Weights = SplitPair[Queries::kTiles][kParts][2];
  static constexpr int kTiles = Queries::kTiles, kWords = 4;   // words of four codes: an eighth of a row
  static constexpr int kChains = kTiles == 1 ? 2 : 1;          // sums of a score that do not wait for each other
  static constexpr int kStep = kAttentionWarps * kTurnTokens;  // tokens of the block in a turn
  static constexpr int kAbove = 8;  // in units the largest weight is from 2^kAbove on, and has room up to kRoom
  static constexpr float kRoom = 0x1p15f, kSlack = 4.0f;

  const Queries& queries;
  const ScaleReader<kPowers>& scale_of;
  const int lane, g = lane / 4, t = lane % 4;
  SoftmaxState state[kTiles];  // of head t % 2 of each tile; l of this lane's tokens alone
  // Of column g: log2 of the largest weight so far, and of the unit.
  float largest[kTiles][kParts];
  int unit[kTiles][kParts];
  float o[kTiles][2 * kWords][4] = {};

  __device__ __forceinline__ QuantizedReader(const Queries& q, const ScaleReader<kPowers>& scales, int in_warp)
      : queries(q), scale_of(scales), lane(in_warp) {
#pragma unroll
    for (int i = 0; i < kTiles * kParts; ++i) {
      largest[i / kParts][i % kParts] = unit[i / kParts][i % kParts] = kLeastExponent;
    }
  }

  // The scores of tokens g and g + 8 with head t % 2 of each tile; -inf where there is no token.
  // --8<-- [start:scores]
  template <class AnyTurn>
  __device__ __forceinline__ void scores(const AnyTurn& turn, Scores& score) {
    uint32_t keys[2][2 * Turn::kWords];
#pragma unroll
    for (int h = 0; h < 2; ++h) turn.key(h, keys[h]);
    float sums[kTiles][2][kChains][4] = {};  // of the first and the last 16 numbers
    const int column = g / 2 == t ? g : Queries::kZeros;
#pragma unroll
    for (int j = 0; j < Queries::kSteps; ++j) {
      const uint32_t k0 = Codes::word(keys[0], j), k8 = Codes::word(keys[1], j);
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
      float scale[kParts];  // of the first and the last 16 numbers
#pragma unroll
      for (int s = 0; s < kParts; ++s) scale[s] = scale_of(turn.key_scale(r, s));
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float of_head[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto sum = [&](const float (&chains)[kChains][4]) {
            return kChains == 1 ? chains[0][2 * r + h] : chains[0][2 * r + h] + chains[kChains - 1][2 * r + h];
          };
          const float first = sum(sums[n][0]), last = sum(sums[n][1]);
          of_head[h] = kParts == 1 ? (first + last) * scale[0] : first * scale[0] + last * scale[kParts - 1];
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
  template <class AnyTurn>
  __device__ __forceinline__ void weigh(const AnyTurn& turn, int n, const Scores& score, Weights& b) {
    float highest = fmaxf(score[n][0], score[n][1]);
#pragma unroll
    for (int distance = 4; distance < kWarpSize; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, distance));
    }
    const float before = state[n].m;
    const bool rises = highest > before + kSlack;
    state[n].raise(rises ? highest : before);
    float scaled[kParts][4], top[kParts] = {};
    const float weight[2] = {state[n].weight(score[n][0]), state[n].weight(score[n][1])};
    state[n].l += weight[0] + weight[1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float mine = __shfl_sync(kAllLanes, weight[i / 2], 4 * (2 * t + i % 2) + g % 2);
#pragma unroll
      for (int s = 0; s < kParts; ++s) {
        scaled[s][i] = mine * scale_of(turn.value_scale(i, s));
        top[s] = fmaxf(top[s], fabsf(scaled[s][i]));
      }
    }
    bool fits = !rises;
#pragma unroll
    for (int s = 0; s < kParts; ++s) fits = fits && top[s] * power_of_two(-unit[n][s]) < kRoom;
    if (__any_sync(kAllLanes, !fits)) {
      const float raised = __shfl_sync(kAllLanes, before - state[n].m, lane / 4 * 4 + g % 2);
#pragma unroll
      for (int s = 0; s < kParts; ++s) change_unit(n, s, top[s], raised);
    }
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      const float *two = scaled[i / 2] + i % 2 * 2, in_units = power_of_two(-unit[n][i / 2]);
      b[n][i / 2][i % 2] = SplitPair(two[0] * in_units, two[1] * in_units);
    }
  }
  template <class AnyTurn>
  __device__ __forceinline__ void add_values(const AnyTurn& turn, const Weights& b) {
    uint32_t values[4][Turn::kWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) turn.value(i, values[i]);
#pragma unroll
    for (int j = 0; j < 2 * kWords; ++j) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = Codes::word(values[i], j / 2);
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
  // The keys are needed no longer when ask_next() is called.
  template <class AnyTurn, class AskNext>
  __device__ __forceinline__ void absorb(const AnyTurn& turn, AskNext ask_next) {
    Scores score;
    Weights weights;
    scores(turn, score);
    ask_next();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) weigh(turn, n, score, weights);
    add_values(turn, weights);
  }
  // --8<-- [end:absorb]
  // Reads this warp's tokens up to `end`; those up to `stored` lie in the cache, and where, `next` knows. ready() sees
  // to the queries while the first rows are coming. add_new(turn, token) may put one more into a turn, told its first
  // token. With kStaged every other turn comes through `stage`, Staged::kBytes of shared memory: two turns are on their
  // way.
  // --8<-- [start:read]
  template <bool kStaged, class Ready, class Add>
  __device__ __forceinline__ void read(
      const Pages& head, TurnPages<kStep> next, int end, int stored, unsigned char* stage, Ready ready, Add add_new) {
    int token = next.next;
    Staged staged(head, stage, lane);
    Turn turn;
    turn.advance(head, next, end, stored, lane);
    turn.load_values(head, lane);
    if (kStaged) staged.ask(head, next, end, stored, lane);
    ready();
    for (; token < end; token += kStep) {
      add_new(turn, token);
      absorb(turn, [&] { turn.advance(head, next, end, stored, lane); });
      turn.load_values(head, lane);
      if (!kStaged || token + kStep >= end) continue;
      token += kStep;
      staged.wait();
      add_new(staged, token);
      absorb(staged, [] {});
      __syncwarp();  // all lanes have read it
      staged.ask(head, next, end, stored, lane);
    }
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
