// head_rows.cuh: up to 8 rows of x against every row of a weight that has many: the output head of a model.
//
// Mapping   As many blocks as the SMs hold at once walk over the rows. A warp takes four neighbouring rows at a time, a
//           lane 16 bytes of each: 512 columns of int8 or 256 of bf16 in a step. While a step is computed, the next
//           one's loads are in flight, over the ends of rows too. x lies in shared memory, as fp32, normed once.
// Order     A lane sums its columns of a step, then the steps, then a butterfly adds the lanes: the same for any batch,
//           any number of blocks and any alignment, so a row of x gives the same bits in any company.
// Traffic   The weight once, whatever the batch is.
#pragma once

#include "head_weights.cuh"
#include "warp_reduce.cuh"

constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / kWarpSize;
constexpr int kHeadRows = 4;  // of the weight that a warp has in flight

// What registers leave room for.
constexpr int head_blocks_of_sm(int batch) {
  return batch == 1 ? 3 : batch <= 4 ? 2 : 1;
}

// Columns are shared out so that a lane finds its own in shared memory four at a time, its neighbours beside them.
template <int kColumns>
__host__ __device__ constexpr int padded_columns(int k) {
  return (k + kWarpSize * kColumns - 1) / (kWarpSize * kColumns) * (kWarpSize * kColumns);
}
template <int kColumns>
__device__ __forceinline__ int place_of_column(int c) {
  const int step = c / (kWarpSize * kColumns), lane = c / kColumns % kWarpSize, i = c % kColumns;
  return ((step * (kColumns / 4) + i / 4) * kWarpSize + lane) * 4 + i % 4;
}

__device__ __forceinline__ float number_at(const void* data, qwen::Dtype dtype, int64_t i) {
  if (dtype == qwen::Dtype::kFloat32) return static_cast<const float*>(data)[i];
  if (dtype == qwen::Dtype::kFloat16) return to_float(static_cast<const __half*>(data)[i]);
  return to_float(static_cast<const __nv_bfloat16*>(data)[i]);
}

// Fills x: [kBatch, padded_columns(k)]; what is beyond the batch or beyond k is 0. Ends with a barrier.
// --8<-- [start:input]
template <int kColumns, int kBatch>
__device__ __forceinline__ void load_input(const qwen::HeadInput& in, float* x) {
  __shared__ float squares[kBatch][kHeadWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int k = int(in.k), padded = padded_columns<kColumns>(k);
  for (int i = 0; i < kBatch; ++i) {
    float sum = 0.0f;
    for (int c = threadIdx.x; c < padded; c += kHeadThreads) {
      const float value = i < in.batch && c < k ? number_at(in.x, in.dtype, i * in.x_stride + c) : 0.0f;
      x[i * padded + place_of_column<kColumns>(c)] = value;
      sum = fmaf(value, value, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[i][warp] = sum;
  }
  __syncthreads();
  if (in.norm_weight == nullptr) return;
  for (int i = 0; i < kBatch; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kHeadWarps; ++w) sum += squares[i][w];
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(k) + in.eps);
    for (int c = threadIdx.x; c < k; c += kHeadThreads) {  // each thread goes over what it wrote
      float& value = x[i * padded + place_of_column<kColumns>(c)];
      value = value * factor * number_at(in.norm_weight, in.norm_dtype, c);
    }
  }
  __syncthreads();
}
// --8<-- [end:input]

// Calls take(r, i, logit) for each row r of the weight and each row i of x. All lanes call it, each for the last row
// that its warp has finished, some for the same one: `first` tells which of those.
// --8<-- [start:walk]
template <class Weight, int kBatch, bool kAligned, class Take>
__device__ __forceinline__ void walk_rows(const Weight& weight, const qwen::HeadInput& in, Take take) {
  constexpr int kColumns = Weight::kColumns, kStep = kWarpSize * kColumns;
  constexpr int kSums = kHeadRows * kBatch, kLanesOfSum = kWarpSize / kSums;
  float* const shared = dynamic_shared<float>();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int steps = (weight.k + kStep - 1) / kStep;
  const int64_t stride = int64_t(gridDim.x) * kHeadWarps * kHeadRows;
  int64_t row = (int64_t(blockIdx.x) * kHeadWarps + warp) * kHeadRows;

  typename Weight::Loaded now[kHeadRows], next[kHeadRows];
  const auto load_next = [&](int64_t from, int step) {
    const int column = step * kStep + lane * kColumns;
#pragma unroll
    for (int r = 0; r < kHeadRows; ++r) {
      next[r] = weight.template load<kAligned>(from + r, column, from + r < weight.rows && column < weight.k);
    }
  };
  grid_dependency_trigger();
  if (!in.prefetch) grid_dependency_wait();
  load_next(row, 0);
  if (in.prefetch) grid_dependency_wait();  // weights may be read early; x may not
  load_input<kColumns, kBatch>(in, shared);

  for (; row < weight.rows; row += stride) {
    float sums[kSums] = {};  // of row r and row i of x: [r * kBatch + i]
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) now[r] = next[r];
      const bool last = step + 1 == steps;
      load_next(last ? row + stride : row, last ? 0 : step + 1);
      float dots[kSums] = {};
#pragma unroll
      for (int j = 0; j < kColumns / 4; ++j) {
        float w[kHeadRows][4];
#pragma unroll
        for (int r = 0; r < kHeadRows; ++r) Weight::columns_of(now[r], j, w[r]);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int at = (i * steps + step) * (kColumns / 4) + j;
          const float4 x = reinterpret_cast<const float4*>(shared)[at * kWarpSize + lane];
#pragma unroll
          for (int r = 0; r < kHeadRows; ++r) {
            float& dot = dots[r * kBatch + i];
            dot = fmaf(x.w, w[r][3], fmaf(x.z, w[r][2], fmaf(x.y, w[r][1], fmaf(x.x, w[r][0], dot))));
          }
        }
      }
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] = Weight::added(sums[s], dots[s], now[s / kBatch]);
    }
    const float total = warp_sums(sums, lane);
    const int s = lane / kLanesOfSum;
    take(row + s / kBatch, s % kBatch, total, lane % kLanesOfSum == 0);
  }
}
// --8<-- [end:walk]

