// four_heads_store.cuh: norm_rope_hadamard_quant_store for the heads that a cache gets in every step: of 128 elements
// of 16 bits, turned as a whole by pairs (i, i + 64) or not at all, with no outlet but the cache.
//
// Mapping   A warp has four heads of a token: of Q, or of K and, unless there is none, the same four of V. Eight lanes
//           have a head: four_heads.cuh. What a head costs beside its numbers (addresses, slot, scale) is paid once for
//           eight heads, and a lane's numbers are so many that most partners are its own.
// Order     Heads and weights are asked for before anything is computed. The angles, which wait for a position, are
//           asked for when V is stored: so its codes do not wait for them.
// Indices   32 bits each: the launcher looks that they are enough.
#pragma once

#include "group_codes.cuh"

constexpr int kMostWarps = 4;  // of a block

// Indices of 4 or 8 bytes, or of none: then each token has its own number. Those below `count` name a place.
struct Indices {
  const void* first = nullptr;
  unsigned bytes = 0, count = ~0u;
};
struct LoadedIndex {
  unsigned value, upper;

  __device__ __forceinline__ LoadedIndex(const Indices& indices, unsigned token) : value(token), upper(0) {
    const char* at = static_cast<const char*>(indices.first) + uint64_t(token) * indices.bytes;
    if (indices.bytes != 0) value = reinterpret_cast<const unsigned*>(at)[0];
    if (indices.bytes == 8) upper = reinterpret_cast<const unsigned*>(at)[1];
  }
  __device__ __forceinline__ bool is_in(const Indices& indices) const { return (value < indices.count) & (upper == 0); }
};

constexpr unsigned quads_of(unsigned heads) {
  return (heads + kHeadsOfWarp - 1) / kHeadsOfWarp;
}

struct FourHeads {
  const char *x, *cos_sin;
  const void *query_weight, *key_weight;
  char* query_out;
  qwen::QuantizedRows k, v;
  Indices positions, slots;
  unsigned tokens, queries, keys, query_warps;
  unsigned token_bytes, head_bytes, angle_bytes;
  unsigned block_shift, data_block, scale_block, data_row, scale_row;
  int group_shift;  // 8 << group_shift elements are a group
  float eps, hadamard_scale;
  bool has_norm, has_values;
};

// --8<-- [start:four_heads]
template <class T, ValueFormat kValues, ScaleFormat kScales>
__global__ void __launch_bounds__(kMostWarps* kWarpSize) transform_four_heads(FourHeads f) {
  const unsigned lane = threadIdx.x, part = lane % kLanesOfHead;
  const unsigned token = blockIdx.y * blockDim.y + threadIdx.y;
  const bool is_query = blockIdx.x < f.query_warps, has_value = !is_query && f.has_values;
  const unsigned heads = is_query ? f.queries : f.keys;
  const unsigned first = (blockIdx.x - (is_query ? 0 : f.query_warps)) * kHeadsOfWarp;
  const unsigned head = first + lane / kLanesOfHead;
  grid_dependency_trigger();
  grid_dependency_wait();
  if (token >= f.tokens) return;

  const char* x = f.x + uint64_t(token) * f.token_bytes;
  x += (min(head, heads - 1) + (is_query ? 0 : f.queries)) * f.head_bytes;
  StoredPart stored = StoredPart::load_once(x, part), value, weight;
  if (has_value) value = StoredPart::load_once(x + f.keys * f.head_bytes, part);
  if (f.has_norm) weight = StoredPart::load(is_query ? f.query_weight : f.key_weight, part);
  const LoadedIndex slot(f.slots, token), position(f.positions, token);
  const bool known = position.is_in(f.positions);

  const int shift = f.group_shift;
  RowPlace place = {};
  if (!is_query) {
    // Of a token that has no slot, or a slot and no position, nothing is kept.
    if (!slot.is_in(f.slots) || (f.slots.bytes != 0 && !known)) return;
    const unsigned block = slot.value >> f.block_shift;
    const unsigned row = (slot.value - (block << f.block_shift)) * f.keys + head;
    place.data = uint64_t(block) * f.data_block + row * f.data_row;
    place.scales = uint64_t(block) * f.scale_block + row * f.scale_row;
    place.there = head < heads;
    if (has_value) store_groups<T, kValues, kScales>(value, 0, shift, f.v, place, part);
  }

  PartAngles angles;
  if (f.cos_sin != nullptr) {
    const char* turns = f.cos_sin + uint64_t(known ? position.value : 0) * f.angle_bytes;
    angles = load_part_angles(turns, part);
  }
  HeadPart values = HeadPart::of<T>(stored);
  if (f.has_norm) normalize(values, HeadPart::of<T>(weight), f.eps);
  if (f.cos_sin != nullptr) rotate(values, angles);
  const unsigned lost = known ? 0 : 0x7fff7fffu;  // NaN, twice
  if (!is_query) {
    if (f.hadamard_scale != 0) hadamard(values, f.hadamard_scale, lane);
    store_groups<T, kValues, kScales>(values.rounded<T>(), lost, shift, f.k, place, part);
  } else if (head < heads) {
    stored = values.rounded<T>();
#pragma unroll
    for (uint32_t& pair : stored.pairs) pair |= lost;
    stored.store(f.query_out + (uint64_t(token) * heads + head) * 2 * kHeadDim, part);
  }
}
// --8<-- [end:four_heads]

