// row_slice.cuh: the part of a row of logits that a block of its cluster looks at, after penalty and temperature.
#pragma once

#include "operators.h"
#include "warp_reduce.cuh"

using Key = unsigned long long;  // a number's bits, ordered like integers, above a token's complement

constexpr int kSampleThreads = 512;
constexpr int kMostBlocks = 16;        // of a row: the largest cluster there is
constexpr int kSliceUnit = 32;         // tokens that have their bits in one word of `seen`
constexpr int kLoads = 20;             // logits that a thread asks for at once
constexpr float kGreedyBelow = 1e-6f;  // temperatures that take the largest logit

// Larger numbers have larger bits; -0 those of 0, a NaN the largest.
__device__ __forceinline__ unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return x == x ? (bits & 0x80000000u ? ~bits : bits | 0x80000000u) : 0xffffffffu;
}
__device__ __forceinline__ float number_of(unsigned ordered) {
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}
// Of equal numbers the first token has the largest key.
__device__ __forceinline__ Key key_of(float x, int token) {
  return Key(ordered_bits(x)) << 32 | Key(~unsigned(token));
}
__device__ __forceinline__ int token_of(Key key) {
  return int(~unsigned(key));
}

// What a row is drawn by, asked for at once: each would be waited for where it is needed.
struct RowParameters {
  float temperature, top_p, min_p, penalty;
  int top_k;
  uint64_t seed, draw;

  __device__ __forceinline__ RowParameters(const qwen::SampleTokens& a, int row)
      : temperature(a.temperature[row]),
        top_p(a.top_p[row]),
        min_p(a.min_p[row]),
        penalty(a.repetition_penalty[row]),
        top_k(a.top_k[row]),
        seed(uint64_t(a.seeds[row])),
        draw(uint64_t(a.draws[row])) {}

  __device__ __forceinline__ bool greedy() const { return !(temperature >= kGreedyBelow); }
};

// Tokens begin to begin + size - 1 of a row; begin is a multiple of kSliceUnit. If kStaged, `staged` keeps their
// logits, and they are read once; else penalty and division are done again at each look.
template <bool kStaged>
struct RowSlice {
  const RowParameters& parameters;
  int begin, size;
  const float* logits;  // of the slice, as are the words of `seen`
  const int32_t* seen;
  float* staged;

  __device__ __forceinline__
  RowSlice(const qwen::SampleTokens& a, const RowParameters& parameters, float* staged, int slice, int row)
      : parameters(parameters),
        begin(min(int(cluster_rank()) * slice, int(a.vocab))),
        size(min(slice, int(a.vocab) - begin)),
        logits(a.logits + row * a.vocab + begin),
        seen(a.seen + row * a.seen_words + begin / kSliceUnit),
        staged(staged) {}

  __device__ __forceinline__ unsigned is_seen(int i) const {
    return unsigned(seen[i / kSliceUnit]) >> i % kSliceUnit & 1u;
  }
  // --8<-- [start:scaled]
  __device__ __forceinline__ float scaled(float x, unsigned seen_before) const {
    const float penalty = parameters.penalty;
    if (seen_before) x = x < 0.0f ? __fmul_rn(x, penalty) : __fdiv_rn(x, penalty);
    return parameters.greedy() ? x : __fdiv_rn(x, parameters.temperature);
  }
  // --8<-- [end:scaled]
  __device__ __forceinline__ float at(int i) const {
    if (kStaged) return staged[i];
    return scaled(logits[i], parameters.penalty != 1.0f ? is_seen(i) : 0u);
  }

  // Calls take(i, x) for the logit of each token of this thread.
  template <class Take>
  __device__ __forceinline__ void each(Take take) const {
#pragma unroll 1  // a step of a decode runs this once: the instructions come from far away
    for (int i = threadIdx.x; i < size; i += kSampleThreads) take(i, at(i));
  }

  // The first look: keeps the slice, and returns the largest key that this thread sees.
  // --8<-- [start:first_look]
  __device__ __forceinline__ Key first_look() const {
    Key best = 0;
    if (kStaged) stage();
    each([&](int i, float x) { best = max(best, key_of(x, begin + i)); });
    return best;
  }
  // Each thread keeps what it looks at itself, so that no barrier is needed.
  __device__ __forceinline__ void stage() const {
    for (int first = threadIdx.x; first < size; first += kLoads * kSampleThreads) {
      float loaded[kLoads];
      unsigned marks = 0;  // bit j: token j was seen
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = first + j * kSampleThreads;
        loaded[j] = i < size ? logits[i] : 0.0f;
      }
      if (parameters.penalty != 1.0f) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const int i = first + j * kSampleThreads;
          if (i < size) marks |= is_seen(i) << j;
        }
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = first + j * kSampleThreads;
        if (i < size) staged[i] = loaded[j];
      }
      const int end = min(size, first + kLoads * kSampleThreads);
#pragma unroll 1
      for (int i = first; i < end; i += kSampleThreads) {
        staged[i] = scaled(staged[i], marks & 1u);
        marks >>= 1;
      }
    }
  }
  // --8<-- [end:first_look]
};

// The largest key of a cluster. Blocks send theirs to others; nobody is sent anything before it runs.
struct KeyExchange {
  Key of_warps[kSampleThreads / kWarpSize];
  Key of_blocks[kMostBlocks];

  // The largest of the keys of a block, for its first warp.
  __device__ __forceinline__ Key of_block(Key best) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
    }
    if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = best;
    __syncthreads();
    if (threadIdx.x >= kWarpSize) return best;
    best = threadIdx.x < kSampleThreads / kWarpSize ? of_warps[threadIdx.x] : 0;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
    }
    return best;
  }
  // Sends a block's key, which its first warp has, to the first `to` blocks.
  __device__ __forceinline__ void send(Key best, unsigned to) {
    if (threadIdx.x < to) *shared_of(of_blocks + cluster_rank(), threadIdx.x) = best;
  }
  __device__ __forceinline__ Key largest() const {
    Key best = 0;
    for (unsigned rank = 0; rank < cluster_blocks(); ++rank) best = max(best, of_blocks[rank]);
    return best;
  }
};
