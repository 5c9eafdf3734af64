// paged_attention_quantized.cu: paged attention by partitions over a cache of FP8 or FP4 codes with scales.
//
// Mapping   Blocks and partitions as in paged_attention_split.cu. A warp takes 16 tokens in a turn, and Tensor Cores
//           take the products with its codes, which are halves without rounding: quantized_reader.cuh.
// Traffic   Codes and scales of the context in, once: FP8 with groups of 32 1.03 bytes a number, FP4 0.53 to 0.56.
// Contract  Codes and scales mean what KVCacheFormat says. Products as exact as in fp32, sums in fp32, one rounding;
//           partitions, their merge and blocks that are none as there. The scales' format is switched at run time.
#include "operators.h"
#include "paged_operands.cuh"
#include "partition_merge.cuh"
#include "quantized_reader.cuh"

namespace {

using qwen::Merge;

template <class Lanes, class Queries>
constexpr size_t kSharedBytes = sizeof(Queries) > sizeof(WarpPartials<Lanes>) ? sizeof(Queries)
                                                                              : sizeof(WarpPartials<Lanes>);

// --8<-- [start:kernel]
template <class T, class Lanes, ValueFormat kValues, int kParts>
__global__ void __launch_bounds__(kAttentionThreads) attend_quantized(AttentionOperands<T> a,
                                                                      qwen::QuantizedRows k,
                                                                      qwen::QuantizedRows v,
                                                                      QuantizedLayout layout,
                                                                      float hadamard_scale,
                                                                      qwen::Partials partials,
                                                                      int partition_size,
                                                                      Merge merge) {
  using Reader = QuantizedReader<Lanes::kGroup, kValues, kParts>;
  // The queries are no longer needed when the warps' results come.
  alignas(16) __shared__ unsigned char bytes[kSharedBytes<Lanes, typename Reader::Queries>];
  auto& queries = *reinterpret_cast<typename Reader::Queries*>(bytes);
  auto& shared = *reinterpret_cast<WarpPartials<Lanes>*>(bytes);
  __shared__ ClusterInbox<Lanes> inbox;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  grid_dependency_wait();

  const auto head = quantized_pages<kParts>(a.pages(sequence), k, v, layout, kv_head, lane);
  const int context = a.context(sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context);
  // The partitions that have tokens; without tokens the first, which writes zeros.
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;
  if (partition >= live) return;

  Reader reader(queries, head.scale_of, lane);
  reader.read(head, begin + kTurnTokens * warp, end, [&] {
    queries.set(a.group_of(sequence, kv_head), a.group, a.scale, hadamard_scale, warp, lane);
    __syncthreads();
  });
  __syncthreads();
  reader.leave(shared, warp);
  __syncthreads();

  const PartitionMerge<T, Lanes> end_of{a, partials, sequence, kv_head, partition, live};
  if (live == 1) return end_of.finish_alone(shared);
  if (merge == Merge::kCluster) return end_of.by_cluster(shared, inbox);
  end_of.by_last_block(shared);
}
// --8<-- [end:kernel]

}  // namespace

void qwen_paged_attention_quantized(const qwen::PagedAttentionQuantized& args, cudaStream_t stream) {
  const qwen::PagedAttention& a = args.split.attention;
  dispatch_attention(a, [&](auto operands, auto lanes) {
    if constexpr (decltype(lanes)::kHeadDim == 128) {
      const auto run = [&](auto kernel) {
        const int64_t partitions = args.split.partials.partitions;
        const Merge merge = merge_for(args.split.merge, kernel, partitions);
        const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(a.batch));
        launch(dependent_launch(merge == Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads),
               0, stream, operands, args.k, args.v, args.layout, args.hadamard_scale, args.split.partials,
               int(args.split.partition_size), merge);
      };
      using T = typename decltype(operands)::Number;
      constexpr int kGroup = decltype(lanes)::kGroup;
      using Lanes = AttentionLanes<128, kGroup == 1 ? 2 : kGroup>;  // a tile has two heads
      const auto of_groups = [&](auto fine) {
        constexpr int kParts = fine.value ? 2 : 1;
        if (args.layout.values == ValueFormat::kE4M3)
          return run(attend_quantized<T, Lanes, ValueFormat::kE4M3, kParts>);
        run(attend_quantized<T, Lanes, ValueFormat::kE2M1, kParts>);
      };
      dispatch_switch(args.layout.group == 16, of_groups);
    }
  });
}
