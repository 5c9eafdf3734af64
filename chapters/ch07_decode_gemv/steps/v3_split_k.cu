// v3: a row is cut into segments, one for each of up to four warps of a block. And W leaves the first-level cache
// alone.
//
//   grid    (groups of 2 rows of W / 4, rows of x)
//   block   (32 lanes of each segment, 4 groups)
//   warp    a segment of a group: of 2 rows of W the chunks segment, segment + segments, …
//   lane    as in v2
//
// Traffic: as in v2; 8 bytes of shared memory for each sum and segment.
//
// The idea: 1024 rows of 2048 or 3072 columns are 256 groups of v2, on 132 SMs not even two warps each, and the few
// loop over their chunks. Cut, the same bytes are asked for by four times as many warps, all at once. The segments are
// added in order by one warp: the same bits each time, which an atomic sum would not give.
#include "row_chunks.cuh"

namespace {

constexpr int kGroups = 4, kRows = 2, kMostSegments = 4;  // of a block, of a group, of a row

// --8<-- [start:kernel]
template <bool kNorm, bool kAligned, class Operands>
__global__ void __launch_bounds__(kGroups * kMostSegments * kWarpSize) split_k(Operands a) {
  using W = typename Operands::Weight;
  using X = typename Operands::Input;
  __shared__ SegmentSums<kRows, kGroups * kMostSegments> meeting;
  const int lane = threadIdx.x % kWarpSize;
  const int segment = threadIdx.x / kWarpSize, segments = blockDim.x / kWarpSize;
  const int group = blockIdx.x * kGroups + threadIdx.y, i = blockIdx.y;

  ChunkSums<kRows> sums;
  for (int chunk = segment; chunk * kChunkColumns < a.k; chunk += segments) {
    LaneChunk<W> rows[kRows], gain;
    load_chunk<kAligned, true>(rows, a, group, chunk, lane);
    const W* norm = a.norm_weight;
    if constexpr (kNorm) gain.template load<kAligned, false>(norm, chunk, a.k, lane);
    LaneChunk<X> x;
    x.template load<kAligned, false>(a.x_row(i), chunk, a.k, lane);
    sums.template add<kNorm>(rows, x, gain);
  }

  LaneSum sum = sums.template over_lanes<kNorm>(lane);
  const int warp = threadIdx.y * segments + segment;
  sum = meeting.over_segments(sum, warp, segment, segments, lane);
  if (segment > 0) return;
  const int to = column_of<kRows>(a, group, lane);
  const float value = kNorm ? sum.product * a.norm_scale(sum.squares) : sum.product;
  const float up = __shfl_down_sync(kAllLanes, value, 1);
  if (lane >= kRows || to >= a.columns || is_up(a, lane)) return;
  const float added = a.residual != nullptr ? a.residual_of(a.residual_bits(i, to)) : 0.0f;
  a.store(i, to, a.silu_mul ? a.silu(value) * up : value + added);
}
// --8<-- [end:kernel]

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    const int chunks = (a.k + kChunkColumns - 1) / kChunkColumns;
    const int segments = chunks < kMostSegments ? chunks : kMostSegments;
    const int of_block = kGroups * (a.silu_mul ? kRows / 2 : kRows);  // columns of out
    const dim3 grid(unsigned((a.columns + of_block - 1) / of_block), unsigned(a.batch));
    const dim3 block(unsigned(segments * kWarpSize), unsigned(kGroups));
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) {
      dispatch_switch(is_aligned(a), [&](auto aligned) {
        launch(split_k<norm.value, aligned.value, decltype(a)>, grid, block, 0, stream, a);
      });
    });
  });
}
