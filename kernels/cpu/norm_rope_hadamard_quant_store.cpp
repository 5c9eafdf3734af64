// norm_rope_hadamard_quant_store on a CPU: head by head, stage by stage, in the kernel's order of additions and so to
// its bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu_operators.h"
#include "head_stages.h"
#include "narrow_floats.h"

namespace qwen::cpu {
namespace {

using Args = NormRopeHadamardQuantStore;

struct Scale {
  float value;
  uint32_t code;
};

Scale scale_of(float amax, bool finite, const QuantizedLayout& layout) {
  const float largest = layout.values == ValueFormat::kE4M3 ? 448.0f : 6.0f;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (layout.scale_format == ScaleFormat::kUE8M0) {
    const uint32_t code = finite ? to_ue8m0(amax, largest) : 255;
    return {from_ue8m0(code), code};
  }
  if (layout.scale_format == ScaleFormat::kE4M3) {
    const uint32_t code = finite ? std::max(to_e4m3(amax / largest), 1u) : 0x7f;
    return {from_e4m3(code), code};
  }
  const float value = finite ? std::max(amax / largest, 0x1p-126f) : nan;
  return {value, finite ? bits_of(value) : 0x7fffffffu};
}

// Codes and scales of a head; the head becomes what they stand for.
void quantize(const Args& a, float* head, uint8_t* data, uint8_t* scales) {
  const bool e4m3 = a.layout.values == ValueFormat::kE4M3;
  for (int64_t g = 0; g < a.head_dim / a.layout.group; ++g) {
    float amax = 0;
    bool finite = true;
    for (int64_t i = g * a.layout.group; i < (g + 1) * a.layout.group; ++i) {
      finite = finite && std::isfinite(head[i]);
      amax = std::max(amax, std::fabs(head[i]));
    }
    const Scale scale = scale_of(amax, finite, a.layout);
    if (a.layout.scale_format == ScaleFormat::kFloat32) {
      std::memcpy(scales + 4 * g, &scale.code, 4);
    } else {
      scales[g] = static_cast<uint8_t>(scale.code);
    }
    for (int64_t i = g * a.layout.group; i < (g + 1) * a.layout.group; ++i) {
      const uint32_t code = e4m3 ? to_e4m3(head[i] / scale.value) : to_e2m1(head[i] / scale.value);
      if (e4m3) {
        data[i] = static_cast<uint8_t>(code);
      } else {
        data[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : data[i / 2] | code << 4);
      }
      head[i] = (e4m3 ? from_e4m3(code) : from_e2m1(code)) * scale.value;
    }
  }
}

template <class T>
void store_token(const Args& a, int64_t token) {
  int64_t position = 0, slot = token;
  bool known = true, kept = true;
  if (a.cos_sin != nullptr) {
    position = index_at(a.positions, a.wide_positions, token);
    known = 0 <= position && position < a.max_positions;
  }
  if (a.slot_mapping != nullptr) {
    slot = index_at(a.slot_mapping, a.wide_slots, token);
    kept = known && 0 <= slot && slot < a.num_slots;
  }
  float head[kMostDim];
  uint8_t codes[kMostDim], scales[4 * kMostDim / 16];  // of a head that is not kept
  const int64_t dim = a.head_dim;
  for (int64_t x_head = 0; x_head < a.heads; ++x_head) {
    const int64_t h = x_head - a.num_queries;  // below 0: a query
    const T* x = static_cast<const T*>(a.x) + token * a.token_stride + x_head * a.head_stride;
    const auto give = [&](Stage stage) {
      for (int64_t i = 0; a.stage == stage && i < dim; ++i) {
        static_cast<T*>(a.out)[(token * a.heads + x_head) * dim + i] = T(head[i]);
      }
    };
    for (int64_t i = 0; i < dim; ++i) head[i] = static_cast<float>(x[i]);
    const bool is_key = h < a.num_keys;
    const T* weight = static_cast<const T*>(h < 0 ? a.query_weight : a.norm_weight);
    if (is_key && a.norm_weight != nullptr) normalize(head, dim, weight, a.eps);
    give(Stage::kNorm);
    if (is_key && !known) std::fill_n(head, dim, std::numeric_limits<float>::quiet_NaN());
    if (is_key && known && a.cos_sin != nullptr) {
      const float* row = a.cos_sin + position * a.cos_sin_stride;
      rotate(head + dim - a.rotary_dim, a.rotary_dim, row, a.interleaved, a.conjugate);
    }
    if (h < 0) {
      T* out = static_cast<T*>(a.query_out) + (token * a.num_queries + x_head) * dim;
      for (int64_t i = 0; i < dim; ++i) out[i] = T(head[i]);
      continue;
    }
    if (is_key && a.hadamard_scale != 0) hadamard(head, a.hadamard_scale);
    give(Stage::kTransform);
    if (a.layout.values == ValueFormat::kNone) continue;
    for (int64_t i = 0; i < dim; ++i) head[i] = static_cast<float>(T(head[i]));
    const QuantizedLayout& to = a.layout;
    const QuantizedRows& rows = is_key ? a.k : a.v;
    const int64_t block = kept ? slot >> to.block_shift : 0;
    const int64_t place = slot & ((int64_t(1) << to.block_shift) - 1);
    const int64_t row = place * to.heads + (is_key ? h : h - a.num_keys);
    const bool stored = kept && rows.data != nullptr;
    quantize(a, head, stored ? rows.data + block * to.data_block_stride + row * to.data_row_stride : codes,
             stored ? rows.scales + block * to.scale_block_stride + row * to.scale_row_stride : scales);
    give(Stage::kCastBack);
  }
}

}  // namespace

void norm_rope_hadamard_quant_store(const NormRopeHadamardQuantStore& args, int64_t first, int64_t last) {
  dispatch(args.dtype, false, [&](auto zero, auto) {
    for (int64_t token = first; token < last; ++token) store_token<decltype(zero)>(args, token);
  });
}

}  // namespace qwen::cpu
