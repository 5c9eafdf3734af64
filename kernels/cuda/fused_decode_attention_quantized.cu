// fused_decode_attention_quantized.cu: one launch from packed QKV to the output of attention over a cache of FP8 or FP4
// codes, for the one new token of each sequence: QK-norm, RoPE, Hadamard transform, K and V as codes in their page,
// attention over all tokens, merge of the partitions.
//
// Mapping   Blocks, warps and turns as in paged_attention_quantized.cu. Before the first turn each head of the token is
//           made ready by a warp, for all (new_quantized_token.cuh). The token is the last of its sequence: the warp
//           whose turn it is takes its codes from shared memory, in place of the cache. That block stores it, too.
// Overlap   With `prefetch` all that does not come from the kernel ahead is asked for before grid_dependency_wait():
//           length, table, the first turns, weights, cosines. What remains is the way from qkv to out.
// Traffic   Codes and scales of the context in, once; those of one token out.
// Contract  The bits of norm_rope_hadamard_quant_store and paged_attention_quantized, one after the other.
#include "new_quantized_token.cuh"
#include "operators.h"
#include "quantized_operands.cuh"

namespace {

using qwen::Merge;

// Registers of a thread: 160, so that a block fits beside one of QKV, as in fused_decode_attention.cu.
template <class Lanes>
constexpr int kRegisters = Lanes::kGroup > 2 ? 255 : 160;

// --8<-- [start:kernel]
template <class T, class Lanes, ValueFormat kValues, int kParts, bool kPowers, bool kStaged>
__global__ void __maxnreg__((kRegisters<Lanes>)) attend_new_quantized(AttentionOperands<T> a,
                                                                      qwen::QuantizedRows k,
                                                                      qwen::QuantizedRows v,
                                                                      QuantizedLayout layout,
                                                                      float hadamard_scale,
                                                                      qwen::Partials partials,
                                                                      int partition_size,
                                                                      Merge merge,
                                                                      qwen::QkNormRopeCacheWrite t,
                                                                      bool prefetch) {
  using Reader = QuantizedReader<Lanes::kGroup, kValues, kParts, kPowers>;
  __shared__ SharedTiles<Lanes, typename Reader::Queries> tiles;
  __shared__ ClusterInbox<Lanes> inbox;
  __shared__ FreshRows rows;
  auto& queries = tiles.queries();
  auto& shared = tiles.results();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  if (!prefetch) grid_dependency_wait();  // before the trigger: the kernels behind may rely on what is older
  grid_dependency_trigger();

  const int context = a.context(sequence);
  const TokenPlace place = place_of(t, sequence);
  __syncwarp();  // the compiler may not put the position off until the length is here
  const auto head = quantized_pages<kParts, kPowers>(a.pages(sequence), k, v, layout, kv_head, lane);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context), newest = context - 1;
  if (begin > 0 && begin >= context) return;

  const TurnPages<Reader::kStep> pages(head, begin + kTurnTokens * warp, end, lane);
  NewQuantizedToken<T, Lanes::kGroup, kValues> fresh({t, place, sequence, kv_head, a.group}, warp, lane);
  fresh.load_constants(warp);
  // --8<-- [start:ready]
  const auto ready = [&] {
    queries.set_zeros();
    if (prefetch) grid_dependency_wait();
    // Without a context the token comes in no turn, and is stored.
    fresh.make(queries, a.scale, hadamard_scale, newest < end, layout, rows);
    __syncthreads();
    fresh.store(layout, k, v);
  };
  const auto add_new = [&](auto& turn, int first) {
    if (newest - first < kTurnTokens) turn.put(head, rows.k, rows.v, newest - first, lane);
  };
  Reader reader(queries, head.scale_of, lane);
  unsigned char* stage = kStaged ? dynamic_shared<unsigned char>() + warp * Reader::Staged::kBytes : nullptr;
  reader.template read<kStaged>(head, pages, end, newest, stage, ready, add_new);
  // --8<-- [end:ready]
  __syncthreads();
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

void qwen_fused_decode_attention_quantized(const qwen::FusedDecodeAttentionQuantized& args, cudaStream_t stream) {
  dispatch_quantized(args.attention, kAttentionWarps * kTurnTokens,
                     [&](auto operands, auto lanes, auto values, auto parts, auto powers, auto staged) {
                       using T = typename decltype(operands)::Number;
                       const auto kernel =
                           attend_new_quantized<T, decltype(lanes), values(), parts(), powers(), staged()>;
                       using Staged = StagedQuantizedTurn<values(), parts(), powers()>;
                       const size_t shared = staged() ? kAttentionWarps * Staged::kBytes : 0;
                       launch_quantized(args.attention, stream, kernel, shared, operands, args.token, args.prefetch);
                     });
}
