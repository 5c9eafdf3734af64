// store_place.cuh: where a token of norm_rope_hadamard_quant_store stands in its sequence, and where its heads go.
#pragma once

#include "cache_slot.cuh"

// --8<-- [start:place]
struct StorePlace {
  int64_t position, slot;
  bool known;  // cos_sin has a row for the position, or none is needed
  bool kept;   // the slot is there to be written
};

__device__ inline StorePlace place_in(const qwen::NormRopeHadamardQuantStore& a, int64_t token) {
  StorePlace place{0, token, true, true};
  if (a.cos_sin != nullptr) {
    place.position = index_at(a.positions, a.wide_positions, token);
    place.known = 0 <= place.position && place.position < a.max_positions;
  }
  if (a.slot_mapping != nullptr) {
    place.slot = index_at(a.slot_mapping, a.wide_slots, token);
    place.kept = place.known && 0 <= place.slot && place.slot < a.num_slots;
  }
  return place;
}
// --8<-- [end:place]
