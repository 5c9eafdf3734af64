// sample_tokens.cu: the next token of each row of logits, drawn on the device: penalty, temperature, top-k, top-p,
// min-p, and a Gumbel-max draw. All parameters are tensors, so that one CUDA graph serves every request.
//
// Mapping   A cluster of up to 16 blocks a row, of 512 threads; where there are no clusters, one block. Each block
//           takes a slice of the row.
// Traffic   The row, once: the slice stays in shared memory. Where it does not fit, once for each look at it.
// Contract  The token depends on the row, its parameters, seed and draw alone: not on the batch, nor on how many blocks
//           a row has. All that is added up is an integer; all other arithmetic is of one token, rounded as written.
#include <algorithm>

#include "gumbel.cuh"
#include "kept_tokens.cuh"

namespace {

using qwen::SampleTokens;

constexpr int kLeastSlice = 1024;  // tokens; a row of fewer has one block

// What a token must have to be drawn.
struct Kept {
  unsigned at_least;  // a key
  Mass min_mass;
};

// --8<-- [start:filters]
template <bool kStaged>
__device__ __forceinline__ Kept
kept_tokens(const RowSlice<kStaged>& slice, SearchState& state, float largest, int vocab) {
  const RowParameters& p = slice.parameters;
  Kept kept{0, 0};
  int pass = 0;
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {  // top-k, then top-p
    const bool by_mass = filter == 1;
    if (by_mass ? !(p.top_p < 1.0f) : p.top_k <= 0 || p.top_k >= vocab) continue;
    const Mass limit = p.top_k;
    ThresholdSearch<kStaged> search{slice, state, largest, kept.at_least, by_mass, limit};
    kept.at_least = search.threshold(pass);
  }
  constexpr float kOne = Mass(1) << kOneBits;
  if (p.min_p > 0.0f) kept.min_mass = Mass(fminf(p.min_p, 1.0f) * kOne);
  return kept;
}
// --8<-- [end:filters]

// The best of this thread's tokens by logit + noise. A thread takes the four tokens of a counter.
// --8<-- [start:draw]
template <class Slice>
__device__ __forceinline__ Key best_of(const Slice& slice, const Kept& kept, Key largest) {
  const uint64_t seed = slice.parameters.seed, draw = slice.parameters.draw;
  const auto words_of = [&](int group) {
    return philox4x32({unsigned(group), 0, unsigned(draw), unsigned(draw >> 32)},
                      {unsigned(seed), unsigned(seed >> 32)});
  };
  const auto word_of = [](const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  };
  // The largest logit's own sum: most others cannot reach it, whatever their noise is.
  const float most = number_of(unsigned(largest >> 32));
  const int likeliest = token_of(largest);
  float best_sum = gumbel(word_of(words_of(likeliest / 4), likeliest % 4));
  Key best = key_of(best_sum, likeliest);
  for (int i = 4 * threadIdx.x; i < slice.size; i += 4 * kSampleThreads) {
    float below[4];  // a logit less the largest; -inf if it is out
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      below[j] = -INFINITY;
      if (i + j >= slice.size) continue;
      const float x = slice.at(i + j), difference = __fadd_rn(x, -most);
      if (ordered_bits(x) < kept.at_least) continue;
      if (difference + most_gumbel(0) < best_sum) continue;
      if (kept.min_mass > 0 && mass_of(difference) < kept.min_mass) continue;
      below[j] = difference;
      any = true;
    }
    if (!any) continue;
    const uint4 words = words_of((slice.begin + i) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned word = word_of(words, j);
      if (!(below[j] + most_gumbel(word) >= best_sum)) continue;
      const float sum = __fadd_rn(below[j], gumbel(word));
      best = max(best, key_of(sum, slice.begin + i + j));
      best_sum = fmaxf(best_sum, sum);
    }
  }
  return best;
}
// --8<-- [end:draw]

__device__ __forceinline__ void finish(const SampleTokens& a, int row, int token) {
  a.token[row] = token;
  if (token < 0) return;
  int32_t* word = a.seen + row * a.seen_words + token / kSliceUnit;
  atomicOr(word, int32_t(1u << token % kSliceUnit));  // nobody waits for it, as for a load
}

// --8<-- [start:kernel]
template <bool kStaged>
__global__ void __launch_bounds__(kSampleThreads, 1) sample_row(SampleTokens a, int size) {
  __shared__ SearchState state;
  __shared__ KeyExchange largest_of, drawn_of;
  const int row = blockIdx.y;
  const bool writes = cluster_rank() == 0 && threadIdx.x == 0;
  grid_dependency_trigger();
  cluster_arrive_relaxed();
  grid_dependency_wait();

  const RowParameters parameters(a, row);
  float* staged = kStaged ? dynamic_shared<float>() : nullptr;
  const RowSlice<kStaged> slice(a, parameters, staged, size, row);
  const Key largest_here = largest_of.of_block(slice.first_look());
  cluster_wait();
  largest_of.send(largest_here, cluster_blocks());
  cluster_arrive();
  cluster_wait();
  const Key largest = largest_of.largest();
  const float most = number_of(unsigned(largest >> 32));
  if (!(fabsf(most) < INFINITY)) {  // a NaN, too
    if (writes) finish(a, row, -1);
    return;
  }
  if (parameters.greedy()) {
    if (writes) finish(a, row, token_of(largest));
    return;
  }

  const Kept kept = kept_tokens(slice, state, most, int(a.vocab));
  const Key drawn_here = drawn_of.of_block(best_of(slice, kept, largest));
  drawn_of.send(drawn_here, 1);
  cluster_arrive();
  cluster_wait();
  if (writes) finish(a, row, token_of(drawn_of.largest()));
}
// --8<-- [end:kernel]

}  // namespace

void qwen_sample_tokens(const qwen::SampleTokens& args, cudaStream_t stream) {
  const int vocab = int(args.vocab);
  int wanted = 1;
  while (wanted < kMostBlocks && vocab > wanted * kLeastSlice) wanted *= 2;
  const int blocks = std::min(wanted, most_cluster_blocks(sample_row<false>, kSampleThreads, 0));
  const int units = (vocab + kSliceUnit - 1) / kSliceUnit;
  const int slice = (units + blocks - 1) / blocks * kSliceUnit;
  const size_t bytes = size_t(slice) * sizeof(float);
  constexpr size_t kOther = sizeof(SearchState) + 2 * sizeof(KeyExchange) + 1024;  // and what the GPU takes for itself
  const bool staged = bytes + kOther <= size_t(most_shared_bytes()) &&
                      most_cluster_blocks(sample_row<true>, kSampleThreads, bytes) >= blocks;
  LaunchOptions options;
  options.dependent = true;
  options.cluster = blocks;
  launch(options, staged ? sample_row<true> : sample_row<false>, dim3(unsigned(blocks), unsigned(args.batch)),
         dim3(kSampleThreads), staged ? bytes : 0, stream, args, slice);
}
