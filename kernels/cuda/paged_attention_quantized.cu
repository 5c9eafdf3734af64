// paged_attention_quantized.cu: paged attention by partitions over a cache of FP8 or FP4 codes with scales.
//
// Mapping   Blocks and partitions as in paged_attention_split.cu. A warp takes 16 tokens in a turn, and Tensor Cores
//           take the products with its codes, which are halves without rounding: quantized_reader.cuh. Two turns are
//           on their way, one of them into shared memory.
// Traffic   Codes and scales of the context in, once: FP8 with groups of 32 1.03 bytes a number, FP4 0.53 to 0.56.
// Contract  Codes and scales mean what KVCacheFormat says. Products as exact as in fp32, sums in fp32, one rounding;
//           partitions, their merge and blocks that are none as there. The scales' format is switched at run time.
#include "operators.h"
#include "quantized_operands.cuh"

namespace {

using qwen::Merge;

// --8<-- [start:kernel]
template <class T, class Lanes, ValueFormat kValues, int kParts, bool kPowers, bool kStaged>
__global__ void __launch_bounds__(kAttentionThreads) attend_quantized(AttentionOperands<T> a,
                                                                      qwen::QuantizedRows k,
                                                                      qwen::QuantizedRows v,
                                                                      QuantizedLayout layout,
                                                                      float hadamard_scale,
                                                                      qwen::Partials partials,
                                                                      int partition_size,
                                                                      Merge merge) {
  using Reader = QuantizedReader<Lanes::kGroup, kValues, kParts, kPowers>;
  __shared__ SharedTiles<Lanes, typename Reader::Queries> tiles;
  __shared__ ClusterInbox<Lanes> inbox;
  auto& queries = tiles.queries();
  auto& shared = tiles.results();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  grid_dependency_wait();

  const auto head = quantized_pages<kParts, kPowers>(a.pages(sequence), k, v, layout, kv_head, lane);
  const int context = a.context(sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context);
  if (begin > 0 && begin >= context) return;

  const TurnPages<Reader::kStep> pages(head, begin + kTurnTokens * warp, end, lane);
  Reader reader(queries, head.scale_of, lane);
  const auto ready = [&] {
    queries.set(a.group_of(sequence, kv_head), a.group, a.scale, hadamard_scale, warp, lane);
    __syncthreads();
  };
  unsigned char* stage = kStaged ? dynamic_shared<unsigned char>() + warp * Reader::Staged::kBytes : nullptr;
  reader.template read<kStaged>(head, pages, end, end, stage, ready, [](auto&, int) {});
  __syncthreads();
  reader.leave(shared, warp);
  __syncthreads();

  // The partitions that have tokens; without tokens the first, which writes zeros.
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;
  const PartitionMerge<T, Lanes> end_of{a, partials, sequence, kv_head, partition, live};
  if (live == 1) return end_of.finish_alone(shared);
  if (merge == Merge::kCluster) return end_of.by_cluster(shared, inbox);
  end_of.by_last_block(shared);
}
// --8<-- [end:kernel]

}  // namespace

void qwen_paged_attention_quantized(const qwen::PagedAttentionQuantized& args, cudaStream_t stream) {
  // Always staged: the plan of a short context serves long ones, too.
  dispatch_quantized(args, 0, [&](auto operands, auto lanes, auto values, auto parts, auto powers, auto staged) {
    using T = typename decltype(operands)::Number;
    const auto kernel = attend_quantized<T, decltype(lanes), values(), parts(), powers(), staged()>;
    using Staged = StagedQuantizedTurn<values(), parts(), powers()>;
    const size_t shared = staged() ? kAttentionWarps * Staged::kBytes : 0;
    launch_quantized(args, stream, kernel, shared, operands);
  });
}
