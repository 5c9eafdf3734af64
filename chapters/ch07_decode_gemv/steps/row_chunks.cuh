// row_chunks.cuh: how steps v2 to v4 share out a row: in chunks of 1024 columns, of which a lane holds four packs of 8
// neighbours, 256 columns apart.
#pragma once

#include "lane_columns.cuh"
#include "linear_operands.cuh"

constexpr int kLanePacks = 4;
constexpr int kChunkColumns = kLanePacks * kSegmentColumns;

// What a lane holds of a chunk.
template <class T>
struct LaneChunk {
  LaneColumns<T> packs[kLanePacks];

  // Columns from `size` on are zeros, and so is a row that is not `present`.
  template <bool kAligned, bool kOnce>
  __device__ __forceinline__ void load(const T* row, int chunk, int size, int lane, bool present = true) {
#pragma unroll
    for (int j = 0; j < kLanePacks; ++j) {
      const int column = chunk * kChunkColumns + (j * kWarpSize + lane) * kLaneColumns;
      packs[j] = {};
      if (present && column < size) packs[j].template load<kAligned, kOnce>(row + column, size - column);
    }
  }
};

// A group of kRows rows of W serves neighbouring columns of out: with silu_mul half as many, by gate and up in turn.
template <int kRows, class Operands>
__device__ __forceinline__ int column_of(const Operands& a, int group, int r) {
  return a.silu_mul ? group * (kRows / 2) + r / 2 : group * kRows + r;
}
template <class Operands>
__device__ __forceinline__ bool is_up(const Operands& a, int r) {
  return a.silu_mul && r % 2 == 1;
}

// Rows of a group that have no column of out are zeros, and not read.
template <bool kAligned, bool kOnce, int kRows, class W, class X>
__device__ __forceinline__ void load_chunk(
    LaneChunk<W> (&rows)[kRows], const LinearOperands<W, X>& a, int group, int chunk, int lane) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int to = column_of<kRows>(a, group, r);
    const W* row = a.row(is_up(a, r) ? a.columns + to : to);
    rows[r].template load<kAligned, kOnce>(row, chunk, a.k, lane, to < a.columns);
  }
}

// Of lane r: the sum for row r of W, and the squares of x.
struct LaneSum {
  float product, squares;
};

// The sums that a warp makes of kRows rows of W and one row of x.
template <int kRows>
struct ChunkSums {
  float products[kRows] = {}, squares = 0.0f;

  template <bool kNorm, class W, class X>
  __device__ __forceinline__ void add(const LaneChunk<W> (&rows)[kRows],
                                      const LaneChunk<X>& x,
                                      const LaneChunk<W>& gain) {
#pragma unroll
    for (int j = 0; j < kLanePacks; ++j) {
      LaneInput values;
      squares += values.template set<kNorm>(x.packs[j], gain.packs[j]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) products[r] += values.dot(rows[r].packs[j]);
    }
  }

  template <bool kNorm>
  __device__ __forceinline__ LaneSum over_lanes(int lane) const {
    LaneSum mine = {0.0f, kNorm ? warp_sum(squares) : 0.0f};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(products[r]);
      if (lane == r) mine.product = sum;
    }
    return mine;
  }
};

// Where the warps that have the segments of a row meet.
template <int kRows, int kWarps>
struct SegmentSums {
  LaneSum sums[kWarps][kRows];

  // Called by every thread of the block, warp `segment` of `segments` neighbours. The first of them gets the whole,
  // added in order; the others what they gave.
  __device__ __forceinline__ LaneSum over_segments(LaneSum mine, int warp, int segment, int segments, int lane) {
    if (segment > 0 && lane < kRows) sums[warp][lane] = mine;
    __syncthreads();
    if (segment == 0 && lane < kRows) {
      for (int s = 1; s < segments; ++s) {
        mine.product += sums[warp + s][lane].product;
        mine.squares += sums[warp + s][lane].squares;
      }
    }
    return mine;
  }
};
