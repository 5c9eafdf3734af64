// v4: W is asked for before the kernel ahead has ended; and a warp that has work left asks for it before it works.
//
//   grid    one block an SM where every warp then has one chunk of one group of rows; else two an SM, which walk
//   block   (32 lanes of each segment, groups): as many as that needs, up to 16 warps; 8 where they walk
//   warp    a segment of a group of 2 rows of W, or of 4 where a row is one chunk; a walk goes on by the whole grid
//   lane    as in v2
//
// Traffic: as in v3.
//
// The idea: memory should never wait for arithmetic, nor for a launch. Weights do not depend on the kernel ahead, so
// they are on their way while it still runs: only x has to be waited for. Within a kernel the next rows are.
#include "row_chunks.cuh"

namespace {

constexpr int kMostWarps = 16, kMostSegments = 4;  // of a block, of a row
constexpr int kLongRows = 4, kCutRows = 2;         // of a group: where a row is one segment, and where it is several
constexpr int kWalkRows = 2, kWalkWarps = 8, kWalkBlocks = 2;  // of a group, a block and an SM that walk

template <bool kWalks>
constexpr int kThreads = (kWalks ? kWalkWarps : kMostWarps) * kWarpSize;

// --8<-- [start:kernel]
template <int kRows, bool kNorm, bool kAligned, bool kWalks, class W, class X>
__global__ void __launch_bounds__(kThreads<kWalks>, kWalks ? kWalkBlocks : 1)
    weights_read_ahead(LinearOperands<W, X> a) {
  __shared__ SegmentSums<kRows, kWalks ? kWalkWarps : kMostWarps> meeting[2];
  const int lane = threadIdx.x % kWarpSize;
  const int segment = threadIdx.x / kWarpSize, segments = blockDim.x / kWarpSize;
  const int i = blockIdx.y;
  grid_dependency_trigger();
  if (!a.prefetch) grid_dependency_wait();
  int group = blockIdx.x * blockDim.y + threadIdx.y, chunk = segment, turn = 0;
  LaneChunk<W> rows[kRows];
  load_chunk<kAligned, true>(rows, a, group, chunk, lane);
  grid_dependency_wait();

  ChunkSums<kRows> sums;
  while (true) {
    const bool ends_row = !kWalks || (chunk + segments) * kChunkColumns >= a.k;
    const int next_group = ends_row ? group + gridDim.x * blockDim.y : group;
    const int next_chunk = ends_row ? segment : chunk + segments;
    const int next_of_block = next_group - threadIdx.y;
    const bool is_last = !kWalks || column_of<kRows>(a, next_of_block, 0) >= a.columns;
    LaneChunk<W> next[kRows], gain;
    if (!is_last) load_chunk<kAligned, true>(next, a, next_group, next_chunk, lane);

    const W* norm = a.norm_weight;
    if constexpr (kNorm) gain.template load<kAligned, false>(norm, chunk, a.k, lane);
    LaneChunk<X> x;
    x.template load<kAligned, false>(a.x_row(i), chunk, a.k, lane);
    sums.template add<kNorm>(rows, x, gain);
    if (ends_row) {
      LaneSum sum = sums.template over_lanes<kNorm>(lane);
      const int warp = threadIdx.y * segments + segment;
      auto& here = meeting[turn];
      if (segments > 1) sum = here.over_segments(sum, warp, segment, segments, lane);
      const int to = column_of<kRows>(a, group, lane);
      const float value = kNorm ? sum.product * a.norm_scale(sum.squares) : sum.product;
      const float up = __shfl_down_sync(kAllLanes, value, 1);
      if (segment == 0 && lane < kRows && to < a.columns && !is_up(a, lane)) {
        float added = 0.0f;
        if (a.residual != nullptr) added = a.residual_of(a.residual_bits(i, to));
        a.store(i, to, a.silu_mul ? a.silu(value) * up : value + added);
      }
      sums = {};
      turn ^= 1;  // the next rows meet elsewhere: who still reads is not disturbed
    }
    if constexpr (!kWalks) {
      return;
    } else {
      if (is_last) return;
#pragma unroll
      for (int r = 0; r < kRows; ++r) rows[r] = next[r];
      group = next_group, chunk = next_chunk;
    }
  }
}
// --8<-- [end:kernel]

template <int kRows, bool kNorm, bool kAligned, bool kWalks, class W, class X>
void launch_rows(const LinearOperands<W, X>& a, int segments, int groups, int blocks, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const dim3 grid{unsigned(blocks), unsigned(a.batch)}, block{unsigned(segments * kWarpSize), unsigned(groups)};
  launch(options, weights_read_ahead<kRows, kNorm, kAligned, kWalks, W, X>, grid, block, 0, stream, a);
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// One block an SM, or two waves of the largest. False, and nothing is launched, where that is not enough.
template <int kRows, bool kNorm, class W, class X>
bool launch_once(const LinearOperands<W, X>& a, int segments, cudaStream_t stream) {
  const int groups = ceil_div(a.columns, a.silu_mul ? kRows / 2 : kRows), most = kMostWarps / segments;
  if (groups / 2 > multiprocessors() * most) return false;
  const int share = ceil_div(groups, multiprocessors()), of_block = share < most ? share : most;
  launch_rows<kRows, kNorm, true, false>(a, segments, of_block, ceil_div(groups, of_block), stream);
  return true;
}

template <bool kNorm, bool kAligned, class W, class X>
void choose(const LinearOperands<W, X>& a, cudaStream_t stream) {
  const int chunks = ceil_div(a.k, kChunkColumns), segments = chunks < kMostSegments ? chunks : kMostSegments;
  if (kAligned && chunks == 1 && launch_once<kLongRows, kNorm>(a, segments, stream)) return;
  if (kAligned && chunks > 1 && chunks <= segments && launch_once<kCutRows, kNorm>(a, segments, stream)) return;
  const int of_block = kWalkWarps / segments, most = kWalkBlocks * multiprocessors();
  const int blocks = ceil_div(ceil_div(a.columns, a.silu_mul ? kWalkRows / 2 : kWalkRows), of_block);
  launch_rows<kWalkRows, kNorm, kAligned, true>(a, segments, of_block, blocks < most ? blocks : most, stream);
}

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) {
      dispatch_switch(is_aligned(a), [&](auto aligned) { choose<norm.value, aligned.value>(a, stream); });
    });
  });
}
