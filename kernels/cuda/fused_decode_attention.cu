// fused_decode_attention.cu: one launch from packed QKV to the output of attention, for the one new token of each
// sequence: QK-norm, RoPE, the write of K and V into their page, attention over all tokens, merge of the partitions.
//
// Mapping   Block (p, h, s) as in paged_attention_split.cu. A short context, planned in one piece, has
//           two blocks a KV head, each with all keys and half of the values' dimensions: more SMs take them in, and
//           nothing has to be merged. Every warp norms and rotates the heads that it needs in registers
//           (new_token.cuh). The new token is the last of its sequence: the warp whose turn it is takes its K and V
//           from shared memory, in place of the cache. They are stored when all is read.
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
// better not, for the SMs that have one make all others wait: they take 8 more. Two that share a context take an SM
// each, and what it has.
template <class Lanes, bool kBeside>
constexpr int kRegisters = Lanes::kGroup > 2    ? 255
                           : Lanes::kShares > 1 ? 65536 / Lanes::kThreads / 8 * 8
                                                : (kBeside ? 160 : 168);

bool is_beside(int64_t blocks) {
  return 3 * blocks > multiprocessors();
}

// Whether a second turn is asked for ahead, into shared memory: where a partition has one.
bool is_staged(int64_t partition_size) {
  return partition_size > kAttentionWarps * kTurnTokens && copies_are_async();
}

// A context that is planned as one partition of so many tokens at most is read in one turn, as long as it has no more,
// by as many warps as that takes, in two blocks a KV head.
constexpr int kShort = 192, kLong = 256;
template <class Lanes, int kTokens>
using OneTurn = SharedLanes<Lanes, kTokens / kTurnTokens, 2>;

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
  const int kv_head = blockIdx.y / Lanes::kShares, share = blockIdx.y % Lanes::kShares;
  const int partition = blockIdx.x, sequence = blockIdx.z;
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  if (!prefetch) grid_dependency_wait();  // before the trigger: the kernels behind may rely on what is older
  grid_dependency_trigger();

  const PagedHead<T> head = a.head(sequence, kv_head);
  const int context = a.context(sequence);
  TokenPlace place = place_of(t, sequence);
  __syncwarp();              // the compiler may not put the position off until the length is here
  place.kept &= share == 0;  // one block stores
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context), newest = context - 1;
  if (begin > 0 && begin >= context) return;

  const TurnPages<Reader::kStep> pages(head, begin + kTurnTokens * warp, end, lane);
  // --8<-- [start:ready]
  // Whether the turn in which the new token comes is this warp's. Without a context it comes
  // in none, and is stored all the same.
  const int turn = max(newest - begin, 0) / kTurnTokens;
  const bool mine = newest < end && turn % Lanes::kWarps == warp;
  NewToken<T, Lanes> fresh;
  fresh.load_constants(t, place.row(), lane);

  Reader reader(lane, share);
  const auto ready = [&] {
    fresh.look_up(t, kv_head, a.group, lane);
    if (prefetch) grid_dependency_wait();
    fresh.load(static_cast<const T*>(t.qkv) + sequence * t.qkv_stride);
    fresh.norm_and_turn(t.eps, place.known, lane);
    reader.set_query(fresh, a.scale);
    if (mine) fresh.leave(fresh_head, place.kept ? place.slot : -1, lane);
  };
  // --8<-- [end:ready]
  const auto add_new = [&](auto& turn, int first) {
    if (mine) turn.put(newest - first, fresh_head.k, fresh_head.v, lane, share);
  };
  unsigned char* stage = kStaged ? dynamic_shared<unsigned char>() + warp * kStagedBytes : nullptr;
  reader.template read<kStaged>(head, pages, end, newest, stage, ready, add_new);
  reader.leave(shared, warp);
  __syncthreads();
  // Nobody waits for this any more.
  if (mine) fresh_head.store(t, kv_head, lane);

  const int live = max(newest, 0) / tokens + 1;  // partitions that have tokens; without any the first, for its zeros
  const PartitionMerge<T, Lanes> end_of{a, partials, sequence, kv_head, partition, live, share};
  if (Lanes::kShares > 1 || live == 1) return end_of.finish_alone(shared);
  if (merge == Merge::kCluster) return end_of.by_cluster(shared, inbox);
  end_of.by_last_block(shared);
}
// --8<-- [end:kernel]

template <class T, class Lanes, bool kBeside, bool kStaged>
void run(const qwen::FusedDecodeAttention& args, const AttentionOperands<T>& operands, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.split.attention;
  const auto kernel = attend_new_token<T, Lanes, kBeside, kStaged>;
  const size_t shared = kStaged ? kAttentionWarps * kStagedBytes : 0;
  const int64_t partitions = args.split.partials.partitions;
  const Merge merge = merge_for(args.split.merge, kernel, partitions, shared);
  const dim3 grid(unsigned(partitions), unsigned(a.kv_heads) * Lanes::kShares, unsigned(a.batch));
  launch(dependent_launch(merge == Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(Lanes::kThreads), shared,
         stream, args.token, operands, args.split.partials, int(args.split.partition_size), merge, args.prefetch);
}

template <class T, class Lanes>
void run_as_planned(const qwen::FusedDecodeAttention& args, const AttentionOperands<T>& operands, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.split.attention;
  const int64_t partitions = args.split.partials.partitions, size = args.split.partition_size;
  if constexpr (Lanes::kGroup > 2) {
    run<T, Lanes, false, false>(args, operands, stream);
  } else if (partitions == 1 && size <= kShort) {
    run<T, OneTurn<Lanes, kShort>, false, false>(args, operands, stream);
  } else if (partitions == 1 && size <= kLong) {
    run<T, OneTurn<Lanes, kLong>, false, false>(args, operands, stream);
  } else {
    const bool beside = is_beside(partitions * a.kv_heads * a.batch);
    if (is_staged(size)) {
      beside ? run<T, Lanes, true, true>(args, operands, stream) : run<T, Lanes, false, true>(args, operands, stream);
    } else {
      beside ? run<T, Lanes, true, false>(args, operands, stream) : run<T, Lanes, false, false>(args, operands, stream);
    }
  }
}

}  // namespace

void qwen_fused_decode_attention(const qwen::FusedDecodeAttention& args, cudaStream_t stream) {
  dispatch_attention(args.split.attention, [&](auto operands, auto lanes) {
    using Lanes = decltype(lanes);
    using Number = typename decltype(operands)::Number;
    if constexpr (Lanes::kHeadDim == kHeadDim) run_as_planned<Number, Lanes>(args, operands, stream);
  });
}
