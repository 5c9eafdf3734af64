// quantized_operands.cuh: which kernel of attention over a quantised cache serves a call, how it is launched, and what
// its blocks share.
#pragma once

#include "partition_merge.cuh"
#include "quantized_reader.cuh"

// The queries are no longer needed when the warps' results come.
template <class Lanes, class Queries>
struct SharedTiles {
  using Results = WarpPartials<Lanes>;
  alignas(16) unsigned char bytes[sizeof(Queries) > sizeof(Results) ? sizeof(Queries) : sizeof(Results)];

  __device__ __forceinline__ Queries& queries() { return *reinterpret_cast<Queries*>(bytes); }
  __device__ __forceinline__ Results& results() { return *reinterpret_cast<Results*>(bytes); }
};

// Calls f(operands, AttentionLanes<…>{}, values, parts): the formats of the numbers and the scales that a quarter of a
// row has as constants. The scales' format is switched at run time.
template <class F>
void dispatch_quantized(const qwen::PagedAttentionQuantized& args, F f) {
  dispatch_attention(args.split.attention, [&](auto operands, auto lanes) {
    if constexpr (decltype(lanes)::kHeadDim == 128) {
      constexpr int kGroup = decltype(lanes)::kGroup;
      const AttentionLanes<128, kGroup == 1 ? 2 : kGroup> of_tiles;  // a tile has two heads
      dispatch_switch(args.layout.group == 16, [&](auto fine) {
        const std::integral_constant<int, fine.value ? 2 : 1> parts;
        if (args.layout.values == ValueFormat::kE4M3)
          return f(operands, of_tiles, std::integral_constant<ValueFormat, ValueFormat::kE4M3>{}, parts);
        f(operands, of_tiles, std::integral_constant<ValueFormat, ValueFormat::kE2M1>{}, parts);
      });
    }
  });
}

// A block for each partition of each KV head of each sequence. `more` are the kernel's last arguments.
template <class Kernel, class Operands, class... More>
void launch_quantized(
    const qwen::PagedAttentionQuantized& args, cudaStream_t stream, Kernel kernel, const Operands& a, More... more) {
  const qwen::PagedAttentionSplit& split = args.split;
  const int64_t partitions = split.partials.partitions;
  const qwen::Merge merge = merge_for(split.merge, kernel, partitions);
  const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(split.attention.batch));
  launch(dependent_launch(merge == qwen::Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads),
         0, stream, a, args.k, args.v, args.layout, args.hadamard_scale, split.partials, int(split.partition_size),
         merge, more...);
}
