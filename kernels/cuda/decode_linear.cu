// decode_linear.cu: out = x W^T for the 1 to 8 rows of x that decoding has, with what stands before and after it: the
// norm of x, the sum with a residual, SiLU(gate) * up.
//
// Mapping   Thread (32 * part + lane, group) of a block. A warp takes kRows rows of W and of those a segment of 256
//           columns, a lane 8 columns: kRows loads of 16 bytes, all on the way at once. `parts` warps of the block have
//           the segments of a group of rows; of more segments each takes every parts-th, turn by turn. One row of x and
//           a W of more rows than blocks should come and go for: row_walk.cuh.
// Order     A lane adds its products in order, a butterfly adds the lanes, then the segments are added in order. That
//           depends on k alone: a row's bits are the same alone and in a batch, in any W, however x and W lie.
// Norm      1/rms is a factor of the finished sum, so that no warp waits for it.
// Traffic   W once, n * k elements; x from the caches, for every warp. Two operations for each 2 bytes: memory decides.
// Contract  fp32 sums and one rounding. With prefetch, weight and norm_weight are read before grid_dependency_wait().
#include "row_walk.cuh"

namespace {

// Waves of blocks, whose warps have one group of rows each, before blocks that stay are better.
#ifdef __CUDACC__
constexpr int kWaves = 16;
#else
constexpr int kWaves = 1;  // so that a layer need not be large to be walked over
#endif
constexpr int kTurnWarps = 8;  // of a block that takes turns

// Of a block that does not.
template <int kRows>
constexpr int kMostWarps = kRows > 8 ? 12 : 16;

// What the compiler is told of a block's threads and of blocks on an SM. It then uses at most 96 registers for 16 rows
// and 64 for 8: gate and up leave room for the next kernel's blocks, whose weights come in while these are multiplied.
template <int kRows, bool kTurns>
constexpr int kThreads = (kTurns ? kTurnWarps : (kRows > 8 ? 20 : 16)) * kWarpSize;
template <int kRows, bool kTurns>
constexpr int kOnSm = kTurns ? 2 : (kRows > 8 ? 1 : 2);

// Rows [first, first + kBatch) of x, as far as there are so many: first is kBatch * blockIdx.y. Without kTurns a warp
// has one segment of a group of rows, and that is all.
// --8<-- [start:kernel]
template <int kRows, int kBatch, bool kNorm, bool kAligned, bool kTurns, class W, class X>
__global__ void __launch_bounds__(kThreads<kRows, kTurns>, kOnSm<kRows, kTurns>)
    multiply_segments(LinearOperands<W, X> a) {
  constexpr int kSums = kRows * kBatch, kWarps = kTurns ? kTurnWarps : kMostWarps<kRows>;
  constexpr int kReads = kBatch == 2 ? 2 : 1;  // rows of x at once
  __shared__ Meeting<kWarps, kSums, kBatch> meeting[kTurns ? 2 : 1];
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
    const bool is_last = !kTurns || left <= width;
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
      const int count = kTurns ? min(parts, segments) : parts;
      sum.product = here.add(sum.product, here.products, threadIdx.y * parts, count, lane);
      if (kNorm) sum.squares = here.add(sum.squares, here.squares, 0, count, lane % kBatch);
    }
    if (is_last && part == 0) {
      const float scale = kNorm ? a.norm_scale(sum.squares) : 1.0f;
      const float value = fmaf(sum.product, scale, adds ? a.residual_of(residual) : 0.0f);
      const float up = __shfl_down_sync(kAllLanes, value, kSums / 2);
      if (writes) a.store(i, to, a.silu_mul ? a.silu(value) * up : value);
    }
    if (is_last) return;
    turn ^= 1;  // the next segments meet elsewhere: who still reads is not disturbed
    column += width, left -= width;
    read_gain();
    load_rows<kAligned>(rows, a, group, place(column));
  }
}
// --8<-- [end:kernel]

template <int kRows, int kBatch, bool kNorm, bool kAligned, bool kTurns, class W, class X>
void launch_rows(const LinearOperands<W, X>& a, int64_t parts, int64_t groups, int64_t blocks, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const dim3 grid(unsigned(blocks), unsigned((a.batch + kBatch - 1) / kBatch));
  const dim3 block(unsigned(parts * kWarpSize), unsigned(groups));
  launch(options, multiply_segments<kRows, kBatch, kNorm, kAligned, kTurns, W, X>, grid, block, 0, stream, a);
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Groups of `rows` rows of W.
template <class W, class X>
int64_t groups_of(const LinearOperands<W, X>& a, int rows) {
  return ceil_div(a.columns, a.silu_mul ? rows / 2 : rows);
}

// Rows of W that the busiest of `places` gets, where each gets a group of `rows` in turn.
template <class W, class X>
int64_t busiest(const LinearOperands<W, X>& a, int rows, int64_t places) {
  return ceil_div(groups_of(a, rows), places) * rows;
}

// A block that takes turns has at most kTurnWarps warps, each as many segments of its rows as the others.
template <int kRows, int kBatch, bool kNorm, bool kAligned, class W, class X>
void launch_turns(const LinearOperands<W, X>& a, cudaStream_t stream) {
  const int64_t segments = ceil_div(a.k, kSegmentColumns), parts = ceil_div(segments, ceil_div(segments, kTurnWarps));
  const int64_t of_block = kTurnWarps / parts, blocks = ceil_div(groups_of(a, kRows), of_block);
  launch_rows<kRows, kBatch, kNorm, kAligned, true>(a, parts, of_block, blocks, stream);
}

// Blocks as large as they need be for one on each SM. False, and nothing is launched, where that makes too many waves.
template <int kRows, bool kNorm, class W, class X>
bool launch_once(const LinearOperands<W, X>& a, cudaStream_t stream) {
  const int64_t segments = ceil_div(a.k, kSegmentColumns), most = kMostWarps<kRows> / segments, sms = multiprocessors();
  const int64_t groups = groups_of(a, kRows);
  if (groups > kWaves * sms * most) return false;
  const int64_t share = ceil_div(groups, sms), of_block = share < most ? share : most;
  launch_rows<kRows, 1, kNorm, true, false>(a, segments, of_block, ceil_div(groups, of_block), stream);
  return true;
}

template <bool kNorm, class W, class X>
void choose(const LinearOperands<W, X>& a, cudaStream_t stream) {
  if (!is_aligned(a)) return launch_turns<4, 1, kNorm, false>(a, stream);
  if (a.batch > 4) return launch_turns<4, 8, kNorm, true>(a, stream);
  if (a.batch > 2) return launch_turns<4, 4, kNorm, true>(a, stream);
  if (a.batch > 1) return launch_turns<8, 2, kNorm, true>(a, stream);
  const int64_t sms = multiprocessors();
  const bool launched =
      busiest(a, 16, sms) <= busiest(a, 8, sms) ? launch_once<16, kNorm>(a, stream) : launch_once<8, kNorm>(a, stream);
  if (launched) return;
  const int64_t walkers = sms * kWalkBlocks * kWalkWarps;
  groups_of(a, kWalkRows) < walkers ? launch_turns<4, 1, kNorm, true>(a, stream) : launch_walk<kNorm>(a, stream);
}

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) { choose<norm.value>(a, stream); });
  });
}
