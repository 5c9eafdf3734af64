// v1: a warp for each row of the weight, four packed bytes a lane.
//
//   grid    (ceil(n / 8), batch) blocks
//   block   256 threads: 8 warps, a row of the weight each
//   lane    l owns columns 4 l … 4 l + 3, then those 128 further on: one word of qweight, four elements of x
//
// Traffic: n * k bytes of weights for each row of x, which the cache may have for the second; 4 * n * k / group of
// scales. A warp asks for 128 consecutive bytes with one instruction.
//
// The idea: integers stay in memory as they are, four to a word, and become floats in a register, where they are used.
// No table of 256 floats, no second copy of the weight. The scale is applied once for four products, in fp32.
#include <stdexcept>

#include "number_types.cuh"
#include "operators.h"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8;  // of a block

// --8<-- [start:kernel]
// Four bytes of a row: at once, or, where rows are not aligned, those that it still has one by one.
__device__ __forceinline__ unsigned load_word(const int8_t* from, int64_t left, bool aligned) {
  if (aligned) return *reinterpret_cast<const unsigned*>(from);
  unsigned word = 0;
  for (int j = 0; j < 4 && j < left; ++j) word |= unsigned(uint8_t(from[j])) << 8 * j;
  return word;
}

template <class X, class Out>
__global__ void w8a16_linear_kernel(qwen::W8A16Linear args, bool aligned) {
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (row >= args.weight.n) return;
  const int64_t k = args.input.k, group = args.weight.group;
  const int8_t* q = args.weight.qweight + row * k;
  const float* scales = args.weight.scales + row * (k / group);
  const X* x = static_cast<const X*>(args.input.x) + i * args.input.x_stride;
  float sum = 0.0f;
  for (int64_t c = lane * 4; c < k; c += kWarpSize * 4) {  // a group never ends inside a word
    const unsigned word = load_word(q + c, k - c, aligned);
    float dot = 0.0f;
    for (int j = 0; j < 4 && j < k - c; ++j) {
      dot += to_float(x[c + j]) * static_cast<float>(int8_t(word >> 8 * j));
    }
    sum += dot * scales[c / group];
  }
  sum = warp_sum(sum);
  if (lane == 0) static_cast<Out*>(args.out)[i * args.weight.n + row] = from_float<Out>(sum);
}
// --8<-- [end:kernel]

template <class X, class Out>
void launch_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  const bool aligned = args.input.k % 4 == 0 && reinterpret_cast<uintptr_t>(args.weight.qweight) % 4 == 0;
  const dim3 grid(unsigned((args.weight.n + kWarps - 1) / kWarps), unsigned(args.input.batch));
  launch(w8a16_linear_kernel<X, Out>, grid, dim3(kWarps * kWarpSize), 0, stream, args, aligned);
}

}  // namespace

void qwen_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  if (args.input.norm_weight != nullptr) throw std::runtime_error("v1 norms nothing: pass x normed.");
  dispatch_dtype(args.input.dtype, [&](auto zero) {
    using X = decltype(zero);
    if (args.out_dtype == qwen::Dtype::kFloat32) return launch_w8a16_linear<X, float>(args, stream);
    launch_w8a16_linear<X, X>(args, stream);
  });
}
