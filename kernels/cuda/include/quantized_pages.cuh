// quantized_pages.cuh: codes and scales of a quantised cache on their way to registers: what kv_pages.cuh is for 16-bit
// caches. Lanes share a turn of 16 tokens as the Tensor Cores want it (tensor_cores.cuh): lane 4 g + t has of the keys
// of tokens g and g + 8 the t-th quarter, and of the values of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 the g-th
// eighth.
//
// Scales    A quarter of a row has one scale, and so has an eighth; with groups of 16 numbers two: a part each.
// Pages     Each half of a turn lies in one: TurnPages of kv_pages.cuh.
// Caching   Through the first-level cache: neighbouring records share sectors, and so do scales.
#pragma once

#include "code_numbers.cuh"
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
template <bool kPowers>
struct QuantizedPages : PageTable {
  LaneRow first_key, first_value;            // rows of slot 0 of block 0
  LaneRow key, value;                        // of token g, or 2 t, if it had slot 0 of block 0
  RowOffset of_key, of_value;                // from a row's begin to what the lane has of it
  int64_t block_bytes;                       // from one block to the next; a cache keeps its scales in them
  unsigned data_stride, scale_stride, last;  // from one slot to the next; the last slot of a block
  int scale_words;                           // of a row
  ScaleReader<kPowers> scale_of;

  __device__ __forceinline__ RowOffset offset(int block, int token) const {
    const int64_t first = unsigned(block) * block_bytes;
    const uint64_t row = token & last;
    return {int64_t(first + row * data_stride), int64_t(first + row * scale_stride)};
  }
};

template <int kParts, bool kPowers>
__device__ __forceinline__ QuantizedPages<kPowers> quantized_pages(const PageTable& pages,
                                                                   const qwen::QuantizedRows& k,
                                                                   const qwen::QuantizedRows& v,
                                                                   const QuantizedLayout& layout,
                                                                   int head,
                                                                   int lane) {
  const int g = lane / 4, t = lane % 4, shift = group_shift(layout);
  const ScaleReader<kPowers> scale_of(layout.scale_format);
  const auto data_stride = unsigned(layout.heads * layout.data_row_stride),
             scale_stride = unsigned(layout.heads * layout.scale_row_stride);
  const auto in_row = [&](int dimension) -> RowOffset {
    const int code = layout.values == ValueFormat::kE4M3 ? dimension : dimension / 2;
    return {code, (dimension >> shift) * scale_of.width()};
  };
  const auto row = [&](const qwen::QuantizedRows& rows, int slot) -> LaneRow {
    return {rows.data + head * layout.data_row_stride + slot * uint64_t(data_stride),
            rows.scales + head * layout.scale_row_stride + slot * uint64_t(scale_stride)};
  };
  const RowOffset of_key = in_row(32 * t), of_value = in_row(16 / kParts * g);
  return {pages,
          row(k, 0),
          row(v, 0),
          row(k, g).behind(of_key),
          row(v, 2 * t).behind(of_value),
          of_key,
          of_value,
          layout.data_block_stride,
          data_stride,
          scale_stride,
          (1u << pages.block_shift) - 1,
          (128 >> shift) * scale_of.width() / 4,
          scale_of};
}

// What a lane has of a turn. A token that is not there keeps the bytes of an earlier one, and weighs nothing. Those up
// to `stored` lie in the cache.
template <ValueFormat kValues, int kParts, bool kPowers>
struct QuantizedTurn {
  using Pages = QuantizedPages<kPowers>;
  using Codes = CodeWords<kValues>;
  static constexpr int kWords = 16 / Codes::kNumbers;  // of an eighth of a row
  uint32_t keys[2][2 * kWords] = {}, values[4][kWords] = {};
  uint32_t key_scales[2][kParts] = {}, value_scales[4][kParts] = {};  // as they are stored
  RowOffset at[2];                                                    // where the tokens of each half lie
  int tokens[2];                                                      // how many there are, or more; -1: no block

  // On to the turn that comes next: its keys are asked for, and its values later.
  template <int kStep>
  __device__ __forceinline__ void advance(const Pages& head, TurnPages<kStep>& turns, int end, int stored, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = turns.next + kHalfTurn * h, block = turns.block_of_half(h);
      tokens[h] = head.has(block) ? stored - first : -1;
      at[h] = head.offset(tokens[h] > 0 ? block : 0, first);
    }
    turns.advance(head, end, lane);
    load_keys(head, lane);
  }

  __device__ __forceinline__ void load_key(int h, const LaneRow& row, const ScaleReader<kPowers>& scale_of) {
#pragma unroll
    for (int w = 0; w < 2 * kWords; w += 4) load_words<4>(keys[h] + w, row.data + 4 * w);
#pragma unroll
    for (int s = 0; s < kParts; ++s) key_scales[h][s] = scale_of.load(row.scale + s * scale_of.width());
  }
  __device__ __forceinline__ void load_value(int i, const LaneRow& row, const ScaleReader<kPowers>& scale_of) {
    constexpr int kOfPart = kWords / kParts, kHalfRow = 8 * kWords * 2;  // words, bytes
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      load_words<kOfPart>(values[i] + s * kOfPart, row.data + s * kHalfRow);
      value_scales[i][s] = scale_of.load(row.scale + s * 4 * scale_of.width());  // 64 numbers on: four groups
    }
  }
  __device__ __forceinline__ void load_keys(const Pages& head, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane / 4 >= tokens[h]) continue;
      load_key(h, head.key.behind(at[h]), head.scale_of);
    }
  }
  __device__ __forceinline__ void load_values(const Pages& head, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane % 4 * 2 + i % 2 >= tokens[i / 2]) continue;
      const RowOffset odd = {i % 2 * int64_t(head.data_stride), i % 2 * int64_t(head.scale_stride)};
      load_value(i, head.value.behind(at[i / 2]).behind(odd), head.scale_of);
    }
  }

  // The token at this place of the turn, the first that is not stored: if its page is there, it is now.
  __device__ __forceinline__ void put(
      const Pages& head, const FreshRow& key, const FreshRow& value, int place, int lane) {
    // --8<-- [start:put]
    const LaneRow k = LaneRow{key.data, key.scales}.behind(head.of_key);
    const LaneRow v = LaneRow{value.data, value.scales}.behind(head.of_value);
#pragma unroll
    for (int h = 0; h < 2; ++h, place -= kHalfTurn) {
      if (place < 0 || tokens[h] != place) continue;
      ++tokens[h];
      if (lane / 4 == place) load_key(h, k, head.scale_of);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (lane % 4 * 2 + i == place) load_value(2 * h + i, v, head.scale_of);
      }
    }
    // --8<-- [end:put]
  }

  // The lane's part of key g or g + 8, and of value i; what scales them.
  __device__ __forceinline__ void key(int h, uint32_t (&to)[2 * kWords]) const {
#pragma unroll
    for (int w = 0; w < 2 * kWords; ++w) to[w] = keys[h][w];
  }
  __device__ __forceinline__ void value(int i, uint32_t (&to)[kWords]) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) to[w] = values[i][w];
  }
  __device__ __forceinline__ uint32_t key_scale(int h, int s) const { return key_scales[h][s]; }
  __device__ __forceinline__ uint32_t value_scale(int i, int s) const { return value_scales[i][s]; }
};
