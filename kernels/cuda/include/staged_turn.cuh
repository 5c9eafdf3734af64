// staged_turn.cuh: keys and values of 16 tokens on their way into a warp's shared memory, where they take no register.
// What a lane has of them is what tile_turn.cuh says.
//
// Copies    16 bytes a lane: two rows of a head in one instruction.
// Order     Pack p of row r lies at place p ^ order_of(r): lanes that read together, packs of two keys or of four
//           values, find them in different banks.
// Absent    A token that is not there has zeros, and weighs nothing.
#pragma once

#include "async_copy.cuh"
#include "tile_turn.cuh"

constexpr int kStagedRow = 256, kStagedBytes = 2 * kTurnTokens * kStagedRow;  // of a row, and of a warp

// As TileTurn, but for where its packs are.
template <class T, class Lanes>
struct StagedTurn {
  using Pages = TilePages<T, Lanes>;
  static constexpr int kPacks = kStagedRow / 16, kRows = kWarpSize / kPacks;  // of a row; of an instruction
  static_assert(Lanes::kHeadDim * sizeof(T) == kStagedRow, "rows of 128 numbers of 16 bits");

  unsigned char* rows;      // 16 keys, then 16 values
  int tokens[2];            // how many there are in each half, or more
  int key_at, value_at[2];  // where the lane's first pack of a key lies, and of an even or odd value
  AsyncCopies copies;

  static __device__ __forceinline__ int order_of(int row) { return (row & 1) << 2 ^ (row >> 1 & 3) << 1; }

  __device__ __forceinline__ StagedTurn(unsigned char* of_warp, int lane) : rows(of_warp) {
    const int g = lane / 4, t = lane % 4;
    key_at = g * kStagedRow + 16 * (t ^ order_of(g));
#pragma unroll
    for (int i = 0; i < 2; ++i) value_at[i] = (kTurnTokens + 2 * t + i) * kStagedRow + 16 * (g ^ order_of(2 * t + i));
  }

  // The turn that comes next, if there is one.
  template <int kStep>
  __device__ __forceinline__ void ask(
      const PagedHead<T>& head, TurnPages<kStep>& turns, int end, int stored, int lane) {
    if (turns.next >= end) return;
    const int of_copy = lane / kPacks, pack = lane % kPacks;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = turns.next + kHalfTurn * h, block = turns.block_of_half(h);
      tokens[h] = head.has(block) ? end - first : 0;
      const int in_cache = min(tokens[h], stored - first);
      const int64_t at = head.offset(in_cache > 0 ? block : 0, first) + pack * 8;
#pragma unroll
      for (int i = 0; i < kHalfTurn; i += kRows) {
        const int row = kHalfTurn * h + i + of_copy;
        const bool there = i + of_copy < in_cache;
        const int64_t from = at + (i + of_copy) * head.slot_stride;
        unsigned char* to = rows + row * kStagedRow + 16 * (pack ^ order_of(row));
        copies.ask(to, head.k + from, there);
        copies.ask(to + kTurnTokens * kStagedRow, head.v + from, there);
      }
    }
    copies.close_group();
    turns.advance(head, end, lane);
  }
  __device__ __forceinline__ void wait() {
    copies.template wait<0>();
    __syncwarp();
  }
  // Token n of the turn is not stored: it has this key and this value.
  __device__ __forceinline__ void put(int n, const T* key, const T* value, int lane, int /*share*/) {
    if (n < 0 || n >= kTurnTokens) return;
    const T* from = lane < kPacks ? key : value;
    const int pack = lane % kPacks, row = n + (lane < kPacks ? 0 : kTurnTokens);
    *reinterpret_cast<uint4*>(rows + row * kStagedRow + 16 * (pack ^ order_of(n))) =
        *reinterpret_cast<const uint4*>(from + pack * 8);
    __syncwarp();
  }
  // Pack p of the lane's of a key, and of value i.
  __device__ __forceinline__ uint4 key(int h, int p) const {
    return *reinterpret_cast<const uint4*>(rows + kHalfTurn * kStagedRow * h + (key_at ^ 64 * p));
  }
  __device__ __forceinline__ uint4 value(int i, int p) const {
    return *reinterpret_cast<const uint4*>(rows + kHalfTurn * kStagedRow * (i / 2) + value_at[i % 2] + 128 * p);
  }
};
