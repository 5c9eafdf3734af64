// What the operators of paged attention check alike, and their CPU path.
#include "paged_attention_arguments.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "cpu_operators.h"

namespace qwen {
namespace {

using at::Tensor;

bool is_dense(const Tensor& t) {
  return t.layout() == at::kStrided && t.is_contiguous();
}

}  // namespace

void check_alignment(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, op, ": ", name,
              " does not begin at a multiple of 16 bytes; pass ", name, ".clone().");
}

Dtype attention_dtype(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf, op, ": ", name, " has dtype ",
              t.scalar_type(), "; it must be bfloat16 or float16.");
  return dtype_of(op, name, t);
}

void check_query(const char* op, const Tensor& q) {
  attention_dtype(op, "q", q);
  TORCH_CHECK(q.layout() == at::kStrided && q.dim() == 3, op, ": q has shape ", q.sizes(),
              "; it must be a dense tensor [batch, query_heads, head_dim].");
  TORCH_CHECK(q.size(2) == 64 || q.size(2) == 128, op, ": q has shape ", q.sizes(), "; head_dim must be 64 or 128.");
  TORCH_CHECK(q.size(0) <= kMostGrid, op, ": q has shape ", q.sizes(), "; at most 65535 sequences are supported.");
  TORCH_CHECK(q.size(1) >= 1, op, ": q has shape ", q.sizes(), "; it must have a head.");
  const bool rows = q.stride(2) == 1 && (q.size(1) == 1 || q.stride(1) == q.size(2));
  TORCH_CHECK(rows && (q.size(0) <= 1 || q.stride(0) % 8 == 0), op, ": q has strides ", q.strides(),
              "; the heads of a sequence must lie side by side, and sequences at a multiple of 8 elements: pass "
              "q.contiguous().");
  check_alignment(op, "q", q);
}

void check_heads(const char* op, const Tensor& q, int64_t kv_heads) {
  TORCH_CHECK(kv_heads >= 1 && q.size(1) % kv_heads == 0 && q.size(1) / kv_heads <= 8 && kv_heads <= kMostGrid, op,
              ": q has ", q.size(1), " heads and k_cache ", kv_heads, "; each KV head must serve 1 to 8 query heads.");
}

namespace {

void check_caches(const char* op, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache) {
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.size(3) == q.size(2), op, ": k_cache has shape ", k_cache.sizes(),
              "; it must be [num_blocks, block_size, kv_heads, ", q.size(2), "], with the head_dim of q.");
  TORCH_CHECK(v_cache.sizes() == k_cache.sizes(), op, ": v_cache has shape ", v_cache.sizes(), " and k_cache ",
              k_cache.sizes(), "; they must have one shape.");
  const int64_t blocks = k_cache.size(0), size = k_cache.size(1);
  TORCH_CHECK(size >= 8 && size <= 256 && (size & (size - 1)) == 0, op, ": k_cache has shape ", k_cache.sizes(),
              "; block_size must be a power of two from 8 to 256.");
  TORCH_CHECK(blocks <= INT32_MAX, op, ": k_cache has shape ", k_cache.sizes(),
              "; at most 2147483647 blocks are supported.");
  check_heads(op, q, k_cache.size(2));
  for (const auto& [name, cache] : {std::pair("k_cache", k_cache), std::pair("v_cache", v_cache)}) {
    check_same(op, name, cache, "q", q);
    TORCH_CHECK(is_dense(cache), op, ": ", name, " has gaps; pass ", name, ".contiguous().");
    check_alignment(op, name, cache);
  }
}

void check_table(
    const char* op, const Tensor& q, int64_t block_size, const Tensor& block_table, const Tensor& context_lens) {
  for (const auto& [name, t] : {std::pair("block_table", block_table), std::pair("context_lens", context_lens)}) {
    TORCH_CHECK(t.scalar_type() == at::kInt, op, ": ", name, " has dtype ", t.scalar_type(), "; it must be int32.");
    TORCH_CHECK(t.device() == q.device(), op, ": ", name, " is on ", t.device(), " and q on ", q.device(),
                "; they must be on one device.");
  }
  TORCH_CHECK(block_table.layout() == at::kStrided && block_table.dim() == 2 && block_table.size(0) == q.size(0), op,
              ": block_table has shape ", block_table.sizes(), "; it must be [", q.size(0), ", max_blocks].");
  TORCH_CHECK(block_table.size(1) <= 1 || block_table.stride(1) == 1, op, ": block_table has strides ",
              block_table.strides(), "; the entries of a row must lie side by side: pass block_table.contiguous().");
  TORCH_CHECK(block_table.size(1) <= kMostTokens / block_size, op, ": block_table has shape ", block_table.sizes(),
              "; a row may stand for at most ", kMostTokens, " tokens.");
  TORCH_CHECK(is_dense(context_lens) && context_lens.dim() == 1 && context_lens.size(0) == q.size(0), op,
              ": context_lens has shape ", context_lens.sizes(), "; it must be dense and [", q.size(0), "].");
}

}  // namespace

