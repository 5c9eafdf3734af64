// tile_turn.cuh: keys and values of 16 tokens on their way to registers, shared among the lanes of a warp as Tensor
// Cores want them (tensor_cores.cuh). Lane 4 g + t has of the keys of tokens g and g + 8 every fourth pack of 8
// numbers, and of the values of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 every eighth.
//
// Loads     16 bytes a lane. The lanes that share a token ask for consecutive bytes: each sector is used whole.
// Pages     Each half of a turn lies in one: TurnPages of kv_pages.cuh.
#pragma once

#include "kv_pages.cuh"

// One KV head in the pages of a sequence, as a lane reads it: its packs if tokens 0 and 1 had slots 0 and 1.
template <class T, class Lanes>
struct TilePages : PageTable {
  static constexpr int kKeyPacks = Lanes::kHeadDim / 32, kValuePacks = Lanes::kValueDim / 64;  // of a token in a lane
  static constexpr int kKeyStep = 4 * 8, kValueStep = 8 * 8;  // numbers to the next one
  const T *key, *value, *next_value;
  uint32_t slot_bytes;

  // share: of the values' dimensions.
  __device__ __forceinline__ TilePages(const PagedHead<T>& head, int lane, int share)
      : PageTable(head),
        key(head.k + lane / 4 * head.slot_stride + lane % 4 * 8),
        value(head.v + lane % 4 * 2 * head.slot_stride + lane / 4 * 8 + share * Lanes::kValueDim),
        next_value(value + head.slot_stride),
        slot_bytes(uint32_t(head.slot_stride * sizeof(T))) {}

  // Bytes. A slot has 128 or more: 32 bits number the slots of half a terabyte.
  __device__ __forceinline__ uint64_t offset(int block, int token) const {
    return uint64_t(uint32_t(slot(block, token))) * slot_bytes;
  }
  static __device__ __forceinline__ const T* row(const T* first, uint64_t offset) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + offset);
  }
};

// What a lane has of a turn. A token that is not there keeps the numbers of an earlier one, and weighs nothing.
template <class T, class Lanes>
struct TileTurn {
  using Pages = TilePages<T, Lanes>;
  uint4 keys[2][Pages::kKeyPacks], values[4][Pages::kValuePacks];
  uint64_t at[2];              // where the tokens of each half lie
  int tokens[2], in_cache[2];  // how many there are, and how many of them in the cache; or more

  __device__ __forceinline__ TileTurn() {
#pragma unroll
    for (int p = 0; p < Pages::kKeyPacks; ++p) keys[0][p] = keys[1][p] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int p = 0; p < Pages::kValuePacks; ++p) values[i][p] = make_uint4(0, 0, 0, 0);
    }
  }
  // On to the turn that comes next: its place. It is loaded later.
  template <int kStep>
  __device__ __forceinline__ void advance(const Pages& pages, TurnPages<kStep>& turns, int end, int stored, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = turns.next + kHalfTurn * h, block = turns.block_of_half(h);
      tokens[h] = pages.has(block) ? end - first : 0;
      in_cache[h] = min(tokens[h], stored - first);
      at[h] = pages.offset(block, first);
    }
    turns.advance(pages, end, lane);
  }
  __device__ __forceinline__ void load_keys(const Pages& pages, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane / 4 >= in_cache[h]) continue;
      const T* row = Pages::row(pages.key, at[h]);
#pragma unroll
      for (int p = 0; p < Pages::kKeyPacks; ++p) keys[h][p] = load_once(row + p * Pages::kKeyStep);
    }
  }
  __device__ __forceinline__ void load_values(const Pages& pages, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane % 4 * 2 + i % 2 >= in_cache[i / 2]) continue;
      const T* row = Pages::row(i % 2 == 0 ? pages.value : pages.next_value, at[i / 2]);
#pragma unroll
      for (int p = 0; p < Pages::kValuePacks; ++p) values[i][p] = load_once(row + p * Pages::kValueStep);
    }
  }
  // Token n of the turn is not stored: it has this key and this value.
  __device__ __forceinline__ void put(int n, const T* key, const T* value, int lane, int share) {
    key += lane % 4 * 8, value += lane / 4 * 8 + share * Lanes::kValueDim;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (n != lane / 4 + kHalfTurn * h) continue;
#pragma unroll
      for (int p = 0; p < Pages::kKeyPacks; ++p) {
        keys[h][p] = *reinterpret_cast<const uint4*>(key + p * Pages::kKeyStep);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n != lane % 4 * 2 + i % 2 + kHalfTurn * (i / 2)) continue;
#pragma unroll
      for (int p = 0; p < Pages::kValuePacks; ++p) {
        values[i][p] = *reinterpret_cast<const uint4*>(value + p * Pages::kValueStep);
      }
    }
  }
  __device__ __forceinline__ const uint4& key(int h, int p) const { return keys[h][p]; }
  __device__ __forceinline__ const uint4& value(int i, int p) const { return values[i][p]; }
};
