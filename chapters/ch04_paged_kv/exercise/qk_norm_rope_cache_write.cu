// Exercise of chapter 4: norm, rotation and paged write with three holes. README.md beside this file says how to go
// about it.
//
//   grid    (tokens, ceil(heads / 4)) blocks, where heads are those of Q, K and V together
//   block   (32, 4) threads: four warps, a head each
//   lane    l owns four elements of its head: own[0] is element l, own[1] l + 32, own[2] l + 64, own[3] l + 96
//
// A cache without blocks and a table of one position need hole 1 alone; more positions hole 2 as well; a cache all
// three.
#include <stdexcept>
#include <string>

#include "cache_slot.cuh"
#include "number_types.cuh"
#include "warp_reduce.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kWarps = 4, kOwn = kHeadDim / kWarpSize;

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kNormIsWritten = false;  // set it to true once it is

// RMSNorm of the head that the 32 lanes hold together, in place: own[j] * scale * weight, where scale is
// 1 / sqrt(mean of the 128 squares + eps). `weight` has 128 elements; which four are this lane's? warp_sum(value) of
// warp_reduce.cuh gives each lane the sum over the warp, and to_float(weight[i]) a weight as a float.
template <class T>
__device__ void norm(float (&own)[kOwn], const T* weight, float eps, int lane) {
  (void)own, (void)weight, (void)eps, (void)lane;  // write it here
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kRotationIsWritten = false;  // set it to true once it is

// RoPE, in place. Elements r and r + 64 are a pair (u, v), and become (u cos - v sin, v cos + u sin). The cosine for r
// is row[r], the sine row[64 + r]. Which two pairs does this lane have, and where in own are they?
__device__ void rotate(float (&own)[kOwn], const float* row, int lane) {
  (void)own, (void)row, (void)lane;  // write it here
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kSlotIsWritten = false;  // set it to true once it is

// Where head `kv_head` of the token with this slot begins in `cache`, which is [num_slots, num_kv_heads, 128]; or null
// if it must not be written: -1 says so, and so does any other slot that the cache does not have.
template <class T>
__device__ T* place_in_cache(T* cache, int64_t slot, int kv_head, int64_t num_slots, int num_kv_heads) {
  (void)cache, (void)slot, (void)kv_head, (void)num_slots, (void)num_kv_heads;
  return nullptr;  // write it here
}

// ---- Given: who has which head, loads and stores -------------------------------------------------------------------
template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize) write_heads(Args a) {
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x, head = blockIdx.y * kWarps + threadIdx.y;
  const int kv_head = head - a.num_heads;  // below 0: a head of Q; from num_kv_heads on: a head of V
  if (head >= a.num_heads + 2 * a.num_kv_heads) return;
  const bool is_v = kv_head >= a.num_kv_heads;
  const int64_t position = index_at(a.positions, a.wide_positions, token);
  const int64_t slot = index_at(a.slot_mapping, a.wide_slots, token);
  const bool known = 0 <= position && position < a.max_positions;

  const T* x = static_cast<const T*>(a.qkv) + token * a.qkv_stride + head * kHeadDim;
  T out[kOwn];
  for (int j = 0; j < kOwn; ++j) out[j] = x[lane + j * kWarpSize];
  if (!is_v) {
    float own[kOwn];
    for (int j = 0; j < kOwn; ++j) own[j] = to_float(out[j]);
    norm(own, static_cast<const T*>(kv_head < 0 ? a.q_weight : a.k_weight), a.eps, lane);
    if (known) rotate(own, a.cos_sin + position * a.cos_sin_stride, lane);
    for (int j = 0; j < kOwn; ++j) out[j] = from_float<T>(known ? own[j] : not_a_number());
  }

  const auto store_at = [&](T* to) {
    for (int j = 0; j < kOwn && to != nullptr; ++j) to[lane + j * kWarpSize] = out[j];
  };
  if (kv_head < 0) return store_at(static_cast<T*>(a.q) + (token * a.num_heads + head) * kHeadDim);
  if (!is_v && a.k != nullptr) store_at(static_cast<T*>(a.k) + (token * a.num_kv_heads + kv_head) * kHeadDim);
  if (!known || a.num_slots == 0) return;
  T* cache = static_cast<T*>(is_v ? a.v_cache : a.k_cache);
  store_at(place_in_cache(cache, slot, is_v ? kv_head - a.num_kv_heads : kv_head, a.num_slots, a.num_kv_heads));
}

// ---- Given: from a call to the kernel ------------------------------------------------------------------------------
void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 4, ") + hole +
                           " is not written yet: write it in "
                           "chapters/ch04_paged_kv/exercise/qk_norm_rope_cache_write.cu, then set " +
                           flag + " to true.");
}

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  need(kNormIsWritten, "hole 1 (norm)", "kNormIsWritten");
  if (args.max_positions > 1) need(kRotationIsWritten, "hole 2 (rotate)", "kRotationIsWritten");
  if (args.num_slots > 0) need(kSlotIsWritten, "hole 3 (place_in_cache)", "kSlotIsWritten");
  const int heads = args.num_heads + 2 * args.num_kv_heads;
  const dim3 grid(unsigned(args.tokens), unsigned((heads + kWarps - 1) / kWarps));
  dispatch_dtype(args.dtype, [&](auto zero) {
    if constexpr (sizeof zero == 2) {
      launch(write_heads<decltype(zero)>, grid, dim3(kWarpSize, kWarps), 0, stream, args);
    }
  });
}
