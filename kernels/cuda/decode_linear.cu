// decode_linear.cu: out = x W^T for the 1 to 8 rows of x that decoding has, with what stands before and after it: the
// norm of x, the sum with a residual, SiLU(gate) * up.
//
// Mapping   Thread (32 * segment + lane, group) of a block. A warp takes a group of kRows rows of W, and of those its
//           segment: chunks of 1024 columns, `segments` apart. A lane asks for all its 16-byte words of a chunk at
//           once. The segments of a group are warps of one block, and meet in shared memory.
// Order     A lane adds its packs in order, a butterfly adds the lanes, then the segments are added in order. Both cuts
//           depend on k alone: a row's bits are the same alone and in a batch, in any W, however x and W lie.
// Norm      1/rms is a factor of the finished sum, so that no warp waits for it: each adds the squares of its columns.
// Traffic   W once, n * k elements; x from the caches, for every warp. Two operations for each 2 bytes: memory decides.
// Contract  fp32 sums and one rounding. With prefetch, weight and norm_weight are read before grid_dependency_wait().
#include "linear_operands.cuh"
#include "row_sums.cuh"

namespace {

// What an H200 likes best: docs/experiments.md.
constexpr int kMostWarps = 16;    // of a block
constexpr int kMostSegments = 4;  // of a row
constexpr int kLongRows = 4;      // rows of W a warp where a row is one segment
constexpr int kCutRows = 2;       // where it is several
constexpr int kWaves = 2;         // of full blocks on all SMs, up to which a warp takes one group of rows
constexpr int kWalkRows = 2;      // rows a warp that goes from group to group, with as many in flight
constexpr int kWalkWarps = 8;     // of its block
constexpr int kWalkBlocks = 2;    // such blocks of an SM

// Rows [first, first + kBatch) of x, as far as there are so many: first is kBatch * blockIdx.y. Without kWalks each
// warp has one chunk of one group of rows, which is all that there is. With it, it goes on to the next chunk, and then
// by the whole grid to the next group, and asks for the next one before it works on this one.
// --8<-- [start:kernel]
template <int kRows, int kBatch, bool kNorm, bool kAligned, bool kWalks, class W, class X>
__global__ void __launch_bounds__((kWalks ? kWalkWarps : kMostWarps) * kWarpSize,
                                  (kWalks && kBatch == 1) ? kWalkBlocks : 0) multiply_rows(LinearOperands<W, X> a) {
  using Sums = RowSums<kRows, kBatch>;
  static_assert(Sums::kLanes <= kWarpSize && kRows % 2 == 0, "a lane for each sum, and gate and up in one group");
  __shared__ SegmentSums<Sums::kLanes, kWalks ? kWalkWarps : kMostWarps> meeting[kWalks ? 2 : 1];
  const int lane = threadIdx.x % kWarpSize, segment = threadIdx.x / kWarpSize, segments = blockDim.x / kWarpSize;
  const int warp = threadIdx.y * segments + segment, first = blockIdx.y * kBatch;
  const int mine = first + lane % kBatch;  // the row of x whose sum this lane gets
  grid_dependency_trigger();               // the next kernel may come in, and ask for its weights while we work
  if (!a.prefetch) grid_dependency_wait();

  int group = blockIdx.x * blockDim.y + threadIdx.y, chunk = segment, turn = 0;
  RowChunk<W, kRows> rows;
  load_rows<kAligned, true>(rows, a, group, chunk, lane);
  LaneColumns<W> gain;
  if constexpr (kNorm) gain.template load<kAligned, false>(a.norm_weight, chunk, a.k, lane);
  grid_dependency_wait();  // before it nothing is read that a kernel may have written

  Sums sums;
  LaneInput x;
  bool x_is_here = false;  // of one row of x; several are read again for each group of rows
  while (true) {
    const bool ends_row = !kWalks || (chunk + segments) * kChunkColumns >= a.k;
    const int next_group = ends_row ? group + gridDim.x * blockDim.y : group;
    const int next_chunk = ends_row ? segment : chunk + segments;
    const bool is_last = !kWalks || a.template column<kRows>(next_group - threadIdx.y, 0) >= a.columns;  // of the block
    RowChunk<W, kRows> next;
    if constexpr (kWalks) {
      if (!is_last) load_rows<kAligned, true>(next, a, next_group, next_chunk, lane);
    }
    // What the lane writes in the end, and adds then.
    const int r = lane / kBatch, to = a.template column<kRows>(group, r);
    const bool writes =
        ends_row && segment == 0 && lane < Sums::kLanes && mine < a.batch && to < a.columns && !a.is_up(r);
    const bool adds = writes && a.residual != nullptr;
    const unsigned residual = adds ? a.residual_bits(mine, to) : 0;

#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (kBatch > 1 || !x_is_here) {
        LaneColumns<X> raw;
        raw.template load<kAligned, false>(a.x_row(min(first + i, a.batch - 1)), chunk, a.k, lane);
        const float squares = x.template set<kNorm>(raw, gain);
        sums.squares[i] = chunk == segment ? squares : sums.squares[i] + squares;
      }
      sums.add(rows, x, i);
    }

