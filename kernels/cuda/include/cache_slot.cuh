// cache_slot.cuh: where a token stands in its sequence, and where its K and V go.
#pragma once

#include "cuda_platform.cuh"
#include "operators.h"

constexpr int kHeadDim = 128, kHalf = kHeadDim / 2;  // RoPE turns element r with element r + kHalf

// Element i of a tensor of int64_t (wide) or int32_t. All threads take the same way.
__device__ __forceinline__ int64_t index_at(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

// --8<-- [start:place]
struct TokenPlace {
  int64_t position, slot;
  bool known;  // cos_sin has a row for the position
  bool kept;   // and the cache has the slot: only then may K and V be written

  // The row of cos_sin; any where the position is not known.
  __device__ __forceinline__ int row() const { return known ? int(position) : 0; }
};

__device__ inline TokenPlace place_of(const qwen::QkNormRopeCacheWrite& a, int64_t token) {
  TokenPlace place;
  place.position = index_at(a.positions, a.wide_positions, token);
  place.slot = index_at(a.slot_mapping, a.wide_slots, token);
  place.known = 0 <= place.position && place.position < a.max_positions;
  place.kept = place.known && 0 <= place.slot && place.slot < a.num_slots;
  if (!place.kept) place.slot = 0;  // so that its address, which nobody uses, is one
  return place;
}
// --8<-- [end:place]

// What a token without a known position gets in place of a result.
__device__ __forceinline__ float not_a_number() {
  return __int_as_float(0x7fffffff);
}
