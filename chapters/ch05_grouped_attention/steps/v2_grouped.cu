// v2: one warp for each KV head serves all query heads that share it.
//
//   grid    (kv_heads, batch) blocks
//   block   one warp
//   lane    l owns dimensions l, l + 32, l + 64, … of K, V and of each q and out of the group
//   token   its key and value are read into registers once, then used for each query head
//
// Traffic: K and V of the context once, 4 * context * kv_heads * head_dim bytes.
//
// The idea: grouped-query attention stores one K and V for a group of heads. A warp that
// computes the whole group reads them once. The price is parallelism: group times fewer warps.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"
#include "partitions.h"
#include "warp_reduce.cuh"

namespace {

constexpr float kNoScore = -3.402823466e+38f;  // finite: -inf - (-inf) would be NaN

// kGroup: the group rounded up to 1, 2, 4 or 8, so that arrays stay in registers. A head beyond
// the group has q = 0 and is not written.
// --8<-- [start:kernel]
template <class T, int kHeadDim, int kGroup>
__global__ void __launch_bounds__(kWarpSize) attend_group(qwen::PagedAttention a) {
  constexpr int kDims = kHeadDim / kWarpSize;
  const int sequence = blockIdx.y, lane = threadIdx.x;
  const int group = a.query_heads / a.kv_heads;
  const int64_t kv_head = blockIdx.x, first_head = kv_head * group;
  const T* q = static_cast<const T*>(a.q) + sequence * a.q_stride + first_head * kHeadDim;
  const int32_t* table = a.block_table + sequence * a.block_table_stride;
  const int context = qwen::tokens_in(a.context_lens[sequence], a.max_blocks, a.block_size);

  float query[kGroup][kDims], o[kGroup][kDims] = {}, m[kGroup], l[kGroup] = {};
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    m[g] = kNoScore;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      query[g][i] = g < group ? to_float(q[g * kHeadDim + lane + 32 * i]) * a.scale : 0.0f;
    }
  }

  for (int t = 0; t < context; ++t) {
    const int64_t block = table[t / a.block_size];
    if (block < 0 || block >= a.num_blocks) continue;  // no block of the cache
    const int64_t slot = block * a.block_size + t % a.block_size;
    const int64_t first = (slot * a.kv_heads + kv_head) * kHeadDim + lane;
    float key[kDims], value[kDims];
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      key[i] = to_float(static_cast<const T*>(a.k_cache)[first + 32 * i]);
      value[i] = to_float(static_cast<const T*>(a.v_cache)[first + 32 * i]);
    }

#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < kDims; ++i) score += query[g][i] * key[i];
      score = warp_sum(score);
      const float higher = fmaxf(m[g], score);
      const float factor = expf(m[g] - higher), weight = expf(score - higher);
      m[g] = higher;
      l[g] = l[g] * factor + weight;
#pragma unroll
      for (int i = 0; i < kDims; ++i) o[g][i] = o[g][i] * factor + weight * value[i];
    }
  }

  T* out = static_cast<T*>(a.out) + (sequence * a.query_heads + first_head) * kHeadDim;
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= group) break;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const float result = l[g] == 0.0f ? 0.0f : o[g][i] / l[g];  // no token: zeros
      out[g * kHeadDim + lane + 32 * i] = from_float<T>(result);
    }
  }
}
// --8<-- [end:kernel]

template <class T, int kHeadDim>
void launch_groups(const qwen::PagedAttention& a, cudaStream_t stream) {
  const int64_t group = a.query_heads / a.kv_heads;
  const auto kernel = group <= 1   ? attend_group<T, kHeadDim, 1>
                      : group <= 2 ? attend_group<T, kHeadDim, 2>
                      : group <= 4 ? attend_group<T, kHeadDim, 4>
                                   : attend_group<T, kHeadDim, 8>;
  launch(kernel, dim3(unsigned(a.kv_heads), unsigned(a.batch)), dim3(kWarpSize), 0, stream, a);
}

template <class T>
void launch_type(const qwen::PagedAttention& a, cudaStream_t stream) {
  if (a.head_dim == 64) return launch_groups<T, 64>(a, stream);
  launch_groups<T, 128>(a, stream);
}

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  if (args.dtype == qwen::Dtype::kFloat16) return launch_type<__half>(args, stream);
  launch_type<__nv_bfloat16>(args, stream);
}
