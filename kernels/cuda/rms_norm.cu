// rms_norm.cu: out = weight * x / sqrt(mean(x^2) + eps) on each row, and the same of x + residual.
//
// Mapping   A row is cut into packs of 16 bytes; pack q belongs to lane q % 32. The warps of a row share out
//           q / 32, and each thread keeps its packs in registers: memory is read once.
// Order     Lane l adds the sums of its packs in the order of q, then a butterfly adds the lanes. That order does not
//           depend on the number of warps, on that of rows, or on alignment: a row gives the same bits everywhere.
// Traffic   rms_norm: x in, out out, 2 * rows * hidden elements. add_rms_norm: 4 * rows * hidden. Plus weight, once.
// Contract  fp32 arithmetic, one rounding for each output. The sum is normed before it is rounded. With kHf what
//           Hugging Face rounds on the way is rounded here too. out may be x, residual_out may be residual: an
//           element is written by the thread that read it, after the row's sum.
#include "operators.h"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

namespace {

constexpr int kMostThreads = 1024;  // of a block
constexpr int kRowsOfBlock = 4;     // where a warp has a row to itself

template <class T>
struct Matrix {  // [rows, hidden], rows `stride` elements apart
  T* data;
  int64_t stride;
  __device__ T* row(int64_t r) const { return data + r * stride; }
};

template <class T>
struct Operands {
  Matrix<const T> x, residual;  // residual.data is null for rms_norm
  const T* weight;
  Matrix<T> out, residual_out;
  int64_t rows;
  int hidden;
  float eps;
};

using Lanes = float[kWarpSize];

// The sum over a row of what each thread holds for its packs, the same in every thread.
// --8<-- [start:row_sum]
template <int kPacks>
__device__ __forceinline__ float row_sum(const float (&mine)[kPacks], int warps, Lanes* partial) {
  float sum = 0.0f;
  if (warps == 1) {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) sum += mine[j];
  } else {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) partial[j * warps + warp][lane] = mine[j];
    __syncthreads();
#pragma unroll 4
    for (int p = 0; p < kPacks * warps; ++p) sum += partial[p][lane];
  }
  return warp_sum(sum);
}
// --8<-- [end:row_sum]

// Block: (32 * warps of a row, rows). kMaxWarps bounds the warps of a row; with 1 a row needs no barrier, and a block
// takes several. kWeightFirst asks for the weight together with x: one trip to memory instead of two, which counts when
// there are few rows. With many, the weight is in the cache, and registers are better spent on more blocks.
// --8<-- [start:kernel]
template <class T, int kPacks, int kMaxWarps, bool kWeightFirst, bool kAdd, bool kAligned, bool kHf>
__global__ void __launch_bounds__(kMaxWarps == 1 ? kRowsOfBlock * kWarpSize : kMaxWarps * kWarpSize)
    norm_rows(Operands<T> a) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float partial[kMaxWarps == 1 ? 1 : kMaxWarps * kPacks][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps = kMaxWarps == 1 ? 1 : blockDim.x / kWarpSize;
  const int packs = (a.hidden + kSize - 1) / kSize;
  const int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  grid_dependency_trigger();  // the next kernel may be brought in now: it waits where we wait
  grid_dependency_wait();     // nothing is read before the kernel ahead of us has ended
  if (r >= a.rows) return;    // whole warps leave, and only where there is no barrier

  Pack<T> x[kPacks], residual[kPacks], weight[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int q = (j * warps + warp) * kWarpSize + lane;
    if (q >= packs) continue;
    x[j] = load_pack_of<kAligned>(a.x.row(r), q, a.hidden);
    if constexpr (kAdd) residual[j] = load_pack_of<kAligned>(a.residual.row(r), q, a.hidden);
    if constexpr (kWeightFirst) weight[j] = load_pack_of<kAligned>(a.weight, q, a.hidden);
  }

  float value[kPacks][kSize], square_sum[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    square_sum[j] = 0.0f;
    if ((j * warps + warp) * kWarpSize + lane >= packs) continue;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      value[j][k] = to_float(x[j].values[k]);
      if constexpr (kAdd) value[j][k] = intermediate<T, kHf>(value[j][k] + to_float(residual[j].values[k]));
      square_sum[j] += value[j][k] * value[j][k];
    }
  }
  const float mean = row_sum(square_sum, warps, partial) / static_cast<float>(a.hidden);
  const float scale = 1.0f / sqrtf(mean + a.eps);

#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int q = (j * warps + warp) * kWarpSize + lane;
    if (q >= packs) continue;
    if constexpr (!kWeightFirst) weight[j] = load_pack_of<kAligned>(a.weight, q, a.hidden);
    Pack<T> out, sum;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      out.values[k] = from_float<T>(intermediate<T, kHf>(value[j][k] * scale) * to_float(weight[j].values[k]));
      if constexpr (kAdd) sum.values[k] = from_float<T>(value[j][k]);
    }
    store_pack_of<kAligned>(a.out.row(r), q, a.hidden, out);
    if constexpr (kAdd) store_pack_of<kAligned>(a.residual_out.row(r), q, a.hidden, sum);
  }
}
// --8<-- [end:kernel]

