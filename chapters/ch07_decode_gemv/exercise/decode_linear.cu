// Exercise of chapter 7: x W^T and what stands around it, with three holes. README.md beside this file says how to go
// about it.
//
//   grid    (ceil(columns of out / 8), rows of x)
//   block   8 warps, one column of out each: one row of W, with silu_mul a row of gate and one of up
//   lane    a share of the columns of these rows
//
// Rows shorter than 64 columns, and those that cannot be read in packs, need hole 1; all others hole 2; a norm, a
// residual or silu_mul need hole 3 as well.
#include <stdexcept>
#include <string>

#include "linear_operands.cuh"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8;

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kElementsAreWritten = false;  // set it to true once they are

// Returns a lane's share of the product of a row of W and a row of x, both of k columns: the sum over the columns that
// are this lane's. x(c) is column c of x, in fp32. Neighbouring lanes shall read neighbouring elements. to_float widens
// an element of W.
template <class W, class Columns>
__device__ __forceinline__ float sum_of_elements(const W* row, int k, int lane, Columns x) {
  (void)row, (void)k, (void)lane, (void)x;  // write it here
  return 0.0f;
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kPacksAreWritten = false;  // set it to true once they are

// The same with load_pack of vector_load.cuh, which reads Pack<W>::kSize elements at once: k is a multiple of it, and
// the row begins at a multiple of 16 bytes. Which columns are a lane's now?
template <class W, class Columns>
__device__ __forceinline__ float sum_of_packs(const W* row, int k, int lane, Columns x) {
  (void)row, (void)k, (void)lane, (void)x;  // write it here
  return 0.0f;
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kFinishIsWritten = false;  // set it to true once it is

// Returns the number that is rounded and stored. product and up are finished sums over x * gain, up only with
// a.silu_mul; squares is the sum of the squares of x. Where a.norm_weight is not null both products still lack the
// factor a.norm_scale(squares). Then comes a.silu(gate) * up, or the residual where there is one:
// a.residual_of(a.residual_bits(i, to)) is its number in row i and column `to`.
template <class Operands>
__device__ __forceinline__ float finished(const Operands& a, float product, float up, float squares, int i, int to) {
  (void)up, (void)squares, (void)i, (void)to;  // write it here
  return product;
}

// ---- Given: the kernel, and from a call to it ----------------------------------------------------------------------
template <bool kPacks, class Operands>
__global__ void __launch_bounds__(kWarps* kWarpSize) multiply(Operands a) {
  const int lane = threadIdx.x % kWarpSize, i = blockIdx.y;
  const int to = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  if (to >= a.columns) return;
  const auto* row_of_x = a.x_row(i);
  const auto x = [&](int c) {
    return to_float(row_of_x[c]) * (a.norm_weight != nullptr ? to_float(a.norm_weight[c]) : 1.0f);
  };
  const auto product_with = [&](const auto* row) {
    return warp_sum(kPacks ? sum_of_packs(row, a.k, lane, x) : sum_of_elements(row, a.k, lane, x));
  };
  const float product = product_with(a.row(to));
  const float up = a.silu_mul ? product_with(a.row(a.columns + to)) : 0.0f;
  float squares = 0.0f;
  if (a.norm_weight != nullptr) {
    for (int c = lane; c < a.k; c += kWarpSize) squares += to_float(row_of_x[c]) * to_float(row_of_x[c]);
    squares = warp_sum(squares);
  }
  if (lane == 0) a.store(i, to, finished(a, product, up, squares, i, to));
}

void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 7, ") + hole +
                           " is not written yet: write it in chapters/ch07_decode_gemv/exercise/decode_linear.cu, then "
                           "set " +
                           flag + " to true.");
}

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    const bool packs = a.k >= 64 && is_aligned(a);
    need(packs || kElementsAreWritten, "hole 1 (sum_of_elements)", "kElementsAreWritten");
    need(!packs || kPacksAreWritten, "hole 2 (sum_of_packs)", "kPacksAreWritten");
    if (a.norm_weight != nullptr || a.residual != nullptr || a.silu_mul) {
      need(kFinishIsWritten, "hole 3 (finished)", "kFinishIsWritten");
    }
    const dim3 grid(unsigned((a.columns + kWarps - 1) / kWarps), unsigned(a.batch));
    const auto kernel = packs ? multiply<true, decltype(a)> : multiply<false, decltype(a)>;
    launch(kernel, grid, dim3(kWarps * kWarpSize), 0, stream, a);
  });
}
