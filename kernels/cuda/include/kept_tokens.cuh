// kept_tokens.cuh: which tokens of a row top-k, top-p and min-p keep, by thresholds that the blocks of a cluster find
// together.
//
// A search narrows an interval of keys (the bits of a logit, ordered like integers). Each pass cuts it into 256 bins,
// counts what lies in each, adds the counts of the cluster's blocks, and goes on in the bin that holds the threshold.
// It begins near the largest logit, where one or two passes are enough; none needs more than five. Probabilities
// are summed as integers: so their sums do not depend on who adds what first.
#pragma once

#include "row_slice.cuh"

using Mass = unsigned long long;

constexpr int kBins = 256;
constexpr int kBinWarps = kBins / kWarpSize;
constexpr int kMostPasses = 5;  // one that finds nothing, and four of 8 bits each
constexpr int kOneBits = 40;    // of the mass of the most likely token; 2^20 such masses fit

// e^d * 2^40 as an integer, for d at most 0: within 2^-18 of it, 2^40 at 0, and 0 below -27.8.
// --8<-- [start:mass]
__device__ __forceinline__ Mass mass_of(float d) {
  const float power = fmaxf(__fmul_rn(d, float(1.4426950408889634)), -63.0f);  // of 2
  const float whole = rintf(power), rest = __fmul_rn(__fadd_rn(power, -whole), kLn2);
  float series = __fmul_rn(rest, float(1.0 / 5040));  // of e^rest, |rest| <= ln(2)/2
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 720)), rest);
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 120)), rest);
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 24)), rest);
  series = __fmul_rn(__fadd_rn(series, float(1.0 / 6)), rest);
  series = __fmul_rn(__fadd_rn(series, 0.5f), rest);
  series = __fmul_rn(__fadd_rn(series, 1.0f), rest);
  const float mantissa = __fadd_rn(series, 1.0f);  // a multiple of 2^-24
  return Mass(unsigned(__fmul_rn(mantissa, 16777216.0f))) << (kOneBits - 24) >> -int(whole);
}
// --8<-- [end:mass]

// p * total, rounded up; p is cut to 24 binary places.
__device__ __forceinline__ Mass share_of(float p, Mass total) {
  constexpr Mass kLow = (1u << 24) - 1;
  const Mass places = unsigned(fmaxf(p, 0.0f) * 16777216.0f);
  return (total >> 24) * places + (((total & kLow) * places + kLow) >> 24);
}

// Where a search begins: what is 16 below the largest has e^-16 of its probability. And not across 0, where the bits of
// numbers are far apart: a bin would hold all that matters.
__device__ __forceinline__ float likely_from(float largest) {
  const float near = __fadd_rn(largest, -16.0f);
  return largest > 0.0f ? fmaxf(near, largest * 0.125f) : near;
}

struct Histogram {
  Mass weights[kBins];
  Mass total;  // of all tokens that take part, in the interval or not
  unsigned counts[kBins];
};

// What thread t knows of the cluster's bin t, and of where the threshold lies.
struct SearchState {
  Histogram histograms[2];  // in turn: one is read by other blocks while the next is filled
  Mass of_warps[kBinWarps];
  Mass above;           // weight above the new interval
  unsigned low, high;   // the new interval
  bool found, settled;  // that the threshold is in it; that it is `low`
};

// Keys from low to high, in bins of 2^shift keys.
struct Interval {
  unsigned low, high;
  int shift;
  Mass above;  // weight of larger keys
};

// The largest key such that the tokens from it on are top_k, or have the share top_p of the mass of all that take part.
template <bool kStaged>
struct ThresholdSearch {
  const RowSlice<kStaged>& slice;
  SearchState& state;
  float largest;      // of the row
  unsigned at_least;  // keys below take no part
  bool by_mass;       // top-p
  Mass limit;         // top_k; of top-p known from the first pass on

  __device__ __forceinline__ unsigned threshold(int& pass) {
    Interval in{max(ordered_bits(likely_from(largest)), at_least), ordered_bits(largest), 0, 0};
    for (int passes = 0; passes < kMostPasses; ++passes) {
      const bool first = by_mass && passes == 0;
      in.shift = 0;
      while ((in.high - in.low) >> in.shift >= kBins) ++in.shift;
      Histogram& mine = state.histograms[pass++ % 2];
      fill(mine, in, first);
      cluster_arrive();
      cluster_wait();
      choose(mine, in, first);
      __syncthreads();
      in.low = state.low, in.high = state.high, in.above = state.above;
      if (state.found && (in.shift == 0 || state.settled)) break;
    }
    return in.low;
  }

  // --8<-- [start:fill]
  __device__ __forceinline__ void fill(Histogram& to, Interval in, bool with_total) {
    for (int bin = threadIdx.x; bin < kBins; bin += kSampleThreads) {
      to.weights[bin] = 0, to.counts[bin] = 0;
    }
    if (threadIdx.x == 0) to.total = 0;
    __syncthreads();
    Mass total = 0;
    slice.each([&](int, float x) {
      const unsigned key = ordered_bits(x);
      if (key < at_least || (key < in.low && !with_total) || key > in.high) return;
      const Mass mass = by_mass ? mass_of(__fadd_rn(x, -largest)) : 1;
      total += mass;
      if (key < in.low) return;
      const unsigned bin = (key - in.low) >> in.shift;
      if (by_mass) atomicAdd(to.weights + bin, mass);
      atomicAdd(to.counts + bin, 1u);
    });
    if (!with_total) return;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(kAllLanes, total, distance);
    }
    if (threadIdx.x % kWarpSize == 0) atomicAdd(&to.total, total);
  }
  // --8<-- [end:fill]

  // Thread t adds up bin t of all blocks; then each knows what lies in its bin and those above.
  // --8<-- [start:choose]
  __device__ __forceinline__ void choose(Histogram& mine, Interval in, bool with_total) {
    const int bin = threadIdx.x, lane = bin % kWarpSize, warp = bin / kWarpSize;
    Mass weight = 0, total = 0, from_here = 0;
    unsigned count = 0;
    if (bin < kBins) {
#pragma unroll  // all are on their way at once
      for (unsigned rank = 0; rank < kMostBlocks; ++rank) {
        if (rank >= cluster_blocks()) continue;
        const Histogram* theirs = shared_of(&mine, rank);
        count += theirs->counts[bin];
        if (by_mass) weight += theirs->weights[bin];
        if (with_total) total += theirs->total;
      }
      if (!by_mass) weight = count;
      if (with_total) limit = max(share_of(slice.parameters.top_p, total), Mass(1));
      from_here = weight;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const Mass other = __shfl_down_sync(kAllLanes, from_here, distance);
        if (lane + distance < kWarpSize) from_here += other;
      }
      if (lane == 0) state.of_warps[warp] = from_here;
    }
    __syncthreads();
    if (bin >= kBins) return;
    for (int w = warp + 1; w < kBinWarps; ++w) from_here += state.of_warps[w];
    from_here += in.above;
    const unsigned begin = in.low + (unsigned(bin) << in.shift);
    if (from_here >= limit && from_here - weight < limit) {  // one thread at most
      state.low = begin;
      state.high = begin + min(in.high - begin, (1u << in.shift) - 1);
      state.above = from_here - weight;
      state.found = true;
      // Whether all of the bin is kept, and no more passes are needed.
      state.settled = count == 1 || (!by_mass && from_here == limit);
    }
    if (bin == 0 && from_here < limit) {  // nobody: the threshold is below the interval
      state.low = at_least, state.high = in.low - 1;
      state.above = from_here;
      state.found = false;
    }
  }
  // --8<-- [end:choose]
};
