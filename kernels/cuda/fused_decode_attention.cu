// fused_decode_attention.cu: one launch from packed QKV to the output of attention, for the one new token of each
// sequence: QK-norm, RoPE, the write of K and V into their page, attention over all tokens, merge of the partitions.
//
// Mapping   Block (p, h, s) as in paged_attention_split.cu. Every warp norms and rotates the heads that it needs in
//           registers (new_token.cuh). The new token is the last of its sequence: the warp whose turn it is takes its K
//           and V from its own shared memory, in place of the cache, and stores them there.
// Overlap   With `prefetch` all that does not come from the kernel ahead is asked for before grid_dependency_wait():
//           length, table, the first keys and values, weights, cosines. What remains is the way from qkv to out.
// Traffic   K and V of the context in, once; those of one token out.
// Contract  The bits of qk_norm_rope_cache_write and paged_attention_split, one after the other.
#include "new_token.cuh"
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"
#include "partition_merge.cuh"

namespace {

using qwen::Merge;

// --8<-- [start:kernel]
template <class T, class Lanes>
__global__ void __launch_bounds__(kAttentionThreads) attend_new_token(qwen::QkNormRopeCacheWrite t,
                                                                      AttentionOperands<T> a,
                                                                      qwen::Partials partials,
                                                                      int partition_size,
                                                                      Merge merge,
                                                                      bool prefetch) {
  __shared__ WarpPartials<Lanes> shared;
  __shared__ ClusterInbox<Lanes> inbox;
  __shared__ NewHead<T> fresh_head;
  using Reader = AttentionReader<T, Lanes>;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  if (!prefetch) grid_dependency_wait();

  const PagedHead<T> head = a.head(sequence, kv_head);
  const int context = a.context(sequence);
  const TokenPlace place = place_of(t, sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context), newest = context - 1;
  if (begin > 0 && begin >= context) return;

  const int token = begin + first_token_of_lane<Lanes>(warp, lane);
  const int first_block = head.block_of(token, end);
  // --8<-- [start:ready]
  // Whether the turn in which the new token comes is this warp's. Without a context it comes
  // in none, and is stored.
  const int turn = max(newest - begin, 0) / Lanes::kTurn;
  const bool mine = newest < end && turn % kAttentionWarps == warp;
  NewToken<T, Lanes> fresh;
  fresh.load_constants(t, place, lane);

  Reader reader;
  const auto ready = [&] {
    if (prefetch) grid_dependency_wait();
    fresh.load(t, sequence, kv_head, a.group, lane);
    fresh.norm_and_turn(t.eps, place.known, lane);
    typename Reader::RawQuery query;
#pragma unroll
    for (int p = 0; p < Lanes::kPacks; ++p) {
#pragma unroll
      for (int g = 0; g < Lanes::kGroup; ++g) query.packs[g][p] = fresh.pack(g, p, lane);
    }
    reader.set_query(query, a.scale);
    if (mine) fresh.store(t, place, kv_head, fresh_head, lane);
  };
  // --8<-- [end:ready]
  const auto add_new = [&](typename Reader::Run& k, typename Reader::Run& v, int first) {
    if (!mine) return;
#pragma unroll
    for (int i = 0; i < Lanes::kRun; ++i) {
      if (first + i != newest) continue;
#pragma unroll
      for (int p = 0; p < Lanes::kPacks; ++p) {
        k.packs[i][p] = *reinterpret_cast<const uint4*>(fresh_head.k + Lanes::dimension(lane, 8 * p));
        v.packs[i][p] = *reinterpret_cast<const uint4*>(fresh_head.v + Lanes::dimension(lane, 8 * p));
      }
    }
  };
  reader.read(head, token, first_block, end, newest, lane, ready, add_new);
  reader.leave(shared, warp, lane);
  __syncthreads();

  const int live = max(newest, 0) / tokens + 1;  // partitions that have tokens; without any the first, for its zeros
  const PartitionMerge<T, Lanes> end_of{a, partials, sequence, kv_head, partition, live};
  if (live == 1) return end_of.finish_alone(shared);
  if (merge == Merge::kCluster) return end_of.by_cluster(shared, inbox);
  end_of.by_last_block(shared);
}
// --8<-- [end:kernel]

}  // namespace

void qwen_fused_decode_attention(const qwen::FusedDecodeAttention& args, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.split.attention;
  dispatch_attention(a, [&](auto operands, auto lanes) {
    using Lanes = decltype(lanes);
    if constexpr (Lanes::kHeadDim == kHeadDim) {
      const auto kernel = attend_new_token<typename decltype(operands)::Number, Lanes>;
      const int64_t partitions = args.split.partials.partitions;
      const Merge merge = merge_for(args.split.merge, kernel, partitions);
      const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(a.batch));
      launch(dependent_launch(merge == Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads), 0,
             stream, args.token, operands, args.split.partials, int(args.split.partition_size), merge, args.prefetch);
    }
  });
}
