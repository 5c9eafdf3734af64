// paged_operands.cuh: the arguments of a paged attention kernel, typed, and which kernel serves them.
#pragma once

#include "operators.h"
#include "paged_attention.cuh"
#include "partitions.h"

template <class T>
struct AttentionOperands {
  using Number = T;
  const T *q, *k_cache, *v_cache;
  const int32_t *block_table, *context_lens;
  T* out;
  int64_t q_stride, block_table_stride;
  int query_heads, kv_heads, group, head_dim;  // group: query heads of a KV head
  int num_blocks, block_shift, max_blocks;
  float scale;

  __device__ __forceinline__ PagedHead<T> head(int sequence, int kv_head) const {
    const T *k = k_cache + int64_t(kv_head) * head_dim, *v = v_cache + int64_t(kv_head) * head_dim;
    return {pages(sequence), k, v, int64_t(kv_heads) * head_dim};
  }
  __device__ __forceinline__ PageTable pages(int sequence) const {
    return {block_table + sequence * block_table_stride, max_blocks, num_blocks, block_shift};
  }
  __device__ __forceinline__ const T* group_of(int sequence, int kv_head) const {
    return q + sequence * q_stride + int64_t(kv_head) * group * head_dim;
  }
  __device__ __forceinline__ T* out_of(int sequence, int kv_head) const {
    return out + (int64_t(sequence) * query_heads + kv_head * group) * head_dim;
  }
  __device__ __forceinline__ int context(int sequence) const {
    return qwen::tokens_in(context_lens[sequence], max_blocks, int64_t(1) << block_shift);
  }
};

template <class T>
AttentionOperands<T> operands_of(const qwen::PagedAttention& a) {
  int shift = 0;
  while (int64_t(1) << shift < a.block_size) ++shift;
  return {static_cast<const T*>(a.q),
          static_cast<const T*>(a.k_cache),
          static_cast<const T*>(a.v_cache),
          a.block_table,
          a.context_lens,
          static_cast<T*>(a.out),
          a.q_stride,
          a.block_table_stride,
          int(a.query_heads),
          int(a.kv_heads),
          int(a.query_heads / a.kv_heads),
          int(a.head_dim),
          int(a.num_blocks),
          shift,
          int(a.max_blocks),
          a.scale};
}

// Calls f(operands, AttentionLanes<…>{}) for the dtype, the head dimension and the group, which is rounded up to 1, 2,
// 4 or 8 heads.
template <class F>
void dispatch_attention(const qwen::PagedAttention& args, F f) {
  const auto of_type = [&](auto zero) {
    const auto operands = operands_of<decltype(zero)>(args);
    const auto of_size = [&](auto head_dim) {
      constexpr int kHeadDim = head_dim.value;
      if (operands.group <= 1) return f(operands, AttentionLanes<kHeadDim, 1>{});
      if (operands.group <= 2) return f(operands, AttentionLanes<kHeadDim, 2>{});
      if (operands.group <= 4) return f(operands, AttentionLanes<kHeadDim, 4>{});
      f(operands, AttentionLanes<kHeadDim, 8>{});
    };
    if (args.head_dim == 64) return of_size(std::integral_constant<int, 64>{});
    of_size(std::integral_constant<int, 128>{});
  };
  if (args.dtype == qwen::Dtype::kFloat16) return of_type(__half{});
  of_type(__nv_bfloat16{});
}
