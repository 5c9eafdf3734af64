// paged_attention_quantized.cu: paged attention by partitions over a cache of FP8 or FP4 codes with scales.
//
// Mapping   That of paged_attention_split.cu. Rows are loaded as codes and become fp32 numbers in registers, where they
//           are used: quantized_pages.cuh. Each warp transforms the group's queries for itself where the keys were.
// Traffic   Codes and scales of the context in, once: FP8 with groups of 32 1.03 bytes a number, FP4 0.53 to 0.56.
// Contract  Codes and scales mean what KVCacheFormat says. fp32 throughout, one rounding; partitions, their merge and
//           blocks that are none as there. The group and the kind of scale are switched at run time: one for a launch.
#include "head_transform.cuh"
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"
#include "partition_merge.cuh"
#include "quantized_pages.cuh"

namespace {

using qwen::Merge;

// --8<-- [start:kernel]
template <class T, class Lanes, ValueFormat kValues>
__global__ void __launch_bounds__(kAttentionThreads) attend_quantized(AttentionOperands<T> a,
                                                                      qwen::QuantizedRows k,
                                                                      qwen::QuantizedRows v,
                                                                      QuantizedLayout layout,
                                                                      float hadamard_scale,
                                                                      qwen::Partials partials,
                                                                      int partition_size,
                                                                      Merge merge) {
  __shared__ WarpPartials<Lanes> shared;
  __shared__ ClusterInbox<Lanes> inbox;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int partition = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  grid_dependency_trigger();
  if (merge == Merge::kCluster) cluster_arrive_relaxed();
  grid_dependency_wait();

  using Reader = QuantizedReader<T, Lanes, kValues>;
  const QuantizedPages head = quantized_pages<Lanes>(a.pages(sequence), k, v, layout, kv_head, lane);
  const typename Reader::RawQuery query(a.group_of(sequence, kv_head), a.group, lane);
  const int context = a.context(sequence);
  const int tokens = qwen::partition_tokens(context, partition_size, gridDim.x);
  const int begin = partition * tokens, end = min(begin + tokens, context);
  const int token = begin + first_token_of_lane<Lanes>(warp, lane);
  // The partitions that have tokens; without tokens the first, which writes zeros.
  const int live = context == 0 ? 1 : (context - 1) / tokens + 1;
  if (partition >= live) return;

  Reader reader;
  const auto ready = [&] {
    reader.set_query(query, a.scale * Reader::Run::kUnit);
    if (hadamard_scale == 0.0f) return;
#pragma unroll
    for (int g = 0; g < Lanes::kGroup; ++g) hadamard<Lanes::kPerToken>(reader.q[g], hadamard_scale, lane);
  };
  reader.read(head, token, end, lane, ready);
#pragma unroll
  for (int g = 0; g < Lanes::kGroup; ++g) {
#pragma unroll
    for (int i = 0; i < Lanes::kDims; ++i) reader.o[g][i] *= Reader::Run::kUnit;
  }
  reader.leave(shared, warp, lane);
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
      using Lanes = QuantizedLanes<decltype(lanes)::kGroup>;
      if (args.layout.values == ValueFormat::kE4M3) return run(attend_quantized<T, Lanes, ValueFormat::kE4M3>);
      run(attend_quantized<T, Lanes, ValueFormat::kE2M1>);
    }
  });
}
