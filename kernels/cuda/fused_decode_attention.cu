// fused_decode_attention.cu: one launch from packed QKV to the output of attention, for the one new token of each
// sequence: QK-norm, RoPE, the write of K and V into their page, attention over all tokens, merge of the partitions.
//
// Mapping   Block (p, h, s) as in paged_attention_split.cu. Every warp norms and rotates the heads that it needs in
//           registers (new_token.cuh). The new token is the last of its sequence: the warp whose turn it is takes its K
//           and V from its own shared memory, in place of the cache, and stores them there.
// Overlap   With `prefetch` all that does not come from the kernel ahead is asked for before grid_dependency_wait():
//           length, table, the first keys and values, weights, cosines. What remains is the way from qkv to out.
// Products  On Tensor Cores (tile_reader.cuh): the first turn comes after the wait and is hidden by nothing, so its
//           instructions count.
// Traffic   K and V of the context in, once; those of one token out.
// Contract  In the caches the bits of qk_norm_rope_cache_write; the result within the bound of paged_attention_split,
//           whose sums run in another order. The same bits in any company, by either merge, with `prefetch` or without.
#include "new_token.cuh"
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"
#include "partition_merge.cuh"
#include "tile_reader.cuh"

namespace {

using qwen::Merge;

// Registers of a thread. With 160 a block fits beside one of QKV, whose 256 threads have 96 (decode_linear.cu):
// together they fill an SM. Then blocks begin, and ask for keys and values, while QKV is still at work. Few blocks had
// better not, for the SMs that have one make all others wait: they take 8 more.
template <class Lanes, bool kBeside>
constexpr int kRegisters = Lanes::kGroup > 2 ? 255 : (kBeside ? 160 : 168);

template <class Lanes>
bool is_beside(int64_t blocks) {
  return Lanes::kGroup <= 2 && 3 * blocks > multiprocessors();
}

// Whether a second turn is asked for ahead, into shared memory: where a partition has one.
template <class Lanes>
bool is_staged(int64_t partition_size) {
  return Lanes::kGroup <= 2 && partition_size > kAttentionWarps * kTurnTokens && copies_are_async();
}

// --8<-- [start:kernel]
template <class T, class Lanes, bool kBeside, bool kStaged>
__global__ void __maxnreg__((kRegisters<Lanes, kBeside>)) attend_new_token(qwen::QkNormRopeCacheWrite t,
                                                                           AttentionOperands<T> a,
                                                                           qwen::Partials partials,
                                                                           int partition_size,
                                                                           Merge merge,
                                                                           bool prefetch) {
  __shared__ WarpPartials<Lanes> shared;
  __shared__ ClusterInbox<Lanes> inbox;
  __shared__ NewHead<T> fresh_head;
  using Reader = TileReader<T, Lanes>;
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

  const TurnPages<Reader::kStep> pages(head, begin + kTurnTokens * warp, end, lane);
  // --8<-- [start:ready]
  // Whether the turn in which the new token comes is this warp's. Without a context it comes
  // in none, and is stored.
  const int turn = max(newest - begin, 0) / kTurnTokens;
  const bool mine = newest < end && turn % kAttentionWarps == warp;
  NewToken<T, Lanes> fresh;
  fresh.load_constants(t, place, lane);

  Reader reader(lane);
  const auto ready = [&] {
    if (prefetch) grid_dependency_wait();
    fresh.load(t, sequence, kv_head, a.group, lane);
    fresh.norm_and_turn(t.eps, place.known, lane);
    reader.set_query(fresh, a.scale);
    if (mine) fresh.store(t, place, kv_head, fresh_head, lane);
  };
  // --8<-- [end:ready]
  const auto add_new = [&](auto& turn, int first) {
    if (mine) turn.put(newest - first, fresh_head.k, fresh_head.v, lane);
  };
  unsigned char* stage = kStaged ? dynamic_shared<unsigned char>() + warp * kStagedBytes : nullptr;
  reader.template read<kStaged>(head, pages, end, newest, stage, ready, add_new);
  reader.leave(shared, warp);
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
      using Number = typename decltype(operands)::Number;
      const int64_t partitions = args.split.partials.partitions;
      constexpr bool kTwo = Lanes::kGroup <= 2;
      const bool beside = is_beside<Lanes>(partitions * a.kv_heads * a.batch);
      const bool staged = is_staged<Lanes>(args.split.partition_size);
      const auto kernel =
          staged
              ? (beside ? attend_new_token<Number, Lanes, kTwo, kTwo> : attend_new_token<Number, Lanes, false, kTwo>)
              : (beside ? attend_new_token<Number, Lanes, kTwo, false> : attend_new_token<Number, Lanes, false, false>);
      const size_t shared = staged ? kAttentionWarps * kStagedBytes : 0;
      const Merge merge = merge_for(args.split.merge, kernel, partitions, shared);
      const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(a.batch));
      launch(dependent_launch(merge == Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads),
             shared, stream, args.token, operands, args.split.partials, int(args.split.partition_size), merge,
             args.prefetch);
    }
  });
}