// Whether these heads can be taken four at a time: 16 bytes of x and 8 codes are words, and 32 bits hold every index.
inline bool suits_four_heads(const qwen::NormRopeHadamardQuantStore& a) {
  const QuantizedLayout& to = a.layout;
  if (a.head_dim != kHeadDim || a.stage != qwen::Stage::kNone || to.values == ValueFormat::kNone) return false;
  if (a.cos_sin != nullptr && (a.rotary_dim != kHeadDim || a.interleaved || a.conjugate)) return false;
  const int64_t word = to.values == ValueFormat::kE4M3 ? 8 : 4, block_rows = (int64_t(1) << to.block_shift) * to.heads;
  uint64_t x_bits = uint64_t(2 * a.token_stride) | uint64_t(2 * a.head_stride), data_bits = 0;
  for (const void* at : {a.x, a.norm_weight, a.query_weight, static_cast<const void*>(a.query_out)}) {
    x_bits |= reinterpret_cast<uintptr_t>(at);
  }
  for (const void* at : {a.k.data, a.v.data}) data_bits |= reinterpret_cast<uintptr_t>(at);
  data_bits |= uint64_t(to.data_row_stride) | uint64_t(to.data_block_stride);
  if (x_bits % 16 != 0 || data_bits % word != 0) return false;
  for (int64_t bytes : {2 * a.token_stride, 2 * a.head_stride * a.heads, 4 * a.cos_sin_stride, to.data_block_stride,
                        to.scale_block_stride, to.data_row_stride * block_rows, to.scale_row_stride * block_rows,
                        a.num_slots, a.max_positions}) {
    if (bytes < 0 || bytes >> 31 != 0) return false;
  }
  return a.tokens <= 65535 * kMostWarps;  // blocks along y
}

inline FourHeads four_heads(const qwen::NormRopeHadamardQuantStore& a) {
  const QuantizedLayout& to = a.layout;
  FourHeads f = {};
  f.x = static_cast<const char*>(a.x), f.cos_sin = reinterpret_cast<const char*>(a.cos_sin);
  f.query_weight = a.query_weight, f.key_weight = a.norm_weight, f.query_out = static_cast<char*>(a.query_out);
  f.k = a.k, f.v = a.v;
  if (a.cos_sin != nullptr) f.positions = {a.positions, a.wide_positions ? 8u : 4u, unsigned(a.max_positions)};
  if (a.slot_mapping != nullptr) f.slots = {a.slot_mapping, a.wide_slots ? 8u : 4u, unsigned(a.num_slots)};
  f.tokens = unsigned(a.tokens), f.queries = unsigned(a.num_queries), f.keys = unsigned(a.num_keys);
  f.query_warps = quads_of(f.queries);
  f.token_bytes = unsigned(2 * a.token_stride), f.head_bytes = unsigned(2 * a.head_stride);
  f.angle_bytes = unsigned(4 * a.cos_sin_stride);
  f.block_shift = unsigned(to.block_shift);
  f.data_block = unsigned(to.data_block_stride), f.scale_block = unsigned(to.scale_block_stride);
  f.data_row = unsigned(to.data_row_stride), f.scale_row = unsigned(to.scale_row_stride);
  while (8 << f.group_shift < to.group) ++f.group_shift;
  f.eps = a.eps, f.hadamard_scale = a.hadamard_scale;
  f.has_norm = a.norm_weight != nullptr, f.has_values = a.heads > a.num_queries + a.num_keys;
  return f;
}

// Calls f with the two formats as constants: those that go together.
template <class F>
void dispatch_format(const QuantizedLayout& to, F f) {
  using qwen::ScaleFormat;
  using qwen::ValueFormat;
  constexpr std::integral_constant<ValueFormat, ValueFormat::kE4M3> e4m3;
  constexpr std::integral_constant<ValueFormat, ValueFormat::kE2M1> e2m1;
  constexpr std::integral_constant<ScaleFormat, ScaleFormat::kUE8M0> by_power;
  constexpr std::integral_constant<ScaleFormat, ScaleFormat::kE4M3> by_e4m3;
  constexpr std::integral_constant<ScaleFormat, ScaleFormat::kFloat32> by_float;
  const bool wide = to.values == ValueFormat::kE4M3;
  if (to.scale_format == ScaleFormat::kUE8M0) return wide ? f(e4m3, by_power) : f(e2m1, by_power);
  if (to.scale_format == ScaleFormat::kE4M3) return wide ? f(e4m3, by_e4m3) : f(e2m1, by_e4m3);
  f(e4m3, by_float);
}
