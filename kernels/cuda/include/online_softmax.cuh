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

// Merges `count` readers, of which number p has m[p], l[p] and, for one dimension, o[p * o_stride]. The o of a reader
// without tokens is not used. Sums run in the order of p, kBatch of them at a time: loads that do not wait for each
// other. They go past the first-level cache, which does not see what other blocks wrote.
// --8<-- [start:merge]
template <int kBatch>
__device__ __forceinline__ float merge_readers(
    const float* m, const float* l, const float* o, int64_t o_stride, int count) {
  SoftmaxState all;
  float total = 0.0f;
  for (int first = 0; first < count; first += kBatch) {
    float its_m[kBatch], its_l[kBatch], its_o[kBatch], largest = kNoScore;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int p = first + j;
      its_m[j] = p < count ? __ldcg(m + p) : -INFINITY;
      its_l[j] = p < count ? __ldcg(l + p) : 0.0f;
      its_o[j] = p < count ? __ldcg(o + p * o_stride) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) largest = fmaxf(largest, its_m[j]);
    total *= all.raise(largest);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float weight = all.weight(its_m[j]);
      all.l += weight * its_l[j];
      total += its_l[j] == 0.0f ? 0.0f : weight * its_o[j];
    }
  }
  return all.quotient(total);
}
// --8<-- [end:merge]
