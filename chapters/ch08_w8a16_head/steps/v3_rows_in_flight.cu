// v3: 16 bytes an instruction, and four rows at once.
//
//   grid    (ceil(n / 32), batch) blocks
//   block   256 threads: 8 warps, four neighbouring rows of the weight each
//   lane    l owns columns 16 l … 16 l + 15, then those 512 further on, in each of the four rows
//
// Traffic: that of v1, in a quarter of the loads.
//
// The ideas: a lane asks for 64 bytes before it needs the first, where v1 and v2 ask for 4: so much more is on its way
// from memory while a warp waits. And what is loaded of x serves four rows.
#include <stdexcept>

#include "head_weights.cuh"
#include "number_types.cuh"
#include "operators.h"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kRows = 4;   // of the weight, of a warp
constexpr int kColumns = Int8Weight::kColumns;

// --8<-- [start:kernel]
template <class X, class Out, bool kAligned>
__global__ void w8a16_linear_kernel(Int8Weight weight, qwen::HeadInput input, Out* out) {
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y, k = weight.k;
  const int64_t row = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize) * kRows;
  const X* x = static_cast<const X*>(input.x) + i * input.x_stride;
  float sums[kRows] = {};
  for (int c = lane * kColumns; c < k; c += kWarpSize * kColumns) {
    Int8Weight::Loaded loaded[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      loaded[r] = weight.load<kAligned>(weight.place<kAligned>(min(row + r, weight.rows - 1), c), 0);
    }
    float dots[kRows] = {};
#pragma unroll
    for (int j = 0; j < kColumns / 4; ++j) {
      float of_x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = c + 4 * j + e;
        of_x[e] = kAligned || at < k ? to_float(x[at]) : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float w[4];
        Int8Weight::columns_of(loaded[r], j, w);
#pragma unroll
        for (int e = 0; e < 4; ++e) dots[r] += of_x[e] * w[e];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = Int8Weight::added(sums[r], dots[r], loaded[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0 && row + r < weight.rows) out[i * weight.rows + row + r] = from_float<Out>(sum);
  }
}
// --8<-- [end:kernel]

template <class X, class Out>
void launch_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  const Int8Weight weight(args.weight, args.input.k);
  const dim3 grid(unsigned((weight.rows - 1) / (kWarps * kRows) + 1), unsigned(args.input.batch));
  const auto kernel = weight.aligned() ? w8a16_linear_kernel<X, Out, true> : w8a16_linear_kernel<X, Out, false>;
  launch(kernel, grid, dim3(kWarps * kWarpSize), 0, stream, weight, args.input, static_cast<Out*>(args.out));
}

}  // namespace

void qwen_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  if (args.input.norm_weight != nullptr) throw std::runtime_error("v3 norms nothing: pass x normed.");
  dispatch_dtype(args.input.dtype, [&](auto zero) {
    using X = decltype(zero);
    if (args.out_dtype == qwen::Dtype::kFloat32) return launch_w8a16_linear<X, float>(args, stream);
    launch_w8a16_linear<X, X>(args, stream);
  });
}
