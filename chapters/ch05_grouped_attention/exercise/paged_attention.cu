// Exercise of chapter 5: grouped attention over a paged cache with three holes. README.md beside this file says how to
// go about it.
//
//   grid    (kv_heads, batch) blocks
//   block   one warp where a context has at most 64 tokens, else 8 warps; warp w takes tokens w, w + warps, …
//   lane    l owns dimensions l, l + 32, l + 64, … of K, V and of each q and out of the group
//
// Models with one query head a KV head and short contexts need hole 1 alone; groups hole 2; longer contexts hole 3.
#include <stdexcept>
#include <string>

#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"
#include "partitions.h"
#include "warp_reduce.cuh"

namespace {

constexpr int kWarps = 8, kMostDims = 4;
constexpr float kNoScore = -3.402823466e+38f;  // m without tokens: finite, for -inf - (-inf) would be NaN

// What a warp knows of one query head: the largest score, the sum of exp(score - m), and of exp(score - m) * v for the
// lane's dimensions.
struct State {
  float m, l, o[kMostDims];
};

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kTakeTokenIsWritten = false;  // set it to true once it is

// Takes one token into `state`. A score above m makes room first: everything summed so far counts
// exp(old m - new m) times as much. expf() is what you need, and fmaxf().
__device__ void take_token(State& state, float score, const float (&value)[kMostDims]) {
  (void)state, (void)score, (void)value;  // write it here
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kGroupIsWritten = false;  // set it to true once it is

// Lets each of the `group` query heads take the token whose key and value the warp has read: a dot product of the
// lane's dimensions, warp_sum() over the lanes, then take_token(). For group 1 it is complete.
template <int kGroup>
__device__ void take_for_group(State (&states)[kGroup],
                               const float (&query)[kGroup][kMostDims],
                               const float (&key)[kMostDims],
                               const float (&value)[kMostDims],
                               int group) {
  float score = 0.0f;
  for (int i = 0; i < kMostDims; ++i) score += query[0][i] * key[i];
  take_token(states[0], warp_sum(score), value);
  (void)group;  // and the other heads: write it here
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kMergeIsWritten = false;  // set it to true once it is

// Merges the states of the block's 8 warps for one query head; warp 0 returns with the result in `state`. `shared` has
// room for one State a lane and warp. Every thread of the block calls it, for one head after the other: who must have
// written before who may read, and who must have read before who may write again?
__device__ void merge_warps(State& state, State (&shared)[kWarps][kWarpSize]) {
  (void)state, (void)shared;  // write it here
}

// ---- Given: the kernel around the holes ----------------------------------------------------------------------------
template <class T, int kGroup>
__global__ void __launch_bounds__(kWarps* kWarpSize) attend(qwen::PagedAttention a) {
  __shared__ State shared[kWarps][kWarpSize];
  const int sequence = blockIdx.y, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps = blockDim.x / kWarpSize, group = int(a.query_heads / a.kv_heads), dims = int(a.head_dim) / kWarpSize;
  const int64_t kv_head = blockIdx.x, first_head = kv_head * group;
  const T* q = static_cast<const T*>(a.q) + sequence * a.q_stride + first_head * a.head_dim + lane;
  T* out = static_cast<T*>(a.out) + (sequence * a.query_heads + first_head) * a.head_dim + lane;
  const int32_t* table = a.block_table + sequence * a.block_table_stride;
  const int context = qwen::tokens_in(a.context_lens[sequence], a.max_blocks, a.block_size);

  State states[kGroup];
  for (State& state : states) state = {kNoScore, 0.0f, {}};
  float query[kGroup][kMostDims] = {};
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < dims; ++i) query[g][i] = to_float(q[g * a.head_dim + 32 * i]) * a.scale;
  }
  for (int t = warp; t < context; t += warps) {
    const int64_t block = table[t / a.block_size];
    if (block < 0 || block >= a.num_blocks) continue;  // no block of the cache
    const int64_t slot = block * a.block_size + t % a.block_size;
    const int64_t first = (slot * a.kv_heads + kv_head) * a.head_dim + lane;
    float key[kMostDims] = {}, value[kMostDims] = {};
    for (int i = 0; i < dims; ++i) {
      key[i] = to_float(static_cast<const T*>(a.k_cache)[first + 32 * i]);
      value[i] = to_float(static_cast<const T*>(a.v_cache)[first + 32 * i]);
    }
    take_for_group(states, query, key, value, group);
  }
  for (int g = 0; g < group; ++g) {
    if (warps > 1) merge_warps(states[g], shared);
    for (int i = 0; i < dims && warp == 0; ++i) {
      out[g * a.head_dim + 32 * i] = from_float<T>(states[g].l == 0.0f ? 0.0f : states[g].o[i] / states[g].l);
    }
  }
}

void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 5, ") + hole +
                           " is not written yet: write it in chapters/ch05_grouped_attention/exercise/"
                           "paged_attention.cu, then set " +
                           flag + " to true.");
}

template <class T>
void launch_attention(const qwen::PagedAttention& a, cudaStream_t stream) {
  const bool grouped = a.query_heads > a.kv_heads, several_warps = a.max_blocks * a.block_size > 64;
  need(kTakeTokenIsWritten, "hole 1 (take_token)", "kTakeTokenIsWritten");
  if (grouped) need(kGroupIsWritten, "hole 2 (take_for_group)", "kGroupIsWritten");
  if (several_warps) need(kMergeIsWritten, "hole 3 (merge_warps)", "kMergeIsWritten");
  launch(grouped ? attend<T, 8> : attend<T, 1>, dim3(unsigned(a.kv_heads), unsigned(a.batch)),
         dim3(several_warps ? kWarps * kWarpSize : kWarpSize), 0, stream, a);
}

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  if (args.dtype == qwen::Dtype::kFloat16) return launch_attention<__half>(args, stream);
  launch_attention<__nv_bfloat16>(args, stream);
}
