// tile_rows.cuh: a warp's rows of W and rows of x as the operands of Tensor Cores (tensor_cores.cuh), for one segment
// of 256 columns.
//
// W    Lane 4 g + t has packs t, t + 4, ..., t + 28 of row g and, of 16 rows, of row g + 8. A pack is operand a as it
//      comes: its words 0 and 2 are row g of the tile, words 1 and 3 are row g + 8, so that all of a counts.
// x    Columns 2 p and 2 p + 1 of b are what the two pairs of words are multiplied by. d has the products in row g,
//      column 2 p, and in row g + 8, column 2 p + 1: one lane, and their sum is what is wanted.
// Cut  x in fp32 is two bf16 numbers, of 16 bits together, or three, of all 24. Each is a pair of columns of its own.
#pragma once

#include "lane_columns.cuh"
#include "linear_operands.cuh"
#include "tensor_cores.cuh"
#include "weight_parts.cuh"

// 16 bytes of a line of 128, the whole of which comes into the second-level cache: the other half is asked for next.
__device__ __forceinline__ uint4 load_of_line(const void* from) {
#ifdef __CUDACC__
  uint4 raw;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return raw;
#else
  return load_once(from);
#endif
}

template <int kRows, class W>
struct TileRows {
  static constexpr int kHalves = kRows / 8, kPacks = kSegmentColumns / 32, kLine = 2;  // packs of a line
  uint4 packs[kHalves][kPacks];

  // Row q of a group: its neighbours, with silu_mul half of them of gate and half of up, which serve the same columns
  // of out. Where a group has fewer rows its last one is read again, and that sum not stored.
  template <class X>
  static __device__ __forceinline__ const W* row_of(const LinearOperands<W, X>& a, int group, int q) {
    constexpr int kHalf = kRows / 2;
    if (!a.silu_mul) return a.row(min(group * kRows + q, a.columns - 1));
    return a.row(min(group * kHalf + q % kHalf, a.columns - 1) + q / kHalf * a.columns);
  }

  // A line of each row, and the next one when these are here. So few bytes are on their way that x, which the kernel
  // ahead needs, does not stand in a queue behind them.
  // --8<-- [start:load]
  template <bool kAligned, class X>
  __device__ __forceinline__ void load(const LinearOperands<W, X>& a, int group, int part, int lane) {
    const int g = lane / 4, first = part * kSegmentColumns + lane % 4 * 8;
    const W* from[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) from[h] = row_of(a, group, g + 8 * h) + first;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (j > 0 && j % kLine == 0) {
        unsigned here = 0;
#pragma unroll
        for (int i = 0; i < kHalves * kLine; ++i) {
          const uint4& last = packs[i / kLine][j - 1 - i % kLine];
          here |= last.x;
        }
#pragma unroll
        for (int h = 0; h < kHalves; ++h) from[h] += after(here);
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int left = a.k - first - 32 * j;
        packs[h][j] = make_uint4(0, 0, 0, 0);
        if (left > 0) packs[h][j] = load_pack_as<kAligned>(from[h] + 32 * j, left);
      }
    }
  }
  // --8<-- [end:load]
  template <bool kAligned>
  static __device__ __forceinline__ uint4 load_pack_as(const W* from, int left) {
    if constexpr (kAligned) return load_of_line(from);
    const Pack<W> pack = load_elements(from, left);
    return *reinterpret_cast<const uint4*>(&pack);
  }
};

// Segment `part` of the rows of x, in shared memory: kCut bf16 numbers for each of its own.
template <int kCut, class W>
struct TileInput {
  static constexpr int kStride = kSegmentColumns + 32;  // numbers; neighbours lie in other banks
  static constexpr int kSlots = kCut > 2 ? 4 : kCut;    // pairs of columns of b that a row has, of four in a tile
  static constexpr size_t kRowBytes = kCut * kStride * sizeof(W);
  W* first;

  // A lane leaves its 8 columns, times the gain of the norm where there is one, as words 0, 2, 1, 3. Returns the sum of
  // the squares of x, without the gain, for the norm.
  template <bool kNorm, class X>
  __device__ __forceinline__ float put(
      int row, int lane, const LaneColumns<X>& raw, const LaneColumns<W>& gain, bool counts) const {
    auto* to = reinterpret_cast<uint4*>(first + row * kCut * kStride + lane * kLaneColumns);
    if constexpr (kCut == 1) {
      const uint4 words = counts ? raw.words[0] : make_uint4(0, 0, 0, 0);
      *to = make_uint4(words.x, words.z, words.y, words.w);
      return 0.0f;
    } else {
      LaneInput own;
      const float squares = own.template set<kNorm>(raw, gain);
#pragma unroll
      for (int p = 0; p < kCut; ++p) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = counts ? pair(own.values[2 * i], own.values[2 * i + 1], p) : 0;
        to[p * kStride / kLaneColumns] = make_uint4(words[0], words[2], words[1], words[3]);
      }
      return counts ? squares : 0.0f;
    }
  }
  // Two numbers are cut into what is nearest, and what is nearest to the rest; three into 8 bits each.
  static __device__ __forceinline__ uint32_t pair(float x, float y, int p) {
    if constexpr (kCut > 2) return WeightParts<W>::pair(x, y, p);
    __nv_bfloat162 near = __floats2bfloat162_rn(x, y);
    if (p > 0) near = __floats2bfloat162_rn(x - __low2float(near), y - __high2float(near));
    return *reinterpret_cast<const uint32_t*>(&near);
  }

  // Where a lane finds its column of b of the tile that begins with row `first_row`. A slot that no number has is
  // somebody's: its sums are not used.
  __device__ __forceinline__ const W* column(int first_row, int rows, int lane) const {
    const int row = min(first_row + lane / 8 / kSlots, rows - 1), p = min(lane / 8 % kSlots, kCut - 1);
    return first + (row * kCut + p) * kStride + lane % 4 * 8 + lane / 4 % 2 * 4;
  }
};

// The sums of a warp's rows of W with the four slots of a tile, two side by side: of every other pack.
template <int kRows>
struct TileSums {
  float sums[kRows / 8][2][4] = {};

  // --8<-- [start:multiply]
  template <class W>
  __device__ __forceinline__ void multiply(const TileRows<kRows, W>& w, const W* column) {
#pragma unroll
    for (int j = 0; j < TileRows<kRows, W>::kPacks; ++j) {
      const uint2 b = *reinterpret_cast<const uint2*>(column + 32 * j);
#pragma unroll
      for (int h = 0; h < kRows / 8; ++h) {
        const uint4& pack = w.packs[h][j];
        mma_m16n8k16<W>(sums[h][j % 2], {pack.x, pack.y, pack.z, pack.w}, {b.x, b.y});
      }
    }
  }
  // --8<-- [end:multiply]

  // The product of row g + 8 h with row t / kSlots of those that the tile has of x, if t is a multiple of kSlots. All
  // lanes call it.
  template <int kSlots>
  __device__ __forceinline__ float product(int h, int lane) const {
    const float (&even)[4] = sums[h][0], (&odd)[4] = sums[h][1];
    float sum = (even[0] + odd[0]) + (even[3] + odd[3]);
    if (kSlots > 2 && lane % 4 == 3) sum = 0.0f;
#pragma unroll
    for (int distance = 1; distance < kSlots; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    return sum;
  }
};
