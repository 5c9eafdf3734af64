// paged_attention_split.cu: paged attention with each context cut into partitions, so that one sequence fills the GPU.
//
// Mapping   Block (p, h, s) reads partition p of sequence s for the query heads of KV head h, as chapter 5's block
//           reads a whole context. It leaves (m, l, o) of each head in the workspace; the block that ends last merges
//           them. How many tokens a partition has is computed on the device: a graph captured for the longest context
//           serves every shorter one, and blocks without tokens leave at once. One partition is written straight.
// Traffic   K and V of the context in, once; 4 * partitions * query_heads * (head_dim + 2) bytes out, and in again.
// Contract  fp32 throughout, one rounding. The merge runs in the order of partitions, whoever does it: the same bits
//           each time, and the same as of paged_attention_partials and merge_partitions.
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"

namespace {

constexpr int kMergeBatch = 16;  // partitions whose partials a thread asks for at once

// Whether this block is the last of `blocks` to come here; all threads get the answer. The counter returns to 0. What
// a block wrote before, the last one sees afterwards.
// --8<-- [start:last]
__device__ __forceinline__ bool comes_last(uint32_t* arrived, int blocks) {
  __threadfence();
  __syncthreads();  // every thread's writes are fenced before the block is counted
  const bool last = threadIdx.x == 0 && atomicInc(arrived, blocks - 1) == uint32_t(blocks - 1);
  const bool mine = __syncthreads_or(last);
  __threadfence();
  return mine;
}
// --8<-- [end:last]

// --8<-- [start:kernel]
template <class T, class Lanes>
__global__ void __launch_bounds__(kAttentionThreads)
    attend_partition(AttentionOperands<T> a, qwen::Partials partials, int partition_size, bool merge) {
  __shared__ WarpPartials<Lanes> shared;
  constexpr int kHeadDim = Lanes::kHeadDim;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, partitions = gridDim.x;
  const int kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  grid_dependency_wait();

  const PagedHead<T> head = a.head(sequence, kv_head);
  const int offset = first_token_of_lane<Lanes>(warp, lane);
  using Reader = AttentionReader<T, Lanes>;
  const typename Reader::RawQuery query(a.group_of(sequence, kv_head), a.group, lane);
  const int context = a.context(sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, partitions);
  // The partitions that have tokens; without tokens the first, which writes zeros.
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;
  const int64_t first_head = int64_t(sequence) * a.query_heads + kv_head * a.group;
  if (partition >= live) {
    if (!merge && threadIdx.x < a.group) {
      const int64_t at = (first_head + threadIdx.x) * partitions + partition;
      partials.m[at] = -INFINITY, partials.l[at] = 0.0f;
    }
    return;
  }

  const int begin = partition * tokens, end = min(begin + tokens, context);
  const int first_block = head.block_of(begin + offset, end);
  Reader reader;
  reader.read(head, query, a.scale, begin + offset, first_block, end, lane);
  reader.leave(shared, warp, lane);
  __syncthreads();

  T* out = a.out_of(sequence, kv_head);
  for (int i = threadIdx.x; i < a.group * kHeadDim; i += kAttentionThreads) {
    float total;
    const SoftmaxState all = shared.merged(i / kHeadDim, i % kHeadDim, total);
    if (merge && live == 1) {
      out[i] = from_float<T>(all.quotient(total));
    } else {
      const int64_t at = (first_head + i / kHeadDim) * partitions + partition;
      partials.o[at * kHeadDim + i % kHeadDim] = total;
      if (i % kHeadDim == 0) partials.m[at] = all.stored_m(), partials.l[at] = all.l;
    }
  }
  uint32_t* arrived = partials.arrived + sequence * a.kv_heads + kv_head;
  if (!merge || live == 1 || !comes_last(arrived, live)) return;
  for (int i = threadIdx.x; i < a.group * kHeadDim; i += kAttentionThreads) {
    const int64_t at = (first_head + i / kHeadDim) * partitions;
    const float* o = partials.o + at * kHeadDim + i % kHeadDim;
    out[i] = from_float<T>(merge_readers<kMergeBatch>(partials.m + at, partials.l + at, o, kHeadDim, live));
  }
}
// --8<-- [end:kernel]

// Block (h, s): query head h of sequence s, a thread for each dimension.
template <class T>
__global__ void __launch_bounds__(128) merge_heads(qwen::Partials partials, T* out) {
  grid_dependency_trigger();
  grid_dependency_wait();
  const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x, at = head * partials.partitions;
  const int head_dim = blockDim.x;
  out[head * head_dim + threadIdx.x] = from_float<T>(merge_readers<kMergeBatch>(
      partials.m + at, partials.l + at, partials.o + at * head_dim + threadIdx.x, head_dim, int(partials.partitions)));
}

LaunchOptions dependent_launch() {
  LaunchOptions options;
  options.dependent = true;
  return options;
}

void launch_partitions(const qwen::PagedAttentionSplit& args, bool merge, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.attention;
  dispatch_attention(a, [&](auto operands, auto lanes) {
    const dim3 grid(unsigned(args.partials.partitions), unsigned(a.kv_heads), unsigned(a.batch));
    launch(dependent_launch(), attend_partition<typename decltype(operands)::Number, decltype(lanes)>, grid,
           dim3(kAttentionThreads), 0, stream, operands, args.partials, int(args.partition_size), merge);
  });
}

}  // namespace

void qwen_paged_attention_split(const qwen::PagedAttentionSplit& args, cudaStream_t stream) {
  launch_partitions(args, true, stream);
}

void qwen_paged_attention_partials(const qwen::PagedAttentionSplit& args, cudaStream_t stream) {
  launch_partitions(args, false, stream);
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
