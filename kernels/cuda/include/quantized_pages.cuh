// quantized_pages.cuh: the rows of a quantised cache on their way to registers: what kv_pages.cuh is for 16-bit caches.
//
// Lanes     A lane holds kDims neighbours of a row: 16 or 8, so they lie in one group and share one scale. Its codes
//           are one load of 4, 8 or 16 bytes, its scale one of 1 or 4.
// Values    value() gives codes as fp32 numbers, exactly, in units of the scale and of kUnit, a constant that the
//           kernel makes good for. The scale is applied once to a sum of kDims products with a key, and once to the
//           weight of a value: not to each element.
// Caching   Through the first-level cache: neighbouring records share sectors, and so do scales.
#pragma once

#include "kv_pages.cuh"
#include "paged_attention.cuh"
#include "quantized_rows.cuh"

// --8<-- [start:lanes]
// Like AttentionLanes, with a lane's dimensions side by side.
template <int kGroupSize>
struct QuantizedLanes : AttentionLanes<128, kGroupSize> {
  using Base = AttentionLanes<128, kGroupSize>;
  static __device__ __forceinline__ int dimension(int lane, int i) { return lane % Base::kPerToken * Base::kDims + i; }
};
// --8<-- [end:lanes]

// A row's codes and scale, from the lane's own on.
struct LaneRow {
  const uint8_t *data, *scale;
};

// K or V of one KV head; a slot added to it gives a row.
struct LaneRows {
  LaneRow first;
  const QuantizedLayout& layout;
  int head;

  __device__ __forceinline__ LaneRow operator+(int64_t slot) const {
    const RowOffset at = row_offset(layout, slot, head);
    return {first.data + at.data, first.scale + at.scales};
  }
};

// From a row to that of the next token; and what its scale is.
struct LaneStride {
  int64_t data, scale;
  ScaleFormat format;
};

// One KV head in the pages of one sequence, as a lane reads it.
struct QuantizedPages : PageTable {
  LaneRows k, v;
  LaneStride slot_stride;

  __device__ __forceinline__ int64_t offset(int block, int token) const { return slot(block, token); }
};

template <class Lanes>
__device__ __forceinline__ QuantizedPages quantized_pages(const PageTable& pages,
                                                          const qwen::QuantizedRows& k,
                                                          const qwen::QuantizedRows& v,
                                                          const QuantizedLayout& layout,
                                                          int head,
                                                          int lane) {
  const int dimension = Lanes::dimension(lane, 0);
  const int code = layout.values == ValueFormat::kE4M3 ? dimension : dimension / 2;
  const int scale = dimension / layout.group * (layout.scale_format == ScaleFormat::kFloat32 ? 4 : 1);
  const LaneStride stride{int64_t(layout.heads) * layout.data_row_stride,
                          int64_t(layout.heads) * layout.scale_row_stride, layout.scale_format};
  return {pages,
          {{k.data + code, k.scales + scale}, layout, head},
          {{v.data + code, v.scales + scale}, layout, head},
          stride};
}

// Codes 2 j and 2 j + 1 of a word of E4M3.
__device__ __forceinline__ float2 e4m3_pair(uint32_t word, int j) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  __half2 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(reinterpret_cast<uint32_t&>(pair))
      : "h"(static_cast<unsigned short>(word >> 16 * j)));
  return __half22float2(pair);
#else
  return make_float2(from_e4m3(word >> 16 * j & 0xffu), from_e4m3(word >> (16 * j + 8) & 0xffu));
#endif
}

// Code i of a word of E2M1, times 2^-14: as fp16 the fields of a code stand for that, subnormals too. Code i and code
// i + 4 share the work.
// --8<-- [start:e2m1]
__device__ __forceinline__ float e2m1_fields(uint32_t word, int i) {
  const uint32_t codes = word >> 4 * (i % 4);
  const uint32_t pair = (codes << 9 & 0x0e000e00u) | (codes << 12 & 0x80008000u);
  return to_float(reinterpret_cast<const __half*>(&pair)[i / 4]);
}
// --8<-- [end:e2m1]

// The keys or the values of a stream's turn, as TokenRun; kValues is their format.
template <ValueFormat kValues, class Lanes>
struct QuantizedRun {
  static constexpr float kUnit = kValues == ValueFormat::kE4M3 ? 1.0f : 0x1p14f;
  static constexpr int kPerWord = kValues == ValueFormat::kE4M3 ? 4 : 8, kWords = Lanes::kDims / kPerWord;
  struct alignas(4 * kWords) Codes {
    uint32_t words[kWords];
  };
  Codes codes[Lanes::kRun] = {};
  uint32_t scales[Lanes::kRun] = {};  // as they are stored
  ScaleFormat format = ScaleFormat::kUE8M0;

  __device__ __forceinline__ void load(const LaneRow& from, const LaneStride& stride, int tokens, int) {
    format = stride.format;
#pragma unroll
    for (int t = 0; t < Lanes::kRun; ++t) {
      if (t >= tokens) continue;
      codes[t] = *reinterpret_cast<const Codes*>(from.data + t * stride.data);
      const uint8_t* scale = from.scale + t * stride.scale;
      scales[t] = format == ScaleFormat::kFloat32 ? *reinterpret_cast<const uint32_t*>(scale) : *scale;
    }
  }

  __device__ __forceinline__ float value(int token, int i) const {
    const uint32_t word = codes[token].words[i / kPerWord];
    if constexpr (kValues == ValueFormat::kE2M1) {
      return e2m1_fields(word, i % kPerWord);
    } else {
      const float2 pair = e4m3_pair(word, i % kPerWord / 2);
      return i % 2 == 0 ? pair.x : pair.y;
    }
  }
  // --8<-- [start:apply_scale]
  template <int kSums>
  __device__ __forceinline__ void apply_scale(int token, float (&sums)[kSums]) const {
    const uint32_t code = scales[token];
    const float scale = format == ScaleFormat::kUE8M0  ? from_ue8m0(code)
                        : format == ScaleFormat::kE4M3 ? from_e4m3(code)
                                                       : __uint_as_float(code);
#pragma unroll
    for (int g = 0; g < kSums; ++g) sums[g] *= scale;
  }
  // --8<-- [end:apply_scale]
};
