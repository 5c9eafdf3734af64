// paged_attention_arguments.h: what the operators of paged attention check alike.
#pragma once

#include "checks.h"
#include "partitions.h"

namespace qwen {

constexpr int64_t kMostTokens = 1 << 30;  // of a sequence, and of partitions * partition_size: counted in 32 bits
constexpr int64_t kMostGrid = 65535;      // of the second and third dimension of a grid

struct AttentionInputs {
  const at::Tensor &q, &k_cache, &v_cache, &block_table, &context_lens;
  double scale;
};

// Each refuses what does not meet the operator's contract, and says why.
Dtype attention_dtype(const char* op, const char* name, const at::Tensor& t);
void check_alignment(const char* op, const char* name, const at::Tensor& t);
void check_query(const char* op, const at::Tensor& q);
void check_heads(const char* op, const at::Tensor& q, int64_t kv_heads);

// What q, the table and the scale say, over a cache of this shape; q has passed check_query. Without the caches.
struct CacheShape {
  int64_t num_blocks, block_size, kv_heads;
};
PagedAttention attention_over(const char* op, const AttentionInputs& in, const CacheShape& cache);
PagedAttention checked_attention(Backend backend, const char* op, const AttentionInputs& in);
// The parts of a workspace: o, m, l, and a counter for each KV head where the kernel needs them (kv_heads > 0).
Partials partials_in(const char* op,
                     const at::Tensor& workspace,
                     int64_t batch,
                     int64_t query_heads,
                     int64_t kv_heads,
                     int64_t head_dim,
                     int64_t partitions);
// Checks the cut and the workspace for attention whose operands have been checked.
PagedAttentionSplit checked_cut(const char* op,
                                const PagedAttention& attention,
                                const AttentionInputs& in,
                                int64_t partition_size,
                                int64_t partitions,
                                const at::Tensor& workspace,
                                Merge merge);
// "auto", "cluster" or "last_block".
Merge merge_of(const char* op, c10::string_view name);

void add_known(const KnownOperands& known, const AttentionInputs& in);

// On the CPU, its threads sharing the work: the partials of all partitions; their merge.
void split_on_cpu(const PagedAttentionSplit& args);
void merge_on_cpu(const MergePartitions& args);

}  // namespace qwen
