// online_softmax.cuh: a softmax over scores that come in any order, and the merge of what different readers saw.
//
// A reader keeps (m, l, o): the largest score so far, the sum of 2^(score - m), and the sum of 2^(score - m) * v.
// Scores are in powers of two, that is multiplied by log2(e), for the GPU has an instruction for 2^x and none for e^x.
// Who has seen nothing keeps m = kNoScore, l = 0, o = 0; in memory, m is -inf then.
//
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#pragma once

#include "cuda_platform.cuh"

constexpr float kLog2OfE = 1.4426950408889634f;
// The least finite number, and not -inf: the difference of two of them is 0, while -inf - (-inf) is NaN.
constexpr float kNoScore = -3.402823466e+38f;

// --8<-- [start:softmax_state]
struct SoftmaxState {
  float m = kNoScore, l = 0.0f;

  // Makes room for scores up to `largest`. What was summed so far, o too, counts `factor`
  // times as much afterwards. A NaN is no new maximum, but reaches l as a weight.
  __device__ __forceinline__ float raise(float largest) {
    const float higher = fmaxf(m, largest);
    const float factor = exp2_approximate(m - higher);
    m = higher;
    l *= factor;
    return factor;
  }
  // The weight of a score that is no larger than m; a score of -inf weighs 0.
  __device__ __forceinline__ float weight(float score) const { return exp2_approximate(score - m); }
  // The result of one dimension. Who has seen no token gives 0.
  __device__ __forceinline__ float quotient(float o) const { return l == 0.0f ? 0.0f : o / l; }
  // m as it stands in memory. Not l > 0: a NaN is no empty set.
  __device__ __forceinline__ float stored_m() const { return l == 0.0f ? -INFINITY : m; }
};
// --8<-- [end:softmax_state]

// What one reader saw of one dimension.
struct SoftmaxPart {
  float m, l, o;
};

// Merges `count` readers, of which number p has read(p); the o of a reader without tokens is not used. Sums run in the
// order of p, kBatch of them at a time: loads that do not wait for each other.
// --8<-- [start:merge]
template <int kBatch, class Read>
__device__ __forceinline__ float merge_readers(int count, Read read) {
  SoftmaxState all;
  float total = 0.0f;
  for (int first = 0; first < count; first += kBatch) {
    SoftmaxPart parts[kBatch];
    float largest = kNoScore;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      parts[j] = first + j < count ? read(first + j) : SoftmaxPart{-INFINITY, 0.0f, 0.0f};
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) largest = fmaxf(largest, parts[j].m);
    total *= all.raise(largest);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float weight = all.weight(parts[j].m);
      all.l += weight * parts[j].l;
      total += parts[j].l == 0.0f ? 0.0f : weight * parts[j].o;
    }
  }
  return all.quotient(total);
}
// --8<-- [end:merge]
