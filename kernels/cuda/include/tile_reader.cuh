// tile_reader.cuh: (m, l, o) of a warp's tokens as AttentionReader of paged_attention.cuh has it, with the products on
// Tensor Cores: they are exact and are added in fp32.
//
// Lanes     A warp takes turns of 16 tokens; tile_turn.cuh says what lane 4 g + t has of them.
// Scores    Keys are operand b, 8 tokens at a time, and queries are a, both as they are loaded: row g has head g %
//           kGroup. A pack of a key is two products; of a they use rows g and g + 8, so that all of its registers
//           count. Each lane gets the scores of head g % kGroup with the four tokens whose values it has.
// Values    Rows of a are dimensions. A weight is cut into three 16-bit parts that add up to its 24 bits: column c of
//           all tiles has part c / kGroup of head c % kGroup. The parts' sums are added at the end.
// Order     Turn by turn, then the warps: it follows from begin and end alone, as in paged_attention.cuh.
#pragma once

#include "paged_attention.cuh"
#include "staged_turn.cuh"
#include "tensor_cores.cuh"
#include "tile_turn.cuh"
#include "weight_parts.cuh"

template <class T, class Lanes>
struct TileReader {
  using Pages = TilePages<T, Lanes>;
  using Turn = TileTurn<T, Lanes>;
  using Parts = WeightParts<T>;
  static constexpr int kGroup = Lanes::kGroup, kPacks = Pages::kKeyPacks;
  static constexpr int kStep = Lanes::kWarps * kTurnTokens;             // tokens of the block in a turn
  static constexpr int kParts = 3, kTiles = (kParts * kGroup + 7) / 8;  // of 8 columns
  static constexpr int kWords = 4 * Pages::kValuePacks;                 // of a value: two dimensions each

  const int lane, share, g = lane / 4, t = lane % 4;  // share: of the values' dimensions
  uint32_t q[kPacks][4];                              // operand a
  float unit;                                         // of the products of q and k
  SoftmaxState state;                                 // of head g % kGroup; l of this lane's tokens alone
  float o[kTiles][kWords][4] = {};

  __device__ __forceinline__ TileReader(int in_warp, int of_dimensions) : lane(in_warp), share(of_dimensions) {}