// Rows that do not fit into the registers of a block: memory is read twice.
template <class T, bool kAdd, bool kAligned, bool kHf>
__global__ void __launch_bounds__(kMostThreads) norm_long_rows(Operands<T> a) {
  constexpr int kSize = Pack<T>::kSize, kWarps = kMostThreads / kWarpSize;
  __shared__ float partial[kWarps][kWarpSize];
  const int64_t r = blockIdx.x;
  const int packs = (a.hidden + kSize - 1) / kSize;
  grid_dependency_trigger();
  grid_dependency_wait();

  const auto value_of = [&](int q, float (&value)[kSize]) {
    const Pack<T> x = load_pack_of<kAligned>(a.x.row(r), q, a.hidden);
#pragma unroll
    for (int k = 0; k < kSize; ++k) value[k] = to_float(x.values[k]);
    if constexpr (kAdd) {
      const Pack<T> residual = load_pack_of<kAligned>(a.residual.row(r), q, a.hidden);
#pragma unroll
      for (int k = 0; k < kSize; ++k) value[k] = intermediate<T, kHf>(value[k] + to_float(residual.values[k]));
    }
  };

  float square_sum[1] = {0.0f}, value[kSize];
  for (int q = threadIdx.x; q < packs; q += kMostThreads) {
    value_of(q, value);
#pragma unroll
    for (int k = 0; k < kSize; ++k) square_sum[0] += value[k] * value[k];
  }
  const float mean = row_sum(square_sum, kWarps, partial) / static_cast<float>(a.hidden);
  const float scale = 1.0f / sqrtf(mean + a.eps);

  for (int q = threadIdx.x; q < packs; q += kMostThreads) {
    value_of(q, value);
    const Pack<T> weight = load_pack_of<kAligned>(a.weight, q, a.hidden);
    Pack<T> out, sum;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      out.values[k] = from_float<T>(intermediate<T, kHf>(value[k] * scale) * to_float(weight.values[k]));
      if constexpr (kAdd) sum.values[k] = from_float<T>(value[k]);
    }
    store_pack_of<kAligned>(a.out.row(r), q, a.hidden, out);
    if constexpr (kAdd) store_pack_of<kAligned>(a.residual_out.row(r), q, a.hidden, sum);
  }
}

template <class T>
void launch_rows(
    const Operands<T>& a, void (*kernel)(Operands<T>), int threads, int rows_of_block, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const int64_t blocks = (a.rows + rows_of_block - 1) / rows_of_block;
  launch(options, kernel, dim3(unsigned(blocks)), dim3(unsigned(threads), unsigned(rows_of_block)), 0, stream, a);
}

// With few rows only latency counts, and every lane takes one pack. With many, more loads in flight a thread pay, which
// add_rms_norm has anyway. The borders are measured on an H200: docs/experiments.md.
template <class T, bool kAdd, bool kAligned, bool kHf>
void choose(const Operands<T>& a, cudaStream_t stream) {
  const int packs = (a.hidden + Pack<T>::kSize - 1) / Pack<T>::kSize;
  const int lane_packs = (packs + kWarpSize - 1) / kWarpSize;  // of each lane, if one warp had the row
  if constexpr (!kAdd) {
    if (lane_packs <= 4 && a.rows > 4096) {
      return launch_rows<T>(a, norm_rows<T, 4, 1, true, kAdd, kAligned, kHf>, kWarpSize, kRowsOfBlock, stream);
    }
  }
  if (lane_packs <= 4 || (lane_packs <= 16 && (kAdd || a.rows < 1024))) {
    return launch_rows<T>(a, norm_rows<T, 1, 16, true, kAdd, kAligned, kHf>, lane_packs * kWarpSize, 1, stream);
  }
  if (lane_packs <= 64) {
    const int warps = (lane_packs + 1) / 2;
    return launch_rows<T>(a, norm_rows<T, 2, 32, false, kAdd, kAligned, kHf>, warps * kWarpSize, 1, stream);
  }
  launch_rows<T>(a, norm_long_rows<T, kAdd, kAligned, kHf>, kMostThreads, 1, stream);
}

template <class T, bool kAdd>
void norm(const Operands<T>& a, bool hf_rounding, cudaStream_t stream) {
  const bool aligned = a.hidden % Pack<T>::kSize == 0 && rows_are_aligned(a.x.data, a.x.stride) &&
                       rows_are_aligned(a.residual.data, a.residual.stride) && rows_are_aligned(a.weight, 0) &&
                       rows_are_aligned(a.out.data, a.out.stride) &&
                       rows_are_aligned(a.residual_out.data, a.residual_out.stride);
  dispatch_switch(aligned, [&](auto whole_packs) {
    dispatch_switch(hf_rounding, [&](auto hf) { choose<T, kAdd, whole_packs.value, hf.value>(a, stream); });
  });
}

}  // namespace

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    norm<T, false>({{static_cast<const T*>(args.x), args.x_stride},
                    {nullptr, 0},
                    static_cast<const T*>(args.weight),
                    {static_cast<T*>(args.out), args.out_stride},
                    {nullptr, 0},
                    args.rows,
                    static_cast<int>(args.hidden),
                    args.eps},
                   args.hf_rounding, stream);
  });
}

void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    norm<T, true>({{static_cast<const T*>(args.x), args.x_stride},
                   {static_cast<const T*>(args.residual), args.residual_stride},
                   static_cast<const T*>(args.weight),
                   {static_cast<T*>(args.out), args.out_stride},
                   {static_cast<T*>(args.residual_out), args.residual_out_stride},
                   args.rows,
                   static_cast<int>(args.hidden),
                   args.eps},
                  args.hf_rounding, stream);
  });
}
