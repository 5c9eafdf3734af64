// staged_quantized_turn.cuh: a turn of quantized_pages.cuh that waits in shared memory and takes no register until it
// is its turn.
//
// Layout    16 keys, 16 values, 32 rows of scales. A line of 128 bytes has one row of FP8 or two of FP4, eight packs of
//           16 bytes, and pack c of line l lies at place c ^ order_of(l): what eight lanes read at once, four quarters
//           of two keys or two packs of four values, has eight places.
// Missing   A row that is not in the cache is zeros.
#pragma once

#include "async_copy.cuh"
#include "quantized_pages.cuh"

template <ValueFormat kValues, int kParts, bool kPowers>
struct StagedQuantizedTurn {
  using Pages = QuantizedPages<kPowers>;
  static constexpr int kWords = 16 / CodeWords<kValues>::kNumbers;      // of an eighth of a row
  static constexpr int kRow = 32 * kWords, kScaleRow = 16 * kParts;     // bytes
  static constexpr int kPacks = kRow / 16, kRows = kWarpSize / kPacks;  // of a row; of a copy by all lanes
  static constexpr int kValuesAt = kTurnTokens * kRow, kScalesAt = 2 * kValuesAt;
  static constexpr int kBytes = kScalesAt + 2 * kTurnTokens * kScaleRow;  // of a warp

  unsigned char* rows;
  const ScaleReader<kPowers> scale_of;
  const int words;                                    // of a row's scales; one if they are UE8M0 (is_staged)
  const uint8_t *key_from, *value_from, *scale_from;  // what the lane copies, if its row were in slot 0 of block 0
  int key_at, value_at[2];  // where the lane's part of key g lies, and of values 2 t and 2 t + 1
  int key_scale_at, value_scale_at;
  int tokens[2];  // how many there are in each half, or more; -1: no block
  AsyncCopies copies;

  static __device__ __forceinline__ int order_of(int line) {
    return kRow == 128 ? (line & 1) ^ (line >> 1 & 3) << 1 : (line & 3) << 1;
  }
  static __device__ __forceinline__ int place(int row, int byte) {
    const int at = row * kRow + byte;
    return at ^ order_of(at / 128) * 16;
  }

  __device__ __forceinline__ StagedQuantizedTurn(const Pages& head, unsigned char* of_warp, int lane)
      : rows(of_warp), scale_of(head.scale_of), words(head.scale_words) {
    const int g = lane / 4, t = lane % 4, of_copy = lane / kPacks, pack = lane % kPacks, slot = lane % kHalfTurn;
    const uint64_t row = of_copy * uint64_t(head.data_stride) + 16 * pack;
    key_from = head.first_key.data + row, value_from = head.first_value.data + row;
    scale_from = (lane < kTurnTokens ? head.first_key : head.first_value).scale + slot * uint64_t(head.scale_stride);
    key_at = place(g, t * (kRow / 4));
#pragma unroll
    for (int i = 0; i < 2; ++i) value_at[i] = kValuesAt + place(2 * t + i, g * (kRow / 8 / kParts));
    key_scale_at = kScalesAt + g * kScaleRow + int(head.of_key.scales);
    value_scale_at = kScalesAt + (kTurnTokens + 2 * t) * kScaleRow + int(head.of_value.scales);
  }

  // The turn that comes next, if there is one.
  template <int kStep>
  __device__ __forceinline__ void ask(const Pages& head, TurnPages<kStep>& turns, int end, int stored, int lane) {
    if (turns.next >= end) return;
    const int of_copy = lane / kPacks, pack = lane % kPacks;
    RowOffset at[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = turns.next + kHalfTurn * h, block = turns.block_of_half(h);
      tokens[h] = head.has(block) ? stored - first : -1;
      at[h] = head.offset(tokens[h] > 0 ? block : 0, first);
#pragma unroll
      for (int i = 0; i < kHalfTurn; i += kRows) {
        const bool there = i + of_copy < tokens[h];
        const int64_t from = at[h].data + i * int64_t(head.data_stride);
        unsigned char* to = rows + place(kHalfTurn * h + i + of_copy, 16 * pack);
        copies.ask<16>(to, key_from + from, there);
        copies.ask<16>(to + kValuesAt, value_from + from, there);
      }
    }
    const bool upper = lane / kHalfTurn % 2;  // half of the row whose scales this lane copies
    const uint8_t* from = scale_from + (upper ? at[1] : at[0]).scales;
    const bool there = lane % kHalfTurn < (upper ? tokens[1] : tokens[0]);
    for (int w = 0; w < (kPowers ? 1 : words); ++w)
      copies.ask<4>(rows + kScalesAt + lane * kScaleRow + 4 * w, from + 4 * w, there);
    copies.close_group();
    turns.advance(head, end, lane);
  }
  __device__ __forceinline__ void wait() {
    copies.template wait<0>();
    __syncwarp();
  }

  // As QuantizedTurn's.
  __device__ __forceinline__ void put(const Pages&, const FreshRow& key, const FreshRow& value, int at, int lane) {
    bool there = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (at < kHalfTurn * h || at - kHalfTurn * h != tokens[h]) continue;
      ++tokens[h];
      there = true;
    }
    if (!there || at >= kTurnTokens) return;
    const int pack = lane % kPacks, word = lane % (kScaleRow / 4), of = lane / (kScaleRow / 4);
    if (lane < 2 * kPacks) {
      const FreshRow& from = lane < kPacks ? key : value;
      *reinterpret_cast<uint4*>(rows + (lane < kPacks ? 0 : kValuesAt) + place(at, 16 * pack)) =
          *reinterpret_cast<const uint4*>(from.data + 16 * pack);
    }
    if (of < 2 && word < words) {
      *reinterpret_cast<uint32_t*>(rows + kScalesAt + (kTurnTokens * of + at) * kScaleRow + 4 * word) =
          *reinterpret_cast<const uint32_t*>((of == 0 ? key : value).scales + 4 * word);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void key(int h, uint32_t (&to)[2 * kWords]) const {
#pragma unroll
    for (int w = 0; w < 2 * kWords; w += 4) load_words<4>(to + w, rows + ((key_at ^ 4 * w) + kHalfTurn * kRow * h));
  }
  __device__ __forceinline__ void value(int i, uint32_t (&to)[kWords]) const {
    constexpr int kOfPart = kWords / kParts;
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      load_words<kOfPart>(to + s * kOfPart, rows + ((value_at[i % 2] ^ s * (kRow / 2)) + kHalfTurn * kRow * (i / 2)));
    }
  }
  __device__ __forceinline__ uint32_t key_scale(int h, int s) const {
    return scale_of.load(rows + key_scale_at + kHalfTurn * kScaleRow * h + s * scale_of.width());
  }
  __device__ __forceinline__ uint32_t value_scale(int i, int s) const {
    const int row = kHalfTurn * (i / 2) + i % 2;
    return scale_of.load(rows + value_scale_at + kScaleRow * row + s * 4 * scale_of.width());
  }
};
