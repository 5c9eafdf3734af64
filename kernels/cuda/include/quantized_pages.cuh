// quantized_pages.cuh: codes and scales of a quantised cache on their way to registers: what kv_pages.cuh is for 16-bit
// caches. Lanes share a turn of 16 tokens as the Tensor Cores want it (tensor_cores.cuh): lane 4 g + t has of the keys
// of tokens g and g + 8 the t-th quarter, and of the values of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 the g-th
// eighth.
//
// Scales    A quarter of a row has one scale, and so has an eighth; with groups of 16 numbers two: a part each.
// Pages     Each half of a turn lies in one: TurnPages of kv_pages.cuh.
// Caching   Through the first-level cache: neighbouring records share sectors, and so do scales.
#pragma once

#include "kv_pages.cuh"
#include "quantized_rows.cuh"

// A row's codes and scale, from the lane's own on.
struct LaneRow {
  const uint8_t *data, *scale;

  __device__ __forceinline__ LaneRow behind(const RowOffset& at) const { return {data + at.data, scale + at.scales}; }
};

// A row by itself, in shared memory.
struct FreshRow {
  alignas(16) uint8_t data[128];
  alignas(16) uint8_t scales[32];
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

// Two E4M3 codes, of the lower or the upper half of a word, as halves: exactly.
__device__ __forceinline__ uint32_t halves(uint32_t word, int upper) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  if (upper) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }" : "=r"(pair) : "r"(word));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(pair) : "r"(word));
  }
  return pair;
#else
  const auto codes = static_cast<unsigned short>(word >> 16 * upper);
  // With the same fields a half is 2^8 times smaller. The product is exact, subnormals too. All fields set are NaN.
  const uint32_t apart = __byte_perm(codes, 0, 0x4140), magnitudes = apart & 0x007f007fu;
  const uint32_t fields = (apart & 0x00800080u) << 8 | magnitudes << 7;
  const uint32_t nans = (magnitudes + 0x00010001u & 0x00800080u) * (0x7e00u / 0x80u);
  const __half2 pair = __hmul2(*reinterpret_cast<const __half2*>(&fields), __floats2half2_rn(256.0f, 256.0f));
  return *reinterpret_cast<const uint32_t*>(&pair) | nans;
#endif
}

// What depends on the format of the numbers. A lane's codes are words; as seen from here each has four E4M3 codes.
template <ValueFormat kValues>
struct CodeWords {
  static constexpr bool kE4M3 = kValues == ValueFormat::kE4M3;
  static constexpr int kNumbers = kE4M3 ? 4 : 8;         // in a stored word
  static constexpr float kUnit = kE4M3 ? 1.0f : 0x1p6f;  // of what the words say

  // Read as E4M3 the fields of an E2M1 code stand for 2^-6 times its number, subnormals too: so the even and the odd
  // codes of a word become a word each.
  // --8<-- [start:e2m1]
  static __device__ __forceinline__ uint32_t word(const uint32_t* stored, int w) {
    if constexpr (kE4M3) return stored[w];
    const uint32_t codes = stored[w / 2];
    return w % 2 == 0 ? (codes << 4 & 0x80808080u) | (codes << 2 & 0x1c1c1c1cu)
                      : (codes & 0x80808080u) | (codes >> 2 & 0x1c1c1c1cu);
  }
  // --8<-- [end:e2m1]
  // The word that has one of the lane's numbers, and which of its codes that is.
  static __device__ __forceinline__ int word_of(int number) { return kE4M3 ? number / 4 : number / 8 * 2 + number % 2; }
  static __device__ __forceinline__ int code_of(int number) { return kE4M3 ? number % 4 : number % 8 / 2; }
};

template <int kWords>
__device__ __forceinline__ void load_words(uint32_t* to, const uint8_t* from) {
  struct alignas(4 * kWords) Words {
    uint32_t words[kWords];
  };
  const Words loaded = *reinterpret_cast<const Words*>(from);
#pragma unroll
  for (int w = 0; w < kWords; ++w) to[w] = loaded.words[w];
}

// One KV head in the pages of one sequence, as a lane reads it.
struct QuantizedPages : PageTable {
  LaneRow key, value;                        // of token g, or 2 t, if it had slot 0 of block 0
  RowOffset of_key, of_value;                // from a row's begin to what the lane has of it
  int64_t block_bytes;                       // from one block to the next; a cache keeps its scales in them
  unsigned data_stride, scale_stride, last;  // from one slot to the next; the last slot of a block
  ScaleReader scale_of;

  __device__ __forceinline__ RowOffset offset(int block, int token) const {
    const int64_t first = unsigned(block) * block_bytes;
    const uint64_t row = token & last;
    return {int64_t(first + row * data_stride), int64_t(first + row * scale_stride)};
  }
};

