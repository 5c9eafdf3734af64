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

// Whether every other turn comes through shared memory (staged_quantized_turn.cuh): where a partition is planned with
// more than `one_turn` tokens, and a row's scales are words.
inline bool is_staged(const qwen::PagedAttentionQuantized& args, int64_t one_turn) {
  const QuantizedLayout& layout = args.layout;
  const int bytes = 128 / layout.group * (layout.scale_format == ScaleFormat::kFloat32 ? 4 : 1);
  const auto places = reinterpret_cast<uintptr_t>(args.k.scales) | reinterpret_cast<uintptr_t>(args.v.scales) |
                      uintptr_t(layout.data_block_stride | layout.scale_row_stride | bytes);
  return args.split.partition_size > one_turn && places % 4 == 0 && copies_are_async();
}

// Calls f(operands, AttentionLanes<…>{}, values, parts, powers, staged) with constants: the format of the numbers, the
// scales that a quarter of a row has, whether they are UE8M0, and is_staged(). FP8 with groups of 16, and scales that
// are no powers of two, are one case, switched at run time.
template <class F>
void dispatch_quantized(const qwen::PagedAttentionQuantized& args, int64_t one_turn, F f) {
  using std::bool_constant, std::integral_constant;
  dispatch_attention(args.split.attention, [&](auto operands, auto lanes) {
    if constexpr (decltype(lanes)::kHeadDim == 128) {
      constexpr int kGroup = decltype(lanes)::kGroup;
      const AttentionLanes<128, kGroup == 1 ? 2 : kGroup> of_tiles;  // a tile has two heads
      const auto with = [&](auto values, auto parts, auto powers) {
        if constexpr (kGroup <= 2) {
          if (is_staged(args, one_turn)) return f(operands, of_tiles, values, parts, powers, std::true_type{});
        }
        f(operands, of_tiles, values, parts, powers, std::false_type{});
      };
      const integral_constant<ValueFormat, ValueFormat::kE4M3> e4m3;
      const integral_constant<ValueFormat, ValueFormat::kE2M1> e2m1;
      const integral_constant<int, 1> one;
      const integral_constant<int, 2> two;
      const bool fine = args.layout.group == 16, is_e4m3 = args.layout.values == ValueFormat::kE4M3;
      if (is_e4m3 && fine) return with(e4m3, two, std::false_type{});
      if (is_e4m3 && args.layout.scale_format == ScaleFormat::kUE8M0) return with(e4m3, one, std::true_type{});
      if (is_e4m3) return with(e4m3, one, std::false_type{});
      if (fine) return with(e2m1, two, std::false_type{});  // NVFP4
      with(e2m1, one, std::true_type{});                    // MXFP4
    }
  });
}

// A block for each partition of each KV head of each sequence, with `shared` bytes beside its own. `more` are the
// kernel's last arguments.
template <class Kernel, class Operands, class... More>
void launch_quantized(const qwen::PagedAttentionQuantized& args,
                      cudaStream_t stream,
                      Kernel kernel,
                      size_t shared,
                      const Operands& a,
                      More... more) {
  const qwen::PagedAttentionSplit& split = args.split;
  const int64_t partitions = split.partials.partitions;
  const qwen::Merge merge = merge_for(split.merge, kernel, partitions, shared);
  const dim3 grid(unsigned(partitions), unsigned(a.kv_heads), unsigned(split.attention.batch));
  launch(dependent_launch(merge == qwen::Merge::kCluster ? int(partitions) : 1), kernel, grid, dim3(kAttentionThreads),
         shared, stream, a, args.k, args.v, args.layout, args.hadamard_scale, split.partials, int(split.partition_size),
         merge, more...);
}
