// quantized_pages.cuh: the rows of a quantised cache on their way to registers: what kv_pages.cuh is for 16-bit caches.
//
// Lanes     A lane holds kDims neighbours of a row: 16 or 8, so they lie in one group and share one scale. Its codes
//           are one load of 4, 8 or 16 bytes, its scale one of 1 or 4.
// Values    value() gives codes as fp32 numbers, exactly, in units of the scale and of kUnit, a constant that the
//           kernel makes good for. The scale is applied once to a sum of kDims products with a key, and once to the
//           weight of a value: not to each element. Whatever its format is, nobody branches.
// Ahead     Two turns are on their way while a third is computed: a turn has half of the bytes of a 16-bit one or less,
//           and it takes as many bytes in flight to keep the memory busy.
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

// A scale as it is stored → its number: shifted, its fields are those of an fp32 number that is `factor` times too
// small. The same few operations for each format, so that the lanes of all tokens go on without a branch.
// --8<-- [start:scale_reader]
struct ScaleReader {
  uint32_t shift, fields, least;
  float factor, nan;  // this magnitude stands for NaN
  bool wide;          // four bytes, not one

  __device__ __forceinline__ explicit ScaleReader(ScaleFormat format)
      : shift(1u << 23), fields(0x7f800000u), least(0x00400000u), factor(1.0f), nan(INFINITY), wide(false) {
    if (format == ScaleFormat::kE4M3) {
      shift = 1u << 20, fields = 0x87f00000u, least = 0, factor = 0x1p120f, nan = __uint_as_float(0x07f00000u);
    } else if (format == ScaleFormat::kFloat32) {
      shift = 1, fields = ~0u, least = 0, nan = __uint_as_float(0x7fffffffu), wide = true;
    }
  }
  // A byte is extended by its sign, for E4M3; UE8M0, whose 0 is 2^-127, has none in its fields.
  __device__ __forceinline__ float operator()(uint32_t code) const {
    const float number = __uint_as_float(max(code * shift & fields, least));
    return fabsf(number) == nan ? __uint_as_float(0x7fffffffu) : number * factor;
  }
};
// --8<-- [end:scale_reader]

// From a row to that of the next token, in bytes.
struct LaneStride {
  int64_t data, scale;
};

// One KV head in the pages of one sequence, as a lane reads it.
struct QuantizedPages : PageTable {
  LaneRow k, v;  // in slot 0 of block 0
  LaneStride stride;
  ScaleReader scale_of;
  const QuantizedLayout& layout;

  __device__ __forceinline__ LaneStride offset(int block, int token) const {
    const RowOffset at = row_offset(layout, slot(block, token), 0);
    return {at.data, at.scales};
  }
};

template <class Lanes>
__device__ __forceinline__ QuantizedPages quantized_pages(const PageTable& pages,
                                                          const qwen::QuantizedRows& k,
                                                          const qwen::QuantizedRows& v,
                                                          const QuantizedLayout& layout,
                                                          int head,
                                                          int lane) {
  const ScaleReader scale_of(layout.scale_format);
  const int dimension = Lanes::dimension(lane, 0);
  const int64_t code =
      head * layout.data_row_stride + (layout.values == ValueFormat::kE4M3 ? dimension : dimension / 2);
  const int64_t scale = head * layout.scale_row_stride + dimension / layout.group * (scale_of.wide ? 4 : 1);
  return {pages,
          {k.data + code, k.scales + scale},
          {v.data + code, v.scales + scale},
          {layout.heads * layout.data_row_stride, layout.heads * layout.scale_row_stride},
          scale_of,
          layout};
}

// Code i of a word of E4M3. Neighbours share the work.
__device__ __forceinline__ float e4m3_code(uint32_t word, int i) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  __half2 low, high;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
      : "=r"(reinterpret_cast<uint32_t&>(low)), "=r"(reinterpret_cast<uint32_t&>(high))
      : "r"(word));
  const __half2 pair = i < 2 ? low : high;
  return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
#else
  return from_e4m3(word >> 8 * i & 0xffu);
#endif
}

// Code i of a word of E2M1, times 2^-6. As E4M3 the fields of a code stand for that, subnormals too: so the even and
// the odd codes of a word become a word of E4M3 each.
// --8<-- [start:e2m1]
__device__ __forceinline__ float e2m1_code(uint32_t word, int i) {
  const uint32_t even = (word << 4 & 0x80808080u) | (word << 2 & 0x1c1c1c1cu);
  const uint32_t odd = (word & 0x80808080u) | (word >> 2 & 0x1c1c1c1cu);
  return e4m3_code(i % 2 == 0 ? even : odd, i / 2);
}
// --8<-- [end:e2m1]

