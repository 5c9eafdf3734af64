// v1: a warp for each column of out. Its lanes take the columns of a row of W in turn.
//
//   grid    (ceil(columns / 8), rows of x)
//   block   8 warps
//   warp    one column of out: one row of W, with silu_mul two
//   lane    l owns columns l, l + 32, l + 64, … of the row and of x
//
// Traffic: a warp asks for 64 bytes of W at a time in bf16, and the next 64 have to wait until a multiply-add has used
// them up to the unrolling of the loop. Memory answers after some 600 ns, and few answers are on the way.
//
// The idea: the sum of a row needs 32 partial sums and one butterfly; no block, no shared memory. What stands around
// the product costs no launch: the norm's factor is known with the sum, and the sum is in a register.
#include "linear_operands.cuh"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8;

// --8<-- [start:kernel]
template <class Operands>
__global__ void __launch_bounds__(kWarps* kWarpSize) warp_per_row(Operands a) {
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y;
  const int to = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  if (to >= a.columns) return;
  const auto* x = a.x_row(i);
  const auto *row = a.row(to), *up_row = a.silu_mul ? a.row(a.columns + to) : row;

  float sum = 0.0f, up = 0.0f, squares = 0.0f;
  for (int c = lane; c < a.k; c += kWarpSize) {
    float value = to_float(x[c]);
    squares = fmaf(value, value, squares);
    if (a.norm_weight != nullptr) value *= to_float(a.norm_weight[c]);
    sum = fmaf(to_float(row[c]), value, sum);
    if (a.silu_mul) up = fmaf(to_float(up_row[c]), value, up);
  }

  const float scale = a.norm_weight != nullptr ? a.norm_scale(warp_sum(squares)) : 1.0f;
  sum = warp_sum(sum) * scale;
  if (a.silu_mul) sum = a.silu(sum) * (warp_sum(up) * scale);
  if (lane > 0) return;
  if (a.residual != nullptr) sum += a.residual_of(a.residual_bits(i, to));
  a.store(i, to, sum);
}
// --8<-- [end:kernel]

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    const dim3 grid(unsigned((a.columns + kWarps - 1) / kWarps), unsigned(a.batch));
    launch(warp_per_row<decltype(a)>, grid, dim3(kWarps * kWarpSize), 0, stream, a);
  });
}
