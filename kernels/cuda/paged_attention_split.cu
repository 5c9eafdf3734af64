// paged_attention_split.cu: paged attention with each context cut into partitions, so that one sequence fills the GPU.
//
// Mapping   Block (p, h, s) reads partition p of sequence s for the query heads of KV head h, as chapter 5's block
//           reads a whole context. It has (m, l, o) of each head then; partition_merge.cuh says how the partitions come
//           together. How many tokens a partition has is computed on the device: a graph captured for the longest
//           context serves every shorter one, and blocks without tokens leave at once.
// Traffic   K and V of the context in, once. Where the last block merges, 4 * partitions * query_heads * (head_dim + 2)
//           bytes out, and in again.
// Contract  fp32 throughout, one rounding. The merge runs in the order of partitions, whoever does it: the same bits
//           each time, and the same as of paged_attention_partials and merge_partitions.
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"
#include "partition_merge.cuh"

namespace {

using qwen::Merge;

// --8<-- [start:kernel]
template <class T, class Lanes>
__global__ void __launch_bounds__(kAttentionThreads)
    attend_partition(AttentionOperands<T> a, qwen::Partials partials, int partition_size, Merge merge) {
  __shared__ WarpPartials<Lanes> shared;
  __shared__ ClusterInbox<Lanes> inbox;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  grid_dependency_wait();

  const PagedHead<T> head = a.head(sequence, kv_head);
  const int offset = first_token_of_lane<Lanes>(warp, lane);
  using Reader = AttentionReader<T, Lanes>;
  const typename Reader::RawQuery query(a.group_of(sequence, kv_head), a.group, lane);
  const int context = a.context(sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context);
  const int first_block = head.block_of(begin + offset, end);
  // The partitions that have tokens; without tokens the first, which writes zeros.
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;
  const PartitionMerge<T, Lanes> end_of{a, partials, sequence, kv_head, partition, live};
  if (partition >= live) {
    if (merge == Merge::kLeavePartials) end_of.leave_nothing();
    return;
  }

  Reader reader;
  reader.read(head, query, a.scale, begin + offset, first_block, end, lane);
  reader.leave(shared, warp, lane);
  __syncthreads();

  if (merge == Merge::kLeavePartials) return end_of.leave_partials(shared);
  if (live == 1) return end_of.finish_alone(shared);
  if (merge == Merge::kCluster) return end_of.by_cluster(shared, inbox);
  end_of.by_last_block(shared);
}
// --8<-- [end:kernel]

// Block (h, s): query head h of sequence s, a thread for each dimension.
template <class T>
__global__ void __launch_bounds__(128) merge_heads(qwen::Partials partials, T* out) {
  grid_dependency_trigger();
  grid_dependency_wait();
  const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x, at = head * partials.partitions;
  const int head_dim = blockDim.x;
  const float *m = partials.m + at, *l = partials.l + at, *o = partials.o + at * head_dim + threadIdx.x;
  out[head * head_dim + threadIdx.x] = from_float<T>(merge_readers<kMergeBatch>(int(partials.partitions), [&](int p) {
    return SoftmaxPart{__ldcg(m + p), __ldcg(l + p), __ldcg(o + int64_t(p) * head_dim)};
  }));
}

}  // namespace

void qwen_paged_attention_split(const qwen::PagedAttentionSplit& args, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.attention;
  dispatch_attention(a, [&](auto operands, auto lanes) {
    const auto kernel = attend_partition<typename decltype(operands)::Number, decltype(lanes)>;
    const int64_t partitions = args.partials.partitions;
    const Merge merge = merge_for(args.merge, kernel, partitions);
    const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(a.batch));
    launch(dependent_launch(merge == Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads), 0,
           stream, operands, args.partials, int(args.partition_size), merge);
  });
}

void qwen_paged_attention_partials(const qwen::PagedAttentionSplit& args, cudaStream_t stream) {
  qwen_paged_attention_split(args, stream);
}

void qwen_merge_partitions(const qwen::MergePartitions& args, cudaStream_t stream) {
  const dim3 grid(unsigned(args.query_heads), unsigned(args.batch));
  const auto merge = [&](auto zero) {
    using T = decltype(zero);
    launch(dependent_launch(), merge_heads<T>, grid, dim3(unsigned(args.head_dim)), 0, stream, args.partials,
           static_cast<T*>(args.out));
  };
  if (args.dtype == qwen::Dtype::kFloat16) return merge(__half{});
  merge(__nv_bfloat16{});
}