// The keys or the values of a stream's turn, as TokenRun; kValues is their format.
template <ValueFormat kValues, class Lanes>
struct QuantizedRun {
  static constexpr float kUnit = kValues == ValueFormat::kE4M3 ? 1.0f : 0x1p6f;
  static constexpr int kPerWord = kValues == ValueFormat::kE4M3 ? 4 : 8, kWords = Lanes::kDims / kPerWord;
  struct alignas(4 * kWords) Codes {
    uint32_t words[kWords];
  };
  ScaleReader scale_of{ScaleFormat::kUE8M0};
  Codes codes[Lanes::kRun] = {};
  uint32_t scales[Lanes::kRun] = {};  // as they are stored

  __device__ __forceinline__ void load(LaneRow row, const LaneStride& offset, const LaneStride& stride, int tokens) {
    const bool wide = scale_of.wide;
    row.data += offset.data, row.scale += offset.scale;
#pragma unroll
    for (int t = 0; t < Lanes::kRun; ++t) {
      if (t < tokens) codes[t] = *reinterpret_cast<const Codes*>(row.data);
      if (t < tokens && !wide) scales[t] = *reinterpret_cast<const int8_t*>(row.scale);
      if (t < tokens && wide) scales[t] = *reinterpret_cast<const uint32_t*>(row.scale);
      row.data += stride.data, row.scale += stride.scale;
    }
  }

  __device__ __forceinline__ float value(int token, int i) const {
    const uint32_t word = codes[token].words[i / kPerWord];
    if constexpr (kValues == ValueFormat::kE2M1) {
      return e2m1_code(word, i % kPerWord);
    } else {
      return e4m3_code(word, i % kPerWord);
    }
  }
  // --8<-- [start:apply_scale]
  template <int kSums>
  __device__ __forceinline__ void apply_scale(int token, float (&sums)[kSums]) const {
    const float scale = scale_of(scales[token]);
#pragma unroll
    for (int g = 0; g < kSums; ++g) sums[g] *= scale;
  }
  // --8<-- [end:apply_scale]
};

// AttentionReader of a quantised cache. The turns of a warp go to kAhead pipelines, one after the other.
template <class T, class Lanes, ValueFormat kValues>
struct QuantizedReader : AttentionReader<T, Lanes, QuantizedRun<kValues, Lanes>> {
  using Run = QuantizedRun<kValues, Lanes>;
  using Base = AttentionReader<T, Lanes, Run>;
  static constexpr int kAhead = 2;  // turns on their way

  // --8<-- [start:read]
  struct Pipeline {
    Run k, v;
    LaneStride at;            // where the rows of its turn lie
    int tokens;               // and how many the lane has
    int next, block_of_next;  // the lane's first token in the turn after that

    __device__ __forceinline__ void begin(const QuantizedPages& head, int token, int end) {
      k.scale_of = v.scale_of = head.scale_of;
      next = token, block_of_next = head.block_of(token, end);
    }
    __device__ __forceinline__ void advance(const QuantizedPages& head, int end) {
      tokens = head.has(block_of_next) ? end - next : 0;
      at = head.offset(tokens > 0 ? block_of_next : 0, next);
      next += kAhead * Lanes::kBlockTurn;
      block_of_next = head.block_of(next, end);
    }
  };

  // Reads this warp's tokens up to `end`; `token` is the lane's first one. When the first rows
  // are on their way, ready() sets q.
  template <class Ready>
  __device__ __forceinline__ void read(const QuantizedPages& head, int token, int end, int lane, Ready ready) {
    Pipeline pipelines[kAhead];
#pragma unroll
    for (int p = 0; p < kAhead; ++p) pipelines[p].begin(head, token + p * Lanes::kBlockTurn, end);
#pragma unroll
    for (Pipeline& it : pipelines) {
      it.advance(head, end);
      it.k.load(head.k, it.at, head.stride, it.tokens);
      it.v.load(head.v, it.at, head.stride, it.tokens);
    }
    ready();
    int turn = token - lane / Lanes::kPerToken * Lanes::kRun;  // the warp's first token
    while (turn < end) {
#pragma unroll
      for (Pipeline& it : pipelines) {
        if (turn >= end) break;
        typename Base::Weights weight;
        this->scores(it.k, it.tokens, weight);
        it.advance(head, end);
        it.k.load(head.k, it.at, head.stride, it.tokens);
        this->weigh(weight);
        this->add_values(it.v, weight);
        it.v.load(head.v, it.at, head.stride, it.tokens);
        turn += Lanes::kBlockTurn;
      }
    }
  }
  // --8<-- [end:read]
};
