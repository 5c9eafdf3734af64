// Exercise of chapter 8: x . W^T for int8 weights, with three holes. README.md beside this file says how to go about
// it.
//
//   rows of up to 32 columns    a thread for each result; the loop is given                            hole 1
//   one scale for a row         a warp for each result, four bytes a lane                              holes 1 and 2
//   a scale for each group      a warp for each result, 16 bytes a lane                                holes 1 and 3
#include <stdexcept>
#include <string>

#include "number_types.cuh"
#include "operators.h"
#include "warp_reduce.cuh"

namespace {

constexpr int kThreads = 256;

// ---- Given: x, four bytes and 16 bytes of a row, a result ----------------------------------------------------------

// Column c of row i of x.
__device__ __forceinline__ float x_at(const qwen::HeadInput& in, int i, int64_t c) {
  const int64_t at = i * in.x_stride + c;
  if (in.dtype == qwen::Dtype::kFloat32) return static_cast<const float*>(in.x)[at];
  if (in.dtype == qwen::Dtype::kFloat16) return to_float(static_cast<const __half*>(in.x)[at]);
  return to_float(static_cast<const __nv_bfloat16*>(in.x)[at]);
}

// The next four bytes of a row, the first in the lowest bits; zeros where fewer than four are `left`.
__device__ __forceinline__ unsigned four_bytes(const int8_t* from, int64_t left) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) return *reinterpret_cast<const unsigned*>(from);
  unsigned word = 0;
  for (int j = 0; j < 4 && j < left; ++j) word |= unsigned(uint8_t(from[j])) << 8 * j;
  return word;
}

// 16 bytes, by one load where the address allows it: words x, y, z and w.
[[maybe_unused]] __device__ __forceinline__ uint4 sixteen_bytes(const int8_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return load_once(from);
  return make_uint4(four_bytes(from, 4), four_bytes(from + 4, 4), four_bytes(from + 8, 4), four_bytes(from + 12, 4));
}

__device__ __forceinline__ void store(const qwen::W8A16Linear& args, int64_t row, int i, float value) {
  const int64_t at = i * args.weight.n + row;
  if (args.out_dtype == qwen::Dtype::kFloat32) {
    static_cast<float*>(args.out)[at] = value;
  } else if (args.out_dtype == qwen::Dtype::kFloat16) {
    static_cast<__half*>(args.out)[at] = from_float<__half>(value);
  } else {
    static_cast<__nv_bfloat16*>(args.out)[at] = from_float<__nv_bfloat16>(value);
  }
}

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kConversionIsWritten = false;  // set it to true once it is

// The four bytes of `word`, the lowest first, as floats: each is a number from -128 to 127. Exactly, and in registers.
// A cast from int8_t will do. Can you do without a conversion? __byte_perm(word, 0x4b000000, 0x7440 + j) has byte j in
// its last bits, below 0x4b0000; as a float, by __uint_as_float, 0x4b000000 is 2^23.
__device__ __forceinline__ void bytes_to_floats(unsigned word, float (&q)[4]) {
  (void)word;
  for (int j = 0; j < 4; ++j) q[j] = 0.0f;  // write it here
}

// A thread for a result. It is complete, and shows where things lie: block (…, i) has row i of x.
__global__ void __launch_bounds__(kThreads) multiply_short_rows(qwen::W8A16Linear args) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x, k = args.input.k;
  if (row >= args.weight.n) return;
  float sum = 0.0f;
  for (int64_t c = 0; c < k; c += 4) {
    float q[4];
    bytes_to_floats(four_bytes(args.weight.qweight + row * k + c, k - c), q);
    for (int j = 0; j < 4 && j < k - c; ++j) sum += x_at(args.input, blockIdx.y, c + j) * q[j];
  }
  store(args, row, blockIdx.y, sum * args.weight.scales[row]);
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kRowIsWritten = false;  // set it to true once it is

// The product of a row of the weight, q[0 … k), with row i of x, by the 32 lanes of a warp, not yet scaled; lane 0 must
// return it. Neighbouring lanes shall take neighbouring words. Rows may end inside a word.
__device__ __forceinline__ float row_product(const int8_t* q, const qwen::HeadInput& in, int i, int lane) {
  (void)q, (void)in, (void)i, (void)lane;  // write it here
  return 0.0f;
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kGroupsAreWritten = false;  // set it to true once they are

// The same where each `group` columns have a scale of their own: the sum over groups of scale times product. A lane
// takes 16 bytes at a time; k is a multiple of 16, and group of 32. Multiply by the scale once for 16 columns.
__device__ __forceinline__ float grouped_product(
    const int8_t* q, const float* scales, int64_t group, const qwen::HeadInput& in, int i, int lane) {
  (void)q, (void)scales, (void)group, (void)in, (void)i, (void)lane;  // write it here
  return 0.0f;
}

// ---- Given: from a call to the kernel that serves it ---------------------------------------------------------------
__global__ void __launch_bounds__(kThreads) multiply_rows(qwen::W8A16Linear args) {
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= args.weight.n) return;
  const int64_t k = args.input.k, groups = k / args.weight.group;
  const int8_t* q = args.weight.qweight + row * k;
  const float* scales = args.weight.scales + row * groups;
  const float product = groups == 1 ? row_product(q, args.input, i, lane) * scales[0]
                                    : grouped_product(q, scales, args.weight.group, args.input, i, lane);
  if (lane == 0) store(args, row, i, product);
}

void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 8, ") + hole +
                           " is not written yet: write it in chapters/ch08_w8a16_head/exercise/w8a16_linear.cu, then "
                           "set " +
                           flag + " to true.");
}

}  // namespace

void qwen_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  if (args.input.norm_weight != nullptr) throw std::runtime_error("chapter 8's exercise norms nothing: pass x normed.");
  const int64_t groups = args.input.k / args.weight.group;
  const bool one_thread = args.input.k <= 32;

  need(kConversionIsWritten, "hole 1 (bytes_to_floats)", "kConversionIsWritten");
  if (!one_thread && groups == 1) need(kRowIsWritten, "hole 2 (row_product)", "kRowIsWritten");
  if (!one_thread && groups > 1) need(kGroupsAreWritten, "hole 3 (grouped_product)", "kGroupsAreWritten");
  const int64_t rows_of_block = one_thread ? kThreads : kThreads / kWarpSize;
  const dim3 grid(unsigned((args.weight.n - 1) / rows_of_block + 1), unsigned(args.input.batch));
  launch(one_thread ? multiply_short_rows : multiply_rows, grid, dim3(kThreads), 0, stream, args);
}
