// head_stages.h: norm, rotation and Hadamard transform of a head in fp32, in the kernels' order of operations and so to
// their bits.
#pragma once

#include <cmath>
#include <cstdint>

namespace qwen::cpu {

constexpr int64_t kChunk = 128, kMostDim = 512;  // of a head's elements; the squares of a chunk form a tree

inline int64_t index_at(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

// Adds neighbours, then neighbouring sums, and so on. `size` is a power of two.
inline float tree_sum(float* values, int64_t size) {
  for (; size > 1; size /= 2) {
    for (int64_t i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  }
  return values[0];
}

// --8<-- [start:stages]
template <class T>
void normalize(float* head, int64_t dim, const T* weight, float eps) {
  float squares[kChunk / 2], sums[kMostDim / kChunk];
  for (int64_t c = 0; c < dim / kChunk; ++c) {
    const float *low = head + c * kChunk, *high = low + kChunk / 2;
    for (int64_t r = 0; r < kChunk / 2; ++r) squares[r] = std::fma(low[r], low[r], high[r] * high[r]);
    sums[c] = tree_sum(squares, kChunk / 2);
  }
  const float scale = 1.0f / std::sqrt(tree_sum(sums, dim / kChunk) / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) head[i] = head[i] * scale * static_cast<float>(weight[i]);
}

// `row` has size / 2 cosines, then as many sines. A pair is (i, i + size / 2), or (2 i, 2 i + 1).
inline void rotate(float* x, int64_t size, const float* row, bool interleaved, bool conjugate) {
  const int64_t half = size / 2;
  for (int64_t j = 0; j < half; ++j) {
    float& first = x[interleaved ? 2 * j : j];
    float& second = x[interleaved ? 2 * j + 1 : j + half];
    const float u = first, v = second, c = row[j], s = conjugate ? -row[half + j] : row[half + j];
    first = std::fma(u, c, -(v * s));
    second = std::fma(v, c, u * s);
  }
}

// Sylvester's matrix of one chunk, times scale.
inline void hadamard(float* head, float scale) {
  for (int64_t bit = 1; bit < kChunk; bit *= 2) {
    for (int64_t i = 0; i < kChunk; ++i) {
      if (i & bit) continue;
      const float u = head[i], w = head[i + bit];
      head[i] = u + w;
      head[i + bit] = u - w;
    }
  }
  for (int64_t i = 0; i < kChunk; ++i) head[i] *= scale;
}
// --8<-- [end:stages]

}  // namespace qwen::cpu
