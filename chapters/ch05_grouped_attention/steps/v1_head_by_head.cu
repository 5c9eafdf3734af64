// v1: one warp for each query head, one token after the other.
//
//   grid    (query_heads, batch) blocks
//   block   one warp
//   lane    l owns dimensions l, l + 32, l + 64, … of q, K, V and out
//   token   a dot product by 5 shuffles, then (m, l, o) takes the token in: online softmax
//
// Traffic: K and V of the context once for each query head: group times what must be read,
// 4 * context * query_heads * head_dim bytes.
//
// The idea: no score is ever stored. The running maximum m, the sum l and the outputs o are
// enough, and a context of any length needs no memory beside the registers.
#include "cuda_platform.cuh"
#include "number_types.cuh"
#include "operators.h"
#include "partitions.h"
#include "warp_reduce.cuh"

namespace {

constexpr float kNoScore = -3.402823466e+38f;  // finite: -inf - (-inf) would be NaN

// --8<-- [start:kernel]
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kWarpSize) attend_head(qwen::PagedAttention a) {
  constexpr int kDims = kHeadDim / kWarpSize;
  const int head = blockIdx.x, sequence = blockIdx.y, lane = threadIdx.x;
  const int64_t kv_head = head / (a.query_heads / a.kv_heads);
  const T* q = static_cast<const T*>(a.q) + sequence * a.q_stride + head * kHeadDim;
  const int32_t* table = a.block_table + sequence * a.block_table_stride;
  const int context = qwen::tokens_in(a.context_lens[sequence], a.max_blocks, a.block_size);

  float query[kDims], o[kDims] = {}, m = kNoScore, l = 0.0f;
  for (int i = 0; i < kDims; ++i) query[i] = to_float(q[lane + 32 * i]) * a.scale;

  for (int t = 0; t < context; ++t) {
    const int64_t block = table[t / a.block_size];
    if (block < 0 || block >= a.num_blocks) continue;  // no block of the cache
    const int64_t slot = block * a.block_size + t % a.block_size;
    const int64_t first = (slot * a.kv_heads + kv_head) * kHeadDim + lane;
    const T* key = static_cast<const T*>(a.k_cache) + first;
    const T* value = static_cast<const T*>(a.v_cache) + first;

    float score = 0.0f;
    for (int i = 0; i < kDims; ++i) score += query[i] * to_float(key[32 * i]);
    score = warp_sum(score);

    const float higher = fmaxf(m, score);
    const float factor = expf(m - higher), weight = expf(score - higher);
    m = higher;
    l = l * factor + weight;
    for (int i = 0; i < kDims; ++i) {
      o[i] = o[i] * factor + weight * to_float(value[32 * i]);
    }
  }

  T* out = static_cast<T*>(a.out) + (sequence * a.query_heads + head) * kHeadDim + lane;
  for (int i = 0; i < kDims; ++i) {
    out[32 * i] = from_float<T>(l == 0.0f ? 0.0f : o[i] / l);  // no token: zeros
  }
}
// --8<-- [end:kernel]

template <class T>
void launch_heads(const qwen::PagedAttention& a, cudaStream_t stream) {
  const dim3 grid(unsigned(a.query_heads), unsigned(a.batch));
  launch(a.head_dim == 64 ? attend_head<T, 64> : attend_head<T, 128>, grid, dim3(kWarpSize), 0, stream, a);
}

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  if (args.dtype == qwen::Dtype::kFloat16) return launch_heads<__half>(args, stream);
  launch_heads<__nv_bfloat16>(args, stream);
}
