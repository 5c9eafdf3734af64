// row_sums.cuh: the sums that a warp makes of a few rows of W and the rows of x.
#pragma once

#include "lane_columns.cuh"

// A warp's chunk of neighbouring rows of W.
template <class W, int kRows>
using RowChunk = LaneColumns<W>[kRows];

// Rows of a group that have no column of out are zeros, and not read.
template <bool kAligned, bool kOnce, int kRows, class Operands>
__device__ __forceinline__ void load_rows(
    LaneColumns<typename Operands::Weight> (&rows)[kRows], const Operands& a, int group, int chunk, int lane) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int to = a.template column<kRows>(group, r);
    rows[r].template load<kAligned, kOnce>(a.row(to, r), chunk, a.k, lane, to < a.columns);
  }
}

// Of lane r * kBatch + i: the sum for row r of W and row i of x, and the squares of that row of x.
struct LaneSum {
  float product, squares;
};

template <int kRows, int kBatch>
struct RowSums {
  static constexpr int kLanes = kRows * kBatch;  // that have a sum
  float products[kRows][kBatch] = {};
  float squares[kBatch] = {};  // as of all rows of W

  __device__ __forceinline__ void clear_products() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) products[r][i] = 0.0f;
    }
  }

  template <class W>
  __device__ __forceinline__ void add(const RowChunk<W, kRows>& rows, const LaneInput& x, int i) {
#pragma unroll
    for (int j = 0; j < kLanePacks; ++j) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) products[r][i] += x.dot(rows[r], j);
    }
  }

  template <bool kNorm>
  __device__ __forceinline__ LaneSum over_lanes(int lane) const {
    LaneSum mine = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if constexpr (kNorm) {
        const float sum = warp_sum(squares[i]);
        if (lane % kBatch == i) mine.squares = sum;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(products[r][i]);
        if (lane == r * kBatch + i) mine.product = sum;
      }
    }
    return mine;
  }
};

// Where the warps that have the segments of a row meet.
template <int kLanes, int kWarps>
struct SegmentSums {
  LaneSum sums[kWarps][kLanes];

  // Called by every thread of the block, warp `segment` of `segments` neighbours. The first of them gets the whole,
  // added in order; the others what they gave.
  __device__ __forceinline__ LaneSum over_segments(LaneSum mine, int warp, int segment, int segments, int lane) {
    if (segment > 0 && lane < kLanes) sums[warp][lane] = mine;
    __syncthreads();
    if (segment == 0 && lane < kLanes) {
      for (int s = 1; s < segments; ++s) {
        mine.product += sums[warp + s][lane].product;
        mine.squares += sums[warp + s][lane].squares;
      }
    }
    return mine;
  }
};
