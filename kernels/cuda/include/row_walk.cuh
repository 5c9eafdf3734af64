// row_walk.cuh: one row of x against a W of so many rows that blocks had better stay: an output head.
//
// Mapping   Blocks stay, and their warps go by the whole grid from group to group of kWalkRows rows. A warp has them
//           alone, kWalkSegments segments of each at a time: 4 KB of neighbours, and no barrier. While it works on
//           these, the next ones are on their way. A short x stays in registers.
// Order     As of decode_linear.cu: lanes, then segments in order. A row's bits are those that it has in a batch.
#pragma once

#include "row_sums.cuh"

constexpr int kWalkRows = 2, kWalkSegments = 4;  // that a warp has at once
constexpr int kWalkWarps = 8, kWalkBlocks = 2;   // of a block, of an SM

// --8<-- [start:kernel]
template <bool kNorm, class W, class X>
__global__ void __launch_bounds__(kWalkWarps* kWarpSize, kWalkBlocks) walk_rows(LinearOperands<W, X> a) {
  constexpr int kSums = kWalkRows * kWalkSegments, kRowLanes = kWarpSize / kWalkRows;
  using Turn = LaneColumns<W>[kWalkRows][kWalkSegments];
  const int lane = threadIdx.x % kWarpSize, r = lane / kRowLanes;  // of the row whose sum this lane gets
  const int segments = (a.k + kSegmentColumns - 1) / kSegmentColumns;
  const int group_columns = a.silu_mul ? kWalkRows / 2 : kWalkRows;
  const bool is_up = a.silu_mul && r >= kWalkRows / 2;
  grid_dependency_trigger();
  if (!a.prefetch) grid_dependency_wait();

  int group = blockIdx.x * kWalkWarps + threadIdx.x / kWarpSize, first = 0;  // segment
  const auto column_of = [=](int segment) { return segment * kSegmentColumns + lane * kLaneColumns; };
  // Where a lane without columns reads: any that there are.
  const auto place_of = [=](int segment) { return min(column_of(segment), a.k - kLaneColumns); };
  // A group that has fewer rows reads its last one again.
  const auto load_turn = [&](Turn& rows, int of, int from) {
#pragma unroll
    for (int q = 0; q < kWalkRows; ++q) {
      const int to = min(of * group_columns + q % group_columns, a.columns - 1);
      const W* row = a.row(q < group_columns ? to : a.columns + to);
#pragma unroll
      for (int s = 0; s < kWalkSegments; ++s) {
        if (s == 0 || from + s < segments) {
          rows[q][s].template load<true, true>(row + place_of(from + s), kLaneColumns);
        }
      }
    }
  };

  LaneInput x[kWalkSegments];
  bool x_is_here = false;
  float squares[kWalkSegments] = {};
  RowSum sum = {0.0f, 0.0f};
  // Asks for the next turn's weights, works on those that are here, and goes on. False after the last turn.
  const auto do_turn = [&](const Turn& now, Turn& next) {
    const bool ends_row = first + kWalkSegments >= segments;
    const int next_group = (ends_row ? group + gridDim.x * kWalkWarps : group) + after(now[0][0].words[0].x);
    const int next_first = ends_row ? 0 : first + kWalkSegments;
    const bool more = next_group < (a.columns + group_columns - 1) / group_columns;
    if (more) load_turn(next, next_group, next_first);

    float products[kSums];
#pragma unroll
    for (int s = 0; s < kWalkSegments; ++s) {
      const bool counts = column_of(first + s) < a.k;
      if (!x_is_here && (s == 0 || first + s < segments)) {
        const int place = place_of(first + s);
        LaneColumns<X> raw;
        LaneColumns<W> gain;
        raw.template load<true, false>(a.x + place, kLaneColumns);
        if constexpr (kNorm) gain.template load<true, false>(a.norm_weight + place, kLaneColumns);
        squares[s] = x[s].template set<kNorm>(raw, gain);
      }
      if (!counts) squares[s] = 0.0f;
#pragma unroll
      for (int q = 0; q < kWalkRows; ++q) {
        products[q * kWalkSegments + s] = counts ? x[s].dot(now[q][s]) : 0.0f;
      }
    }
    // The column of out that this lane writes, and what it adds there.
    const int to = group * group_columns + (is_up ? r - kWalkRows / 2 : r);
    const bool writes = ends_row && lane % kRowLanes == 0 && to < a.columns && !is_up;
    const bool adds = writes && a.residual != nullptr;
    const unsigned residual = adds ? a.residual_bits(0, to) : 0;

    if (first == 0) sum.product = 0.0f;
    if (kNorm && first == 0 && !x_is_here) sum.squares = 0.0f;
    const float of_lane = warp_sums(products, lane);
#pragma unroll
    for (int s = 0; s < kWalkSegments; ++s) {
      sum.product += __shfl_sync(kAllLanes, of_lane, r * kRowLanes + s * (kWarpSize / kSums));
      if (kNorm && !x_is_here) sum.squares += warp_sum(squares[s]);
    }
    if (ends_row) finish_row<kNorm>(a, sum, 0, to, writes, adds, residual, kWarpSize / 2);
    x_is_here = next_first == first;
    group = next_group, first = next_first;
    return more;
  };

  Turn even, odd;  // by turns: none is ever copied
  const bool any = group * group_columns < a.columns;
  if (any) load_turn(even, group, 0);
  grid_dependency_wait();  // before it nothing is read that a kernel may have written
  while (any && do_turn(even, odd) && do_turn(odd, even)) {
  }
}
// --8<-- [end:kernel]

template <bool kNorm, class W, class X>
void launch_walk(const LinearOperands<W, X>& a, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const int64_t blocks = ceil_div(groups_of(a, kWalkRows), kWalkWarps), most = kWalkBlocks * multiprocessors();
  const dim3 grid(unsigned(blocks < most ? blocks : most)), block(kWalkWarps * kWarpSize);
  launch(options, walk_rows<kNorm, W, X>, grid, block, 0, stream, a);
}
