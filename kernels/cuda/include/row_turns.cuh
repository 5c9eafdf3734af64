// row_turns.cuh: out = x W^T without Tensor Cores, for what decode_linear.cu leaves: numbers that they do not take, and
// rows of more segments than a block has warps.
//
// Mapping   Thread (32 * part + lane, group) of a block. A warp takes kRows rows of W and of those a segment of 256
//           columns, a lane 8 columns: kRows loads of 16 bytes, all on the way at once. `parts` warps of the block have
//           the segments of a group of rows; of more segments each takes every parts-th, turn by turn.
// Order     A lane adds its products in order, a butterfly adds the lanes, then the segments are added in order.
#pragma once

#include "row_sums.cuh"

constexpr int kTurnWarps = 8;  // of a block

// Rows [first, first + kBatch) of x, as far as there are so many: first is kBatch * blockIdx.y.
// --8<-- [start:kernel]
template <int kRows, int kBatch, bool kNorm, bool kAligned, class W, class X>
__global__ void __launch_bounds__(kTurnWarps* kWarpSize, 2) multiply_in_turns(LinearOperands<W, X> a) {
  constexpr int kSums = kRows * kBatch;
  constexpr int kReads = kBatch == 2 ? 2 : 1;  // rows of x at once
  __shared__ Meeting<kTurnWarps, kSums, kBatch> meeting[2];
  const int lane = threadIdx.x % kWarpSize, first = kAligned ? 0 : blockIdx.y * kBatch;
  const int part = threadIdx.x / kWarpSize, parts = blockDim.x / kWarpSize;
  // The next kernel may come in, and ask for its weights while we work.
  grid_dependency_trigger();
  if (!a.prefetch) grid_dependency_wait();

  const int group = blockIdx.x * blockDim.y + threadIdx.y;
  int turn = 0, column = part * kSegmentColumns + lane * kLaneColumns;
  int left = a.k;  // columns from the first segment of this turn on
  // Where a lane without columns reads: any that there are.
  const int last_column = a.k - kLaneColumns;
  const auto place = [=](int from) { return kAligned ? min(from, last_column) : from; };
  LaneColumns<W> rows[kRows], gain;
  const auto read_gain = [&] {
    const W* from = a.norm_weight + place(column);
    if constexpr (kNorm) gain.template load<kAligned, false>(from, a.k - column);
  };
  load_rows<kAligned>(rows, a, group, place(column));
  read_gain();
  grid_dependency_wait();  // before it nothing is read that a kernel may have written

  // The row of W and of x whose sum this lane gets, the column of out where it ends, and what is added there.
  const int r = lane / kBatch, i = first + lane % kBatch;
  const bool is_up = a.silu_mul && r >= kRows / 2;
  const int to = group * (a.silu_mul ? kRows / 2 : kRows) + (is_up ? r - kRows / 2 : r);
  const bool is_mine = lane < kSums && i < a.batch && to < a.columns && !is_up;
  LaneInput x;
  float squares[kBatch] = {};
  RowSum sum = {0.0f, 0.0f};
  while (true) {
    const int width = parts * kSegmentColumns;  // of a turn
    const bool is_last = left <= width;
    LaneColumns<X> raw[kReads];
    const auto read_x = [&](int b) {
#pragma unroll
      for (int c = 0; c < kReads; ++c) {
        const int row = kBatch == 1 ? first : min(first + b + c, a.batch - 1);
        raw[c].template load<kAligned, false>(a.x_row(row) + place(column), a.k - column);
      }
    };
    read_x(0);
    const bool writes = is_last && part == 0 && is_mine;
    const bool adds = writes && a.residual != nullptr;
    const unsigned residual = adds ? a.residual_bits(i, to) : 0;

    const bool counts = column < a.k;
    float products[kSums];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (b % kReads == 0 && b > 0) read_x(b);
      squares[b] = x.template set<kNorm>(raw[b % kReads], gain);
      if (!counts) squares[b] = 0.0f;
#pragma unroll
      for (int q = 0; q < kRows; ++q) {
        products[q * kBatch + b] = counts ? x.dot(rows[q]) : 0.0f;
      }
    }

    auto& here = meeting[turn];
    here.put(here.products[threadIdx.y * parts + part], warp_sums(products, lane), lane);
    if (kNorm) {
      const float total = warp_sums(squares, lane);
      if (threadIdx.y == 0) here.put(here.squares[part], total, lane);
    }
    __syncthreads();
    if (part == 0 && lane < kSums) {
      const int segments = (left + kSegmentColumns - 1) / kSegmentColumns;
      const int count = min(parts, segments);
      sum.product = here.add(sum.product, here.products, threadIdx.y * parts, count, lane);
      if (kNorm) sum.squares = here.add(sum.squares, here.squares, 0, count, lane % kBatch);
    }
    if (is_last && part == 0) finish_row<kNorm>(a, sum, i, to, writes, adds, residual, kSums / 2);
    if (is_last) return;
    turn ^= 1;  // the next segments meet elsewhere: who still reads is not disturbed
    column += width, left -= width;
    read_gain();
    load_rows<kAligned>(rows, a, group, place(column));
  }
}
// --8<-- [end:kernel]

// Each warp of a block gets as many segments of its rows as the others.
template <int kRows, int kBatch, bool kNorm, bool kAligned, class W, class X>
void launch_turns(const LinearOperands<W, X>& a, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const int64_t segments = segments_of(a), parts = ceil_div(segments, ceil_div(segments, kTurnWarps));
  const int64_t groups = kTurnWarps / parts, blocks = ceil_div(groups_of(a, kRows), groups);
  const dim3 grid(unsigned(blocks), unsigned(ceil_div(a.batch, kBatch)));
  const dim3 block(unsigned(parts * kWarpSize), unsigned(groups));
  launch(options, multiply_in_turns<kRows, kBatch, kNorm, kAligned, W, X>, grid, block, 0, stream, a);
}
