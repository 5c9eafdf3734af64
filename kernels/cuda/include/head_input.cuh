// head_input.cuh: the rows of x of an output head in shared memory, as fp32, normed once.
#pragma once

#include "number_types.cuh"
#include "operators.h"
#include "warp_reduce.cuh"

constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / kWarpSize;

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

// Columns first, first + kHeadThreads, … of `rows` rows, as floats. All loads are on the way before the first is used;
// what is beyond the rows or beyond k is 0.
constexpr int kHeadNumbers = 4;
template <class T, int kRows>
__device__ __forceinline__ void read_numbers(
    const void* data, int64_t stride, int rows, int first, int k, float (&to)[kRows][kHeadNumbers]) {
  T raw[kRows][kHeadNumbers];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const T* row = static_cast<const T*>(data) + min(i, rows - 1) * stride;
#pragma unroll
    for (int j = 0; j < kHeadNumbers; ++j) raw[i][j] = row[min(first + j * kHeadThreads, k - 1)];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kHeadNumbers; ++j) {
      to[i][j] = i < rows && first + j * kHeadThreads < k ? to_float(raw[i][j]) : 0.0f;
    }
  }
}
template <int kRows>
__device__ __forceinline__ void read_numbers(
    const void* data, qwen::Dtype dtype, int64_t stride, int rows, int first, int k, float (&to)[kRows][kHeadNumbers]) {
  if (dtype == qwen::Dtype::kFloat32) return read_numbers<float>(data, stride, rows, first, k, to);
  if (dtype == qwen::Dtype::kFloat16) return read_numbers<__half>(data, stride, rows, first, k, to);
  read_numbers<__nv_bfloat16>(data, stride, rows, first, k, to);
}

// Fills x: [kBatch, padded_columns(k)]; what is beyond the batch or beyond k is 0. Ends with a barrier.
// --8<-- [start:input]
template <int kColumns, int kBatch>
__device__ __forceinline__ void load_input(const qwen::HeadInput& in, float* x) {
  __shared__ float squares[kBatch][kHeadWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int k = int(in.k), padded = padded_columns<kColumns>(k);
  float sums[kBatch] = {};
  for (int first = threadIdx.x; first < padded; first += kHeadThreads * kHeadNumbers) {
    float numbers[kBatch][kHeadNumbers];
    read_numbers(in.x, in.dtype, in.x_stride, int(in.batch), first, k, numbers);
#pragma unroll
    for (int j = 0; j < kHeadNumbers; ++j) {
      const int c = first + j * kHeadThreads;
      if (c >= padded) break;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        x[i * padded + place_of_column<kColumns>(c)] = numbers[i][j];
        sums[i] = fmaf(numbers[i][j], numbers[i][j], sums[i]);
      }
    }
  }
  if (in.norm_weight == nullptr) return __syncthreads();
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const float sum = warp_sum(sums[i]);
    if (lane == 0) squares[i][warp] = sum;
  }
  __syncthreads();
  float factors[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kHeadWarps; ++w) sum += squares[i][w];
    factors[i] = 1.0f / sqrtf(sum / static_cast<float>(k) + in.eps);
  }
  for (int first = threadIdx.x; first < k; first += kHeadThreads * kHeadNumbers) {
    float gains[1][kHeadNumbers];
    read_numbers(in.norm_weight, in.norm_dtype, 0, 1, first, k, gains);
#pragma unroll
    for (int j = 0; j < kHeadNumbers; ++j) {
      const int c = first + j * kHeadThreads;
      if (c >= k) break;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {  // each thread goes over what it wrote
        float& value = x[i * padded + place_of_column<kColumns>(c)];
        value = value * factors[i] * gains[0][j];
      }
    }
  }
  __syncthreads();
}
// --8<-- [end:input]
