// kv_pages.cuh: where the keys and values of a sequence lie, and a few of them on their way to registers.
#pragma once

#include "vector_load.cuh"
#include "warp_reduce.cuh"

// The pages of one sequence.
struct PageTable {
  const int32_t* table;  // the sequence's row of block_table
  int table_size;        // entries of that row
  int num_blocks, block_shift;

  __device__ __forceinline__ int block_of(int token, int end) const {
    const int entry = token >> block_shift;
    return token < end && entry < table_size ? table[entry] : -1;
  }
  __device__ __forceinline__ bool has(int block) const { return unsigned(block) < unsigned(num_blocks); }
  __device__ __forceinline__ int64_t slot(int block, int token) const {
    return (int64_t(block) << block_shift) + (token & ((1 << block_shift) - 1));
  }
};

constexpr int kTurnTokens = 16, kHalfTurn = kTurnTokens / 2;  // of a warp, for Tensor Cores

// Where a warp's turns lie, of which one begins kStep tokens after the other. Eight tokens lie in one page, whatever
// its size: each half of a turn has its own. Lane 2 n + h looks up half h of turn n, so that 16 turns are known before
// the first begins. A turn that looked up the next one would wait for all loads that it asked for after that.
template <int kStep>
struct TurnPages {
  static constexpr int kTurns = kWarpSize / 2;
  int next;   // the first token of the turn that comes next
  int turn;   // which of those that were looked up it is
  int block;  // of the lane's half

  __device__ __forceinline__ TurnPages(const PageTable& pages, int token, int end, int lane) : next(token) {
    look_up(pages, end, lane);
  }
  __device__ __forceinline__ void look_up(const PageTable& pages, int end, int lane) {
    turn = 0;
    block = pages.block_of(next + lane / 2 * kStep + lane % 2 * kHalfTurn, end);
  }
  __device__ __forceinline__ int block_of_half(int h) const { return __shfl_sync(kAllLanes, block, 2 * turn + h); }
  __device__ __forceinline__ void advance(const PageTable& pages, int end, int lane) {
    next += kStep;
    if (++turn == kTurns) look_up(pages, end, lane);
  }
};

// One KV head in them.
template <class T>
struct PagedHead : PageTable {
  const T *k, *v;       // this head in slot 0 of block 0
  int64_t slot_stride;  // elements from one slot to the next

  __device__ __forceinline__ int64_t offset(int block, int token) const { return slot(block, token) * slot_stride; }
};

// The keys or the values of a stream's turn. What a turn does not reach keeps what it had, and weighs nothing. Two
// numbers share a register until they are used.
template <class T, class Lanes>
struct TokenRun {
  uint4 packs[Lanes::kRun][Lanes::kPacks];

  __device__ __forceinline__ TokenRun() {
#pragma unroll
    for (int t = 0; t < Lanes::kRun; ++t) {
#pragma unroll
      for (int p = 0; p < Lanes::kPacks; ++p) packs[t][p] = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ void load(const T* from, int64_t slot_stride, int tokens, int lane) {
#pragma unroll
    for (int t = 0; t < Lanes::kRun; ++t) {
#pragma unroll
      for (int p = 0; p < Lanes::kPacks; ++p) {
        if (t < tokens) packs[t][p] = load_once(from + t * slot_stride + Lanes::dimension(lane, 8 * p));
      }
    }
  }
  __device__ __forceinline__ float value(int token, int i) const { return element<T>(packs[token][i / 8], i % 8); }
};
