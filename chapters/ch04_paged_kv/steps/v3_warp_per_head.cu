// v3: a warp for each head, and RoPE's partner in the same lane.
//
//   grid    (tokens, ceil(heads / 4)) blocks
//   block   (32, 4) threads: four warps, a head each
//   lane    l owns elements l, l + 32, l + 64 and l + 96: two pairs (r, r + 64)
//
// Traffic: that of v1. The lanes of a load now stand side by side: 64 bytes, two sectors instead of 32.
//
// The idea: 128 elements are four a lane, and it is free to choose which four. Taken 32 apart they hold both ends of
// two rotations, so RoPE needs no neighbour; the norm needs one sum, five shuffles; and a head never leaves its
// registers.
#include "cache_slot.cuh"
#include "number_types.cuh"
#include "warp_reduce.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kWarps = 4, kOwn = kHeadDim / kWarpSize;

// --8<-- [start:kernel]
template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize) write_heads(Args a) {
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x, head = blockIdx.y * kWarps + threadIdx.y;
  const int kv_head = head - a.num_heads;  // below 0: a head of Q
  if (head >= a.num_heads + 2 * a.num_kv_heads) return;
  const TokenPlace place = place_of(a, token);
  const T* all = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const T* x = all + head * kHeadDim + lane;
  const auto store_at = [&](void* heads, int64_t index, const T(&own)[kOwn]) {
    T* to = static_cast<T*>(heads) + index * kHeadDim + lane;
    for (int j = 0; j < kOwn; ++j) to[j * kWarpSize] = own[j];
  };

  T own[kOwn];
  for (int j = 0; j < kOwn; ++j) own[j] = x[j * kWarpSize];
  const int64_t in_cache = place.slot * a.num_kv_heads + kv_head;
  if (kv_head >= a.num_kv_heads) {  // V
    if (place.kept) store_at(a.v_cache, in_cache - a.num_kv_heads, own);
    return;
  }

  float sum = 0.0f;
  for (const T value : own) sum += to_float(value) * to_float(value);
  sum = warp_sum(sum);
  const float scale = place.known ? 1.0f / sqrtf(sum / kHeadDim + a.eps) : not_a_number();

  const T* weight = static_cast<const T*>(kv_head < 0 ? a.q_weight : a.k_weight) + lane;
  const int64_t position = place.known ? place.position : 0;
  const float* row = a.cos_sin + position * a.cos_sin_stride + lane;
  for (int j = 0; j < kOwn / 2; ++j) {
    const int low = j * kWarpSize, high = low + kHalf;
    const float u = to_float(own[j]) * scale * to_float(weight[low]);
    const float v = to_float(own[j + kOwn / 2]) * scale * to_float(weight[high]);
    own[j] = from_float<T>(u * row[low] - v * row[high]);
    own[j + kOwn / 2] = from_float<T>(v * row[low] + u * row[high]);
  }
  if (kv_head < 0) return store_at(a.q, token * a.num_heads + head, own);
  if (a.k != nullptr) store_at(a.k, token * a.num_kv_heads + kv_head, own);
  if (place.kept) store_at(a.k_cache, in_cache, own);
}
// --8<-- [end:kernel]

template <class T>
void launch_all(const Args& a, cudaStream_t stream) {
  const int heads = a.num_heads + 2 * a.num_kv_heads;
  const dim3 grid(unsigned(a.tokens), unsigned((heads + kWarps - 1) / kWarps));
  launch(write_heads<T>, grid, dim3(kWarpSize, kWarps), 0, stream, a);
}

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    if constexpr (sizeof zero == 2) launch_all<decltype(zero)>(args, stream);
  });
}