PagedAttention attention_over(const char* op, const AttentionInputs& in, const CacheShape& cache) {
  const Dtype dtype = attention_dtype(op, "q", in.q);
  check_table(op, in.q, cache.block_size, in.block_table, in.context_lens);
  TORCH_CHECK(std::isfinite(in.scale), op, ": scale is ", in.scale, "; it must be a finite number.");
  return {in.q.const_data_ptr(),
          nullptr,
          nullptr,
          static_cast<const int32_t*>(in.block_table.const_data_ptr()),
          static_cast<const int32_t*>(in.context_lens.const_data_ptr()),
          nullptr,
          in.q.size(0),
          in.q.size(1),
          cache.kv_heads,
          in.q.size(2),
          cache.num_blocks,
          cache.block_size,
          in.block_table.size(1),
          in.q.stride(0),
          in.block_table.stride(0),
          static_cast<float>(in.scale),
          dtype};
}

PagedAttention checked_attention(Backend backend, const char* op, const AttentionInputs& in) {
  check_device(backend, op, "q", in.q);
  check_query(op, in.q);
  check_caches(op, in.q, in.k_cache, in.v_cache);
  PagedAttention a = attention_over(op, in, {in.k_cache.size(0), in.k_cache.size(1), in.k_cache.size(2)});
  a.k_cache = in.k_cache.const_data_ptr(), a.v_cache = in.v_cache.const_data_ptr();
  return a;
}

// The parts of a workspace: o, m, l, and a counter for each KV head where the kernel needs them (kv_heads > 0).
Partials partials_in(const char* op,
                     const Tensor& workspace,
                     int64_t batch,
                     int64_t query_heads,
                     int64_t kv_heads,
                     int64_t head_dim,
                     int64_t partitions) {
  TORCH_CHECK(partitions >= 1 && partitions <= kMostGrid, op, ": partitions is ", partitions,
              "; it must be 1 to 65535.");
  TORCH_CHECK(workspace.scalar_type() == at::kFloat && is_dense(workspace), op, ": workspace has dtype ",
              workspace.scalar_type(), " and strides ", workspace.strides(), "; it must be float32 and dense.");
  check_alignment(op, "workspace", workspace);
  const int64_t rows = batch * query_heads * partitions, needed = rows * (head_dim + 2) + batch * kv_heads;
  TORCH_CHECK(workspace.numel() >= needed, op, ": workspace has ", workspace.numel(), " elements; it must have ",
              needed, ": qwen_cuda.operators.attention_workspace makes one.");
  auto* o = static_cast<float*>(workspace.mutable_data_ptr());
  float* m = o + rows * head_dim;
  return {o, m, m + rows, reinterpret_cast<uint32_t*>(m + 2 * rows), partitions};
}

PagedAttentionSplit checked_cut(const char* op,
                                const PagedAttention& a,
                                const AttentionInputs& in,
                                int64_t partition_size,
                                int64_t partitions,
                                const Tensor& workspace,
                                Merge merge) {
  TORCH_CHECK(partition_size >= kPartitionGrain && partition_size % kPartitionGrain == 0, op, ": partition_size is ",
              partition_size, "; it must be a multiple of ", kPartitionGrain, ".");
  TORCH_CHECK(workspace.device() == in.q.device(), op, ": workspace is on ", workspace.device(), " and q on ",
              in.q.device(), "; they must be on one device.");
  const auto partials = partials_in(op, workspace, a.batch, a.query_heads, a.kv_heads, a.head_dim, partitions);
  TORCH_CHECK(partition_size <= kMostTokens / partitions, op, ": partition_size is ", partition_size,
              " and partitions ", partitions, "; their product must be at most ", kMostTokens, ".");
  check_apart(op, "workspace", workspace, "q", in.q);
  check_apart(op, "workspace", workspace, "k_cache", in.k_cache);
  check_apart(op, "workspace", workspace, "v_cache", in.v_cache);
  check_apart(op, "workspace", workspace, "block_table", in.block_table);
  check_apart(op, "workspace", workspace, "context_lens", in.context_lens);
  const bool cluster = partitions > 1 && partitions <= 16 && (partitions & (partitions - 1)) == 0;
  TORCH_CHECK(merge != Merge::kCluster || cluster, op, ": merge is \"cluster\" and partitions ", partitions,
              "; a cluster merges 2, 4, 8 or 16 of them.");
  return {a, partials, partition_size, merge};
}

Merge merge_of(const char* op, c10::string_view name) {
  if (name == "auto") return Merge::kFastest;
  if (name == "cluster") return Merge::kCluster;
  TORCH_CHECK(name == "last_block", op, ": merge is \"", name, "\"; it must be auto, cluster or last_block.");
  return Merge::kLastBlock;
}

void add_known(const KnownOperands& known, const AttentionInputs& in) {
  known.add("q", in.q.const_data_ptr(), span_bytes(in.q), false);
  known.add("k_cache", in.k_cache.const_data_ptr(), span_bytes(in.k_cache), false);
  known.add("v_cache", in.v_cache.const_data_ptr(), span_bytes(in.v_cache), false);
  known.add("block_table", in.block_table.const_data_ptr(), span_bytes(in.block_table), false);
  known.add("context_lens", in.context_lens.const_data_ptr(), span_bytes(in.context_lens), false);
}

void split_on_cpu(const PagedAttentionSplit& args) {
  const int64_t rows = args.attention.batch * args.attention.kv_heads * args.partials.partitions;
  at::parallel_for(0, rows, 1, [&](int64_t first, int64_t last) { cpu::paged_attention_partials(args, first, last); });
}

void merge_on_cpu(const MergePartitions& args) {
  at::parallel_for(0, args.batch * args.query_heads, 8,
                   [&](int64_t first, int64_t last) { cpu::merge_partitions(args, first, last); });
}

}  // namespace qwen
