// head_rows.cuh: up to 8 rows of x against every row of a weight that has many: the output head of a model.
//
// Mapping   As many blocks as the SMs hold at once walk over the rows. A warp takes a few neighbouring rows at a time
//           and a lane, in a step, 16 bytes of each: 512 columns of int8 or 256 of bf16. While it works on some steps,
//           the next ones' loads are in flight, over the ends of rows too. x lies in shared memory: head_input.cuh.
// Order     A lane sums its columns of a step, then the steps, then a butterfly adds the lanes: the same for any batch,
//           any number of blocks and any alignment, so a row of x gives the same bits in any company.
// Traffic   The weight once, whatever the batch is.
#pragma once

#include "head_input.cuh"
#include "head_weights.cuh"

// What registers leave room for: rows of the weight and steps of each that a warp has in flight, and blocks on an SM.
// With one row of x these are whole rows of 1024 columns, in a line in memory; with more, sums take the registers.
template <int kBatch>
constexpr int kHeadRows = kBatch == 1 ? 2 : 4;
template <class Weight, int kBatch, bool kAligned>
constexpr int kHeadSteps = kBatch == 1 && kAligned ? Weight::kSteps : 1;
template <class Weight, int kBatch>
constexpr int kHeadBlocks = kBatch == 1 ? Weight::kBlocks : (kBatch <= 4 ? 2 : 1);

// Calls take(r, i, logit, first) for each row r of the weight and each row i of x, some of them more than once: `first`
// tells one of these. All lanes call it, each for a row that its warp has just finished.
// --8<-- [start:walk]
template <class Weight, int kBatch, bool kAligned, class Take>
__device__ __forceinline__ void walk_rows(const Weight& weight, const qwen::HeadInput& in, Take take) {
  constexpr int kColumns = Weight::kColumns, kStep = kWarpSize * kColumns;
  constexpr int kRows = kHeadRows<kBatch>, kSteps = kHeadSteps<Weight, kBatch, kAligned>;
  constexpr int kSums = kRows * kBatch, kLanesOfSum = kWarpSize / kSums;
  using Turn = typename Weight::Loaded[kSteps][kRows];
  float* const shared = dynamic_shared<float>();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int steps = (weight.k + kStep - 1) / kStep;
  const unsigned rows = unsigned(weight.rows), stride = gridDim.x * kHeadWarps * kRows;
  unsigned row = (blockIdx.x * kHeadWarps + warp) * kRows;  // the first that is this warp's
  int step = 0;
  // Where its rows begin: the last warp's have others before them, where there are so many.
  const auto begin_of = [=](unsigned from) { return min(from, rows < kRows ? 0 : rows - kRows); };
  const auto load_turn = [&](Turn& to, unsigned from, int first) {
    typename Weight::Place places[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      places[s] = weight.template place<kAligned>(begin_of(from), (first + s) * kStep + lane * kColumns);
    }
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (s == 0 || first + s < steps) to[s][r] = weight.template load<kAligned>(places[s], min(r, rows - 1));
      }
    }
  };

  float sums[kSums] = {};  // of row r and row i of x: [r * kBatch + i]
  const auto add_step = [&](const typename Weight::Loaded(&loaded)[kRows], int at_step) {
    if (at_step * kStep + lane * kColumns >= weight.k) return;  // this lane has no columns
    float dots[kSums] = {};
#pragma unroll
    for (int j = 0; j < kColumns / 4; ++j) {
      float w[kRows][4];
#pragma unroll
      for (int r = 0; r < kRows; ++r) Weight::columns_of(loaded[r], j, w[r]);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = (i * steps + at_step) * (kColumns / 4) + j;
        const float4 x = reinterpret_cast<const float4*>(shared)[at * kWarpSize + lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& dot = dots[r * kBatch + i];
          dot = fmaf(x.w, w[r][3], fmaf(x.z, w[r][2], fmaf(x.y, w[r][1], fmaf(x.x, w[r][0], dot))));
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = Weight::added(sums[s], dots[s], loaded[s / kBatch]);
  };

  // Asks for the next turn's weights, works on those that are here, and goes on. False after the last turn.
  const auto do_turn = [&](const Turn& now, Turn& next) {
    const bool ends_rows = step + kSteps >= steps;
    const unsigned next_row = (ends_rows ? row + stride : row) + after(now[0][0].raw.x);
    const int next_step = ends_rows ? 0 : step + kSteps;
    const bool more = next_row < rows;
    if (more) load_turn(next, next_row, next_step);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s > 0 && step + s >= steps) break;
      add_step(now[s], step + s);
    }
    if (ends_rows) {
      const float total = warp_sums(sums, lane);
      const unsigned s = lane / kLanesOfSum, r = s / kBatch, of = begin_of(row) + min(r, rows - 1);
      take(of, s % kBatch, total, lane % kLanesOfSum == 0 && r < rows && of >= row);
#pragma unroll
      for (int q = 0; q < kSums; ++q) sums[q] = 0.0f;
    }
    row = next_row, step = next_step;
    return more;
  };

  Turn even, odd;  // by turns: none is ever copied
  const bool any = row < rows;
  grid_dependency_trigger();
  if (!in.prefetch) grid_dependency_wait();
  if (any) load_turn(even, row, 0);
  if (in.prefetch) grid_dependency_wait();  // weights may be read early; x may not
  load_input<kColumns, kBatch>(in, shared);
  while (any && do_turn(even, odd) && do_turn(odd, even)) {
  }
}
// --8<-- [end:walk]

