// row_sums.cuh: how a warp gets its segment of a few rows of W, where the warps that share rows meet, and what becomes
// of a finished sum.
#pragma once

#include "lane_columns.cuh"
#include "linear_operands.cuh"

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Of a row of W.
template <class W, class X>
int64_t segments_of(const LinearOperands<W, X>& a) {
  return ceil_div(a.k, kSegmentColumns);
}

// Groups of `rows` rows of W.
template <class W, class X>
int64_t groups_of(const LinearOperands<W, X>& a, int rows) {
  return ceil_div(a.columns, a.silu_mul ? rows / 2 : rows);
}

// A lane's columns of the rows of a group: kRows neighbours, with silu_mul half of them of gate and half of up, which
// serve the same columns of out. Where a group has fewer rows its last one is read again, and that sum not stored.
// --8<-- [start:load_rows]
template <bool kAligned, int kRows, class W, class X>
__device__ __forceinline__ void load_rows(LaneColumns<W> (&rows)[kRows],
                                          const LinearOperands<W, X>& a,
                                          int group,
                                          int column) {
  constexpr int kHalf = kRows / 2;
  const int first = min(group * (a.silu_mul ? kHalf : kRows), a.columns - 1);
  const unsigned last = a.columns - 1 - first;                                  // counted from the first
  const unsigned second = a.silu_mul ? a.columns : min(unsigned(kHalf), last);  // where the second half begins
  const unsigned last_of_second = a.silu_mul ? last : last - second;            // counted from there
  const unsigned row_bytes = unsigned(a.k) * unsigned(sizeof(W));
  const char* half = reinterpret_cast<const char*>(a.row(first) + column);
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    if (r == kHalf) half += uint64_t(second) * row_bytes;
    const unsigned at = r < kHalf ? min(r, last) : min(r - kHalf, last_of_second);
    rows[r].template load<kAligned, true>(reinterpret_cast<const W*>(half + uint64_t(at) * row_bytes), a.k - column);
  }
}
// --8<-- [end:load_rows]

// Of a row of x: its product with a row of W, and its squares.
struct RowSum {
  float product, squares;
};

// The sums of the segments that a block has at once, in shared memory.
// --8<-- [start:meeting]
template <int kWarps, int kSums, int kBatch>
struct Meeting {
  float products[kWarps][kSums], squares[kWarps][kBatch];

  // A lane whose number is a multiple of 32 / kCount has sum lane * kCount / 32, as
  // warp_sums() leaves it.
  template <int kCount>
  __device__ __forceinline__ static void put(float (&to)[kCount], float sum, int lane) {
    constexpr int kLanes = kWarpSize / kCount;
    if (lane % kLanes == 0) to[lane / kLanes] = sum;
  }

  // Adds the first `count` of the sums from warp `first` on to `sum`, in order. All are on
  // the way before the first is added. A zero changes no bit: no sum is -0, because none
  // begins with it.
  template <int kCount>
  __device__ __forceinline__ static float add(
      float sum, const float (&from)[kWarps][kCount], int first, int count, int i) {
    float sums[kWarps];
#pragma unroll
    for (int s = 0; s < kWarps; ++s) sums[s] = s < count ? from[first + s][i] : 0.0f;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) {
      if (s % 4 == 0 && s >= count) break;
      sum += sums[s];
    }
    return sum;
  }

  // Sum `at` of the `count` warps from `first` on and, for a norm, sum i of squares of the
  // first `count`. For the rows of Qwen3-0.6B the compiler knows how many: all wait together,
  // and nobody asks which are there.
  template <bool kNorm>
  __device__ __forceinline__ RowSum sums(int first, int count, int at, int i) const {
    const auto added = [&](int known) -> RowSum {
      return {add(0.0f, products, first, known, at), kNorm ? add(0.0f, squares, 0, known, i) : 0.0f};
    };
    if (count == 4) return added(4);
    if (count == 8) return added(8);
    if (count == 12) return added(12);
    return added(count);
  }
};
// --8<-- [end:meeting]

// The norm's factor, the residual, whose bits are those of row i where one is added, or SiLU(gate) * up, which the lane
// `up_lanes` further has; and one rounding. All lanes of the warp call it, and `writes` says whose sum counts.
template <bool kNorm, class W, class X>
__device__ __forceinline__ void finish_row(const LinearOperands<W, X>& a,
                                           const RowSum& sum,
                                           int i,
                                           int to,
                                           bool writes,
                                           bool adds,
                                           unsigned residual,
                                           int up_lanes) {
  const float scale = kNorm ? a.norm_scale(sum.squares) : 1.0f;
  const float value = fmaf(sum.product, scale, adds ? a.residual_of(residual) : 0.0f);
  const float up = __shfl_down_sync(kAllLanes, value, up_lanes);
  if (writes) a.store(i, to, a.silu_mul ? a.silu(value) * up : value);
}
