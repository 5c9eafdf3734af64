// v2: 16 bytes an instruction, and four rows of W a warp.
//
//   grid    (groups of 4 rows of W / 8, rows of x)
//   block   8 warps
//   warp    a group: 4 rows of W that are neighbours, with silu_mul 2 of gate and 2 of up
//   lane    of each chunk of 1024 columns 4 packs of 8, in all 4 rows
//
// Traffic: as before, every byte of W once for each row of x. But a lane now asks for 16 words of 16 bytes before it
// needs the first: a warp has 8 KiB on the way, and what it reads of x serves four rows.
//
// The idea: bytes in flight. 4.8 TB/s times 600 ns are 2.9 MB, 22 KB for each of 132 SMs, at any moment.
#include "row_chunks.cuh"

namespace {

constexpr int kWarps = 8, kRows = 4;

// --8<-- [start:kernel]
template <bool kNorm, bool kAligned, class Operands>
__global__ void __launch_bounds__(kWarps* kWarpSize) words_in_flight(Operands a) {
  using W = typename Operands::Weight;
  using X = typename Operands::Input;
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y;
  const int group = blockIdx.x * kWarps + threadIdx.x / kWarpSize;

  ChunkSums<kRows> sums;
  for (int chunk = 0; chunk * kChunkColumns < a.k; ++chunk) {
    LaneChunk<W> rows[kRows], gain;
    load_chunk<kAligned, false>(rows, a, group, chunk, lane);
    const W* norm = a.norm_weight;
    if constexpr (kNorm) gain.template load<kAligned, false>(norm, chunk, a.k, lane);
    LaneChunk<X> x;
    x.template load<kAligned, false>(a.x_row(i), chunk, a.k, lane);
    sums.template add<kNorm>(rows, x, gain);
  }

  // Lane r has the sum of row r.
  const LaneSum sum = sums.template over_lanes<kNorm>(lane);
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
    const int of_block = kWarps * (a.silu_mul ? kRows / 2 : kRows);  // columns of out
    const dim3 grid(unsigned((a.columns + of_block - 1) / of_block), unsigned(a.batch));
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) {
      dispatch_switch(is_aligned(a), [&](auto aligned) {
        const auto kernel = words_in_flight<norm.value, aligned.value, decltype(a)>;
        launch(kernel, grid, dim3(kWarps * kWarpSize), 0, stream, a);
      });
    });
  });
}
