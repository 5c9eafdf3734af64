// qk_norm_rope_cache_write on a CPU: token by token, head by head.
#include <cstring>
#include <limits>

#include "cpu_operators.h"
#include "head_stages.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

constexpr int64_t kHeadDim = kChunk;

// --8<-- [start:head]
// The head x, normed and turned by a row of cos_sin, into `out`.
template <class T>
void norm_and_rotate(const T* x, const T* weight, const float* row, float eps, T* out) {
  float head[kHeadDim];
  for (int64_t i = 0; i < kHeadDim; ++i) head[i] = static_cast<float>(x[i]);
  normalize(head, kHeadDim, weight, eps);
  rotate(head, kHeadDim, row, false, false);
  for (int64_t i = 0; i < kHeadDim; ++i) out[i] = T(head[i]);
}
// --8<-- [end:head]

template <class T>
void write_token(const QkNormRopeCacheWrite& a, int64_t token) {
  const T* x = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  T* q = static_cast<T*>(a.q) + token * a.num_heads * kHeadDim;
  T* k = a.k != nullptr ? static_cast<T*>(a.k) + token * a.num_kv_heads * kHeadDim : nullptr;
  const int64_t position = index_at(a.positions, a.wide_positions, token), kv_size = a.num_kv_heads * kHeadDim;
  if (position < 0 || position >= a.max_positions) {
    const T nan(std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < a.num_heads * kHeadDim; ++i) q[i] = nan;
    for (int64_t i = 0; k != nullptr && i < kv_size; ++i) k[i] = nan;
    return;
  }
  const float* row = a.cos_sin + position * a.cos_sin_stride;
  for (int64_t head = 0; head < a.num_heads; ++head, x += kHeadDim) {
    norm_and_rotate(x, static_cast<const T*>(a.q_weight), row, a.eps, q + head * kHeadDim);
  }
  const int64_t slot = index_at(a.slot_mapping, a.wide_slots, token);
  const bool kept = 0 <= slot && slot < a.num_slots;
  for (int64_t head = 0; head < a.num_kv_heads && (kept || k != nullptr); ++head) {
    T turned[kHeadDim];
    norm_and_rotate(x + head * kHeadDim, static_cast<const T*>(a.k_weight), row, a.eps, turned);
    if (k != nullptr) std::memcpy(k + head * kHeadDim, turned, sizeof turned);
    if (kept) std::memcpy(static_cast<T*>(a.k_cache) + slot * kv_size + head * kHeadDim, turned, sizeof turned);
  }
  if (kept) std::memcpy(static_cast<T*>(a.v_cache) + slot * kv_size, x + kv_size, size_t(kv_size) * sizeof(T));
}

}  // namespace

void qk_norm_rope_cache_write(const QkNormRopeCacheWrite& args, int64_t first, int64_t last) {
  for (int64_t token = first; token < last; ++token) {
    if (args.dtype == Dtype::kFloat16) {
      write_token<Float16>(args, token);
    } else {
      write_token<BFloat16>(args, token);
    }
  }
}

}  // namespace qwen::cpu
