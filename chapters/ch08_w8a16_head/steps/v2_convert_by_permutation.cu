// v2: bytes become floats without a conversion.
//
//   grid, block, lane    as in v1
//
// Traffic: that of v1.
//
// The idea: a conversion from int takes a slower unit than an addition does, and one for each weight is one for each
// byte that memory delivers. The fp32 number 2^23 + u has u in its last bits. So a byte permutation puts the byte below
// the upper half of 2^23, and a subtraction leaves its value: both exact, both on fast units.
#include <stdexcept>

#include "number_types.cuh"
#include "operators.h"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8;  // of a block

// --8<-- [start:convert]
// q + 128 is the byte with its sign bit flipped. 2^23 + 128 is subtracted: integers that fp32 has.
__device__ __forceinline__ void bytes_to_floats(unsigned word, float (&q)[4]) {
  const unsigned biased = word ^ 0x80808080u;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    q[j] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 + j)) - 8388736.0f;
  }
}
// --8<-- [end:convert]

// Four bytes of a row: at once, or, where rows are not aligned, those that it still has one by one.
__device__ __forceinline__ unsigned load_word(const int8_t* from, int64_t left, bool aligned) {
  if (aligned) return *reinterpret_cast<const unsigned*>(from);
  unsigned word = 0;
  for (int j = 0; j < 4 && j < left; ++j) word |= unsigned(uint8_t(from[j])) << 8 * j;
  return word;
}

// --8<-- [start:kernel]
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
    float w[4];
    bytes_to_floats(word, w);
    for (int j = 0; j < 4 && j < k - c; ++j) dot += to_float(x[c + j]) * w[j];
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
  if (args.input.norm_weight != nullptr) throw std::runtime_error("v2 norms nothing: pass x normed.");
  dispatch_dtype(args.input.dtype, [&](auto zero) {
    using X = decltype(zero);
    if (args.out_dtype == qwen::Dtype::kFloat32) return launch_w8a16_linear<X, float>(args, stream);
    launch_w8a16_linear<X, X>(args, stream);
  });
}