// The bytes of x in shared memory, and the blocks of a launch.
template <class Weight>
int64_t head_shared_bytes(const Weight& weight, int batch) {
  return int64_t(batch) * padded_columns<Weight::kColumns>(weight.k) * int64_t(sizeof(float));
}
template <int kBatch, class Weight>
unsigned head_blocks(const Weight& weight) {
  constexpr int kRows = kHeadWarps * kHeadRows<kBatch>;  // of a block
  const int64_t needed = (weight.rows - 1) / kRows + 1;
  const int64_t held = int64_t(multiprocessors()) * kHeadBlocks<Weight, kBatch>;
  return unsigned(needed < held ? needed : held);
}

// Calls f(first, rows, batch, aligned) for as many rows of x at a time as shared memory has room for: all of them,
// unless rows are long, and one where W is not aligned. `batch` is a constant: rows, rounded up to 1, 2, 4 or 8.
template <class Weight, class F>
void for_batches(const Weight& weight, int64_t batch, F f) {
  int most = weight.aligned() ? 8 : 1;
  while (most > 1 && head_shared_bytes(weight, most) > most_shared_bytes() - 1024) most /= 2;  // static memory too
  for (int64_t first = 0; first < batch; first += most) {
    const int64_t rows = batch - first < most ? batch - first : most;
    using std::integral_constant;
    if (!weight.aligned()) {
      f(first, rows, integral_constant<int, 1>{}, std::false_type{});
    } else if (rows == 1) {
      f(first, rows, integral_constant<int, 1>{}, std::true_type{});
    } else if (rows == 2) {
      f(first, rows, integral_constant<int, 2>{}, std::true_type{});
    } else if (rows <= 4) {
      f(first, rows, integral_constant<int, 4>{}, std::true_type{});
    } else {
      f(first, rows, integral_constant<int, 8>{}, std::true_type{});
    }
  }
}

// Rows [first, first + rows) of x.
inline qwen::HeadInput input_rows(qwen::HeadInput input, int64_t first, int64_t rows) {
  const int64_t size = input.dtype == qwen::Dtype::kFloat32 ? 4 : 2;
  input.x = static_cast<const char*>(input.x) + first * input.x_stride * size;
  input.batch = rows;
  return input;
}