  // The group's queries are heads 0 to kGroup - 1 of a NewToken.
  template <class Fresh>
  __device__ __forceinline__ void set_query(const Fresh& fresh, float scale) {
    unit = scale * kLog2OfE;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const uint4 pack = fresh.pack(g % kGroup, p, t);
      q[p][0] = pack.x, q[p][2] = pack.y;  // row g, for the first half of a pack
      q[p][1] = pack.z, q[p][3] = pack.w;  // row g + 8, for the second one
    }
  }

  // --8<-- [start:scores]
  // Of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9; -inf where there is no token.
  template <class AnyTurn>
  __device__ __forceinline__ void scores(const AnyTurn& turn, float (&score)[4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float first[4] = {}, second[4] = {};
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const uint4 key = turn.key(h, p);
        mma_m16n8k16<T>(first, q[p], {key.x, key.y});
        mma_m16n8k16<T>(second, q[p], {key.z, key.w});
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool there = 2 * t + i < turn.tokens[h];
        score[2 * h + i] = there ? (first[i] + second[i + 2]) * unit : -INFINITY;
      }
    }
  }
  // --8<-- [end:scores]

  // Scores become operand b. o is rescaled when a maximum rises; at other times all factors are 1.
  __device__ __forceinline__ void weigh(float (&score)[4], uint32_t (&b)[kTiles][2]) {
    float largest = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    const bool rises = largest > state.m;
    const float factor = state.raise(largest);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.l += score[i] = state.weight(score[i]);
    if (__any_sync(kAllLanes, rises)) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float of_column = __shfl_sync(kAllLanes, factor, 4 * column_head(c));
#pragma unroll
        for (int i = 0; i < kTiles * kWords; ++i) {
          float (&sums)[4] = o[i / kWords][i % kWords];
          sums[c] *= of_column, sums[c + 2] *= of_column;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int part = (8 * n + g) / kGroup;  // beyond the last one the column is not used
#pragma unroll
      for (int h = 0; h < 2; ++h) b[n][h] = Parts::pair(score[2 * h], score[2 * h + 1], part);
    }
  }
  __device__ __forceinline__ int column_head(int c) const { return (2 * t + c) % kGroup; }

  // Two dimensions of four tokens become words of two tokens.
  template <class AnyTurn>
  __device__ __forceinline__ void add_values(const AnyTurn& turn, const uint32_t (&b)[kTiles][2]) {
#pragma unroll
    for (int p = 0; p < Pages::kValuePacks; ++p) {
      uint4 packs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) packs[i] = turn.value(i, p);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t x[4], a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = word_of(packs[i], w);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = __byte_perm(x[i / 2 * 2], x[i / 2 * 2 + 1], i % 2 == 0 ? 0x5410 : 0x7632);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) mma_m16n8k16<T>(o[n][4 * p + w], a, b[n]);
      }
    }
  }
  static __device__ __forceinline__ uint32_t word_of(const uint4& pack, int w) {
    return w == 0 ? pack.x : w == 1 ? pack.y : w == 2 ? pack.z : pack.w;
  }

  // Reads this warp's tokens up to `end`; those up to `stored` lie in the cache, and where, `coming` knows. When the
  // first turns are on their way, ready() sets q; then add_new(turn, token), which is told a turn's first token, may
  // put one that is not stored into it. With kStaged every other turn comes through `stage`, kStagedBytes of shared
  // memory: two turns are on their way.
  template <bool kStaged, class Ready, class AddNew>
  __device__ __forceinline__ void read(const PagedHead<T>& head,
                                       TurnPages<kStep> coming,
                                       int end,
                                       int stored,
                                       unsigned char* stage,
                                       Ready ready,
                                       AddNew add_new) {
    constexpr bool kOneTurn = Lanes::kShares > 1;  // most often; then what would come is not even looked for
    static_assert(!kStaged || !kOneTurn, "a staged turn has all of the dimensions");
    const Pages pages(head, lane, share);
    StagedTurn<T, Lanes> staged(stage, lane);
    Turn turn;
    int token = coming.next;
    turn.advance(pages, coming, end, stored, lane);
    turn.load_keys(pages, lane);
    turn.load_values(pages, lane);
    if (kStaged) staged.ask(head, coming, end, stored, lane);
    ready();
    for (; token < end; token += kStep) {
      float score[4];
      uint32_t weights[kTiles][2];
      add_new(turn, token);
      scores(turn, score);
      const bool more = !kOneTurn || coming.next < end;
      if (more) {
        turn.advance(pages, coming, end, stored, lane);
        turn.load_keys(pages, lane);
      }
      __syncwarp();  // the compiler may not put these loads off
      weigh(score, weights);
      add_values(turn, weights);
      if (more) turn.load_values(pages, lane);
      if (!kStaged || token + kStep >= end) continue;
      token += kStep;
      staged.wait();
      add_new(staged, token);
      scores(staged, score);
      weigh(score, weights);
      add_values(staged, weights);
      __syncwarp();  // all lanes have read it
      staged.ask(head, coming, end, stored, lane);
    }
  }

  // Adds the parts, and leaves the result in shared memory. Where lanes share a head, each gives half of its numbers
  // away in a step and gets the other half: at the end it has its own few.
  __device__ __forceinline__ void leave(WarpPartials<Lanes>& shared, int warp) {
    constexpr int kHeads = kGroup == 1 ? 1 : 2, kSharing = kGroup == 1 ? 4 : 8 / kGroup, kNumbers = 2 * kWords;
    float sums[kHeads][kNumbers] = {};
    int first = 0;  // of the numbers that the lane keeps
#pragma unroll
    for (int c = 0; c < 2 * kTiles; ++c) {
      const int part = (c / 2 * 8 + 2 * t + c % 2) / kGroup;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        if (part < kParts) sums[c % kHeads][i] += o[c / 2][i / 2][i % 2 * 2 + c % 2] * Parts::unit(part);
      }
    }
#pragma unroll
    for (int step = 2; step <= kSharing; step *= 2) {
      const int distance = 4 / step, half = kNumbers / step;
      const bool upper = lane & distance;
      first += upper ? half : 0;
#pragma unroll
      for (int i = 0; i < kHeads * kNumbers / 2; ++i) {
        float (&numbers)[kNumbers] = sums[i % kHeads];
        const int n = i / kHeads;
        if (n >= half) break;
        const float given = upper ? numbers[n] : numbers[n + half];
        const float kept = upper ? numbers[n + half] : numbers[n];
        numbers[n] = kept + __shfl_xor_sync(kAllLanes, given, distance);
      }
    }
#pragma unroll
    for (int i = 0; i < kNumbers / kSharing; ++i) {
      const int dimension = (first + i) / 8 * Pages::kValueStep + 8 * g + (first + i) % 8;
#pragma unroll
      for (int c = 0; c < kHeads; ++c) shared.o[warp][column_head(c)][dimension] = sums[c][i];
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      state.l += __shfl_xor_sync(kAllLanes, state.l, distance);
    }
    if (t == 0 && g < kGroup) shared.m[warp][g] = state.m, shared.l[warp][g] = state.l;
  }
};