template <int kParts>
__device__ __forceinline__ QuantizedPages quantized_pages(const PageTable& pages,
                                                          const qwen::QuantizedRows& k,
                                                          const qwen::QuantizedRows& v,
                                                          const QuantizedLayout& layout,
                                                          int head,
                                                          int lane) {
  const int g = lane / 4, t = lane % 4;
  const ScaleReader scale_of(layout.scale_format);
  const auto data_stride = unsigned(layout.heads * layout.data_row_stride),
             scale_stride = unsigned(layout.heads * layout.scale_row_stride);
  const auto in_row = [&](int dimension) -> RowOffset {
    const int code = layout.values == ValueFormat::kE4M3 ? dimension : dimension / 2;
    return {code, dimension / layout.group * (scale_of.wide ? 4 : 1)};
  };
  const auto row = [&](const qwen::QuantizedRows& rows, int slot) -> LaneRow {
    return {rows.data + head * layout.data_row_stride + slot * uint64_t(data_stride),
            rows.scales + head * layout.scale_row_stride + slot * uint64_t(scale_stride)};
  };
  const RowOffset of_key = in_row(32 * t), of_value = in_row(16 / kParts * g);
  return {pages,
          row(k, g).behind(of_key),
          row(v, 2 * t).behind(of_value),
          of_key,
          of_value,
          layout.data_block_stride,
          data_stride,
          scale_stride,
          (1u << pages.block_shift) - 1,
          scale_of};
}

// What a lane has of a turn. A token that is not there keeps the bytes of an earlier one, and weighs nothing. Those up
// to `stored` lie in the cache.
template <ValueFormat kValues, int kParts>
struct QuantizedTurn {
  using Codes = CodeWords<kValues>;
  static constexpr int kWords = 16 / Codes::kNumbers;  // of an eighth of a row
  uint32_t keys[2][2 * kWords] = {}, values[4][kWords] = {};
  uint32_t key_scales[2][kParts] = {}, value_scales[4][kParts] = {};  // as they are stored
  RowOffset at[2];                                                    // where the tokens of each half lie
  int tokens[2];                                                      // how many there are, or more; -1: no block

  // On to the turn that comes next: its keys are asked for, and its values later.
  template <int kStep>
  __device__ __forceinline__ void advance(
      const QuantizedPages& head, TurnPages<kStep>& turns, int end, int stored, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = turns.next + kHalfTurn * h, block = turns.block_of_half(h);
      tokens[h] = head.has(block) ? stored - first : -1;
      at[h] = head.offset(tokens[h] > 0 ? block : 0, first);
    }
    turns.advance(head, end, lane);
    load_keys(head, lane);
  }

  static __device__ __forceinline__ void load_scale(uint32_t& scale, const uint8_t* from, bool wide) {
    if (wide) {
      scale = *reinterpret_cast<const uint32_t*>(from);
    } else {
      scale = *reinterpret_cast<const int8_t*>(from);
    }
  }
  __device__ __forceinline__ void load_key(int h, const LaneRow& row, bool wide) {
#pragma unroll
    for (int w = 0; w < 2 * kWords; w += 4) load_words<4>(keys[h] + w, row.data + 4 * w);
#pragma unroll
    for (int s = 0; s < kParts; ++s) load_scale(key_scales[h][s], row.scale + s * (wide ? 4 : 1), wide);
  }
  __device__ __forceinline__ void load_value(int i, const LaneRow& row, bool wide) {
    constexpr int kOfPart = kWords / kParts, kHalfRow = 8 * kWords * 2;  // words, bytes
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      load_words<kOfPart>(values[i] + s * kOfPart, row.data + s * kHalfRow);
      load_scale(value_scales[i][s], row.scale + s * 4 * (wide ? 4 : 1), wide);  // 64 numbers on: four groups
    }
  }
  __device__ __forceinline__ void load_keys(const QuantizedPages& head, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane / 4 >= tokens[h]) continue;
      load_key(h, head.key.behind(at[h]), head.scale_of.wide);
    }
  }
  __device__ __forceinline__ void load_values(const QuantizedPages& head, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane % 4 * 2 + i % 2 >= tokens[i / 2]) continue;
      const RowOffset odd = {i % 2 * int64_t(head.data_stride), i % 2 * int64_t(head.scale_stride)};
      load_value(i, head.value.behind(at[i / 2]).behind(odd), head.scale_of.wide);
    }
  }

  // The token at this place of the turn, the first that is not stored: if its page is there, it is now.
  __device__ __forceinline__ void put(
      const QuantizedPages& head, const FreshRow& key, const FreshRow& value, int place, int lane) {
    // --8<-- [start:put]
    const LaneRow k = LaneRow{key.data, key.scales}.behind(head.of_key);
    const LaneRow v = LaneRow{value.data, value.scales}.behind(head.of_value);
    const bool wide = head.scale_of.wide;
#pragma unroll
    for (int h = 0; h < 2; ++h, place -= kHalfTurn) {
      if (place < 0 || tokens[h] != place) continue;
      ++tokens[h];
      if (lane / 4 == place) load_key(h, k, wide);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (lane % 4 * 2 + i == place) load_value(2 * h + i, v, wide);
      }
    }
    // --8<-- [end:put]
  }
};