    if (ends_row) {
      LaneSum sum = sums.template over_lanes<kNorm>(lane);
      if (segments > 1) sum = meeting[turn].over_segments(sum, warp, segment, segments, lane);
      const float scale = kNorm ? a.norm_scale(sum.squares) : 1.0f;
      const float value = fmaf(sum.product, scale, adds ? a.residual_of(residual) : 0.0f);
      const float up = __shfl_down_sync(kAllLanes, value, kBatch);
      if (writes) a.store(mine, to, a.silu_mul ? silu(value) * up : value);
    }
    if constexpr (!kWalks) {
      return;
    } else {
      if (is_last) return;
      if (ends_row) {
        sums.clear_products();
        turn ^= 1;  // the next rows meet elsewhere: who still reads is not disturbed
      }
      x_is_here = next_chunk == chunk;
      if (kNorm && !x_is_here) gain.template load<kAligned, false>(a.norm_weight, next_chunk, a.k, lane);
#pragma unroll
      for (int q = 0; q < kRows; ++q) rows[q] = next[q];
      group = next_group, chunk = next_chunk;
    }
  }
}
// --8<-- [end:kernel]

template <int kRows, int kBatch, bool kNorm, bool kAligned, bool kWalks, class W, class X>
void launch_rows(
    const LinearOperands<W, X>& a, int segments, int groups_of_block, int64_t blocks, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const dim3 grid(unsigned(blocks), unsigned((a.batch + kBatch - 1) / kBatch));
  const dim3 block(unsigned(segments * kWarpSize), unsigned(groups_of_block));
  launch(options, multiply_rows<kRows, kBatch, kNorm, kAligned, kWalks, W, X>, grid, block, 0, stream, a);
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Groups of `rows` rows of W.
template <class W, class X>
int64_t groups_of(const LinearOperands<W, X>& a, int rows) {
  return ceil_div(a.columns, a.silu_mul ? rows / 2 : rows);
}

template <int kBatch, bool kNorm, bool kAligned, class W, class X>
void walk(const LinearOperands<W, X>& a, int segments, cudaStream_t stream) {
  const int groups_of_block = kWalkWarps / segments;
  const int64_t blocks = ceil_div(groups_of(a, kWalkRows), groups_of_block);
  const int64_t most = int64_t(kWalkBlocks) * multiprocessors();
  launch_rows<kWalkRows, kBatch, kNorm, kAligned, true>(a, segments, groups_of_block, blocks < most ? blocks : most,
                                                        stream);
}

// One block an SM, as large as it need be. False, and nothing is launched, where that is not enough for W.
template <int kRows, bool kNorm, class W, class X>
bool launch_once(const LinearOperands<W, X>& a, int segments, cudaStream_t stream) {
  const int64_t sms = multiprocessors(), groups = groups_of(a, kRows), most = kMostWarps / segments;
  if (groups > kWaves * sms * most) return false;
  const int64_t share = ceil_div(groups, sms), groups_of_block = share < most ? share : most;
  launch_rows<kRows, 1, kNorm, true, false>(a, segments, int(groups_of_block), ceil_div(groups, groups_of_block),
                                            stream);
  return true;
}

// Only `segments` decides about the order of a sum, and it depends on k alone.
template <bool kNorm, class W, class X>
void choose(const LinearOperands<W, X>& a, cudaStream_t stream) {
  const int64_t chunks = ceil_div(a.k, kChunkColumns);
  const int segments = chunks < kMostSegments ? int(chunks) : kMostSegments;
  if (!is_aligned(a)) return walk<1, kNorm, false>(a, segments, stream);
  if (a.batch > 4) return walk<8, kNorm, true>(a, segments, stream);
  if (a.batch > 2) return walk<4, kNorm, true>(a, segments, stream);
  if (a.batch > 1) return walk<2, kNorm, true>(a, segments, stream);
  const bool launched = chunks > segments ? false
                        : segments > 1    ? launch_once<kCutRows, kNorm>(a, segments, stream)
                                          : launch_once<kLongRows, kNorm>(a, segments, stream);
  if (!launched) walk<1, kNorm, true>(a, segments, stream);
}

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) { choose<norm.value>(a, stream); });
  });
}