// The bytes of x in shared memory, and the blocks of a launch.
template <class Weight>
int64_t head_shared_bytes(const Weight& weight, int batch) {
  return int64_t(batch) * padded_columns<Weight::kColumns>(weight.k) * int64_t(sizeof(float));
}
template <class Weight>
unsigned head_blocks(const Weight& weight, int batch) {
  const int64_t needed = (weight.rows - 1) / (kHeadWarps * kHeadRows) + 1;
  const int64_t held = int64_t(multiprocessors()) * head_blocks_of_sm(batch);
  return unsigned(needed < held ? needed : held);
}

// Calls f(first, rows, batch, aligned) for as many rows of x at a time as shared memory has room for: all of them,
// unless rows are long, and one where W is not aligned. `batch` is a constant: rows, rounded up to 1, 2, 4 or 8.
template <class Weight, class F>
void for_batches(const Weight& weight, int64_t batch, F f) {
  int most = weight.aligned() ? 8 : 1;
  while (most > 1 && head_shared_bytes(weight, most) > most_shared_bytes() - 1024) most /= 2;  // static memory too
  for (int64_t first = 0; first < batch; first += most) {
    const int64_t rows = batch - first < most ? batch - first : most;
    using std::integral_constant;
    if (!weight.aligned()) {
      f(first, rows, integral_constant<int, 1>{}, std::false_type{});
    } else if (rows == 1) {
      f(first, rows, integral_constant<int, 1>{}, std::true_type{});
    } else if (rows == 2) {
      f(first, rows, integral_constant<int, 2>{}, std::true_type{});
    } else if (rows <= 4) {
      f(first, rows, integral_constant<int, 4>{}, std::true_type{});
    } else {
      f(first, rows, integral_constant<int, 8>{}, std::true_type{});
    }
  }
}

// Rows [first, first + rows) of x.
inline qwen::HeadInput input_rows(qwen::HeadInput input, int64_t first, int64_t rows) {
  const int64_t size = input.dtype == qwen::Dtype::kFloat32 ? 4 : 2;
  input.x = static_cast<const char*>(input.x) + first * input.x_stride * size;
  input.batch = rows;
  return input;
}
