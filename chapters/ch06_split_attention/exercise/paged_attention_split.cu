// Exercise of chapter 6: split attention with three holes. README.md beside this file says how to go about it.
//
//   grid    (partitions, kv_heads, batch) blocks; block (p, h, s) has partition p of KV head h of sequence s
//   block   8 warps; paged_attention.cuh reads the partition's tokens, as it does for chapter 5's kernel
//   then    (m, l, o) of each query head goes to the workspace, and is merged: by qwen_merge_partitions, or by the
//   block
//           that ends last
//
// The two launches need hole 1, the single one hole 2 as well, contexts beyond the grid hole 3.
#include <stdexcept>
#include <string>

#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"

namespace {

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kMergeIsWritten = false;  // set it to true once it is

// One dimension of the result: merges `count` partials, of which number p has m[p], l[p] and o[p * o_stride], in the
// order of p. A partition without tokens has m = -inf and l = 0, and its o may be anything, NaN too. No token at all
// gives 0. m is in powers of two: exp2f() is what you need. Other blocks wrote this memory: read it by __ldcg().
__device__ float merge(const float* m, const float* l, const float* o, int64_t o_stride, int count) {
  (void)m, (void)l, (void)o, (void)o_stride, (void)count;  // write it here
  return 0.0f;
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kComesLastIsWritten = false;  // set it to true once it is

// Whether this block is the last of `blocks` to come here; every thread gets the answer. Afterwards *arrived is 0
// again, and the block sees what all others wrote before they came. No block may wait for another.
__device__ bool comes_last(uint32_t* arrived, int blocks) {
  (void)arrived, (void)blocks;  // write it here
  return false;
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kShareIsWritten = false;  // set it to true once it is

// The tokens of a partition: partition_size, where `partitions` of them hold the context. A longer context is shared
// out: the least multiple of qwen::kPartitionGrain of which `partitions` hold it. For short contexts it is complete.
__device__ int tokens_of_partition(int context, int partition_size, int partitions) {
  (void)context, (void)partitions;  // and longer contexts: write it here
  return partition_size;
}

// ---- Given: the kernels around the holes ---------------------------------------------------------------------------
template <class T, class Lanes>
__global__ void __launch_bounds__(kAttentionThreads)
    attend_partition(AttentionOperands<T> a, qwen::Partials partials, int partition_size, bool one_launch) {
  __shared__ WarpPartials<Lanes> shared;
  constexpr int kHeadDim = Lanes::kHeadDim;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, partitions = gridDim.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  const int context = a.context(sequence);
  const int tokens = tokens_of_partition(context, partition_size, partitions);
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;  // partitions that have tokens
  const int64_t first_head = int64_t(sequence) * a.query_heads + kv_head * a.group;
  if (partition >= live) {
    if (!one_launch && threadIdx.x < a.group) {
      const int64_t at = (first_head + threadIdx.x) * partitions + partition;
      partials.m[at] = -INFINITY, partials.l[at] = 0.0f;
    }
    return;
  }

  const int begin = partition * tokens, end = min(begin + tokens, context);
  const int offset = first_token_of_lane<Lanes>(warp, lane);
  const PagedHead<T> head = a.head(sequence, kv_head);
  using Reader = AttentionReader<T, Lanes>;
  const typename Reader::RawQuery query(a.group_of(sequence, kv_head), a.group, lane);
  Reader reader;
  reader.read(head, query, a.scale, begin + offset, head.block_of(begin + offset, end), end, lane);
  reader.leave(shared, warp, lane);
  __syncthreads();

  T* out = a.out_of(sequence, kv_head);
  const bool alone = one_launch && live == 1;
  for (int i = threadIdx.x; i < a.group * kHeadDim; i += kAttentionThreads) {
    float o;
    const SoftmaxState all = shared.merged(i / kHeadDim, i % kHeadDim, o);
    if (alone) out[i] = from_float<T>(all.quotient(o));
    const int64_t at = (first_head + i / kHeadDim) * partitions + partition;
    partials.o[at * kHeadDim + i % kHeadDim] = o;
    if (i % kHeadDim == 0) partials.m[at] = all.stored_m(), partials.l[at] = all.l;
  }
  if (!one_launch || alone) return;
  if (!comes_last(partials.arrived + sequence * a.kv_heads + kv_head, live)) return;
  for (int i = threadIdx.x; i < a.group * kHeadDim; i += kAttentionThreads) {
    const int64_t at = (first_head + i / kHeadDim) * partitions;
    const float* o = partials.o + at * kHeadDim + i % kHeadDim;
    out[i] = from_float<T>(merge(partials.m + at, partials.l + at, o, kHeadDim, live));
  }
}

template <class T>
__global__ void __launch_bounds__(128) merge_heads(qwen::Partials partials, T* out) {
  const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x, at = head * partials.partitions;
  const int head_dim = blockDim.x, partitions = int(partials.partitions);
  const float* o = partials.o + at * head_dim + threadIdx.x;
  out[head * head_dim + threadIdx.x] = from_float<T>(merge(partials.m + at, partials.l + at, o, head_dim, partitions));
}

void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 6, ") + hole +
                           " is not written yet: write it in chapters/ch06_split_attention/exercise/"
                           "paged_attention_split.cu, then set " +
                           flag + " to true.");
}

void launch_partitions(const qwen::PagedAttentionSplit& args, bool one_launch, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.attention;
  const int64_t partitions = args.partials.partitions;
  need(kMergeIsWritten, "hole 1 (merge)", "kMergeIsWritten");
  if (one_launch) need(kComesLastIsWritten, "hole 2 (comes_last)", "kComesLastIsWritten");
  if (a.max_blocks * a.block_size > args.partition_size * partitions) {
    need(kShareIsWritten, "hole 3 (tokens_of_partition)", "kShareIsWritten");
  }
  dispatch_attention(a, [&](auto operands, auto lanes) {
    launch(attend_partition<typename decltype(operands)::Number, decltype(lanes)>,
           dim3(unsigned(partitions), unsigned(a.kv_heads), unsigned(a.batch)), dim3(kAttentionThreads), 0, stream,
           operands, args.partials, int(args.partition_size), one_launch);
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
  need(kMergeIsWritten, "hole 1 (merge)", "kMergeIsWritten");
  const auto of_type = [&](auto zero) {
    using T = decltype(zero);
    launch(merge_heads<T>, dim3(unsigned(args.query_heads), unsigned(args.batch)), dim3(unsigned(args.head_dim)), 0,
           stream, args.partials, static_cast<T*>(args.out));
  };
  if (args.dtype == qwen::Dtype::kFloat16) return of_type(__half{});
  of_type(__nv_bfloat16{});
}
