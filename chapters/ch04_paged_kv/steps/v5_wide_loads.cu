// v5: 16 bytes an instruction, eight lanes a head.
//
//   grid    (tokens, ceil(heads / 32)) blocks
//   block   (8, 32) threads: a warp has four heads
//   lane    l of a head owns elements 8 l to 8 l + 7 and, 64 further, their partners: two loads of 16 bytes
//
// Traffic: that of v1, in a quarter of the instructions of v4.
//
// The idea: many tokens are pure bandwidth, and that needs bytes in flight. A lane that owns 8 + 8 elements asks for as
// many as an instruction can carry, and the partner is still its own. The sum takes three shuffles instead of five.
#include "cache_slot.cuh"
#include "chunk_load.cuh"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kHeads = 32, kLanes = 8, kPairs = kHalf / kLanes;

// --8<-- [start:kernel]
template <class T, bool kAligned>
__global__ void __launch_bounds__(kHeads* kLanes) write_heads(Args a) {
  const int64_t token = blockIdx.x;
  const int head = blockIdx.y * kHeads + threadIdx.y, first = threadIdx.x * kPairs;
  const int kv_head = head - a.num_heads;  // below 0: a head of Q

  // The next kernel may be brought in now: it waits where we wait.
  grid_dependency_trigger();
  grid_dependency_wait();
  if (head >= a.num_heads + 2 * a.num_kv_heads) return;

  const T* all = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const T* x = all + head * kHeadDim + first;
  const auto low = load_chunk<kAligned, kPairs>(x);
  const auto high = load_chunk<kAligned, kPairs>(x + kHalf);
  const TokenPlace place = place_of(a, token);
  const auto store_at = [&](void* heads, int64_t index, const auto& low, const auto& high) {
    T* to = static_cast<T*>(heads) + index * kHeadDim + first;
    store_chunk<kAligned>(to, low);
    store_chunk<kAligned>(to + kHalf, high);
  };
  const int64_t in_cache = place.slot * a.num_kv_heads + kv_head;
  if (kv_head >= a.num_kv_heads) {  // V
    if (place.kept) store_at(a.v_cache, in_cache - a.num_kv_heads, low, high);
    return;
  }

  const T* weight = static_cast<const T*>(kv_head < 0 ? a.q_weight : a.k_weight) + first;
  const auto low_weight = load_chunk<kAligned, kPairs>(weight);
  const auto high_weight = load_chunk<kAligned, kPairs>(weight + kHalf);
  const int64_t position = place.known ? place.position : 0;
  const float* row = a.cos_sin + position * a.cos_sin_stride + first;
  const auto cosine = load_chunk<kAligned, kPairs>(row);
  const auto sine = load_chunk<kAligned, kPairs>(row + kHalf);

  float sum = 0.0f;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    sum += to_float(low.values[p]) * to_float(low.values[p]);
    sum += to_float(high.values[p]) * to_float(high.values[p]);
  }
  // --8<-- [start:shuffles]
  // Heads of Q, K and V may share a warp: only the eight lanes of this one take part.
  const unsigned lanes = 0xffu << (threadIdx.y % (kWarpSize / kLanes) * kLanes);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(lanes, sum, distance);
  }
  // --8<-- [end:shuffles]
  const float scale = place.known ? 1.0f / sqrtf(sum / kHeadDim + a.eps) : not_a_number();

  Chunk<T, kPairs> low_out, high_out;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const float u = to_float(low.values[p]) * scale * to_float(low_weight.values[p]);
    const float v = to_float(high.values[p]) * scale * to_float(high_weight.values[p]);
    low_out.values[p] = from_float<T>(u * cosine.values[p] - v * sine.values[p]);
    high_out.values[p] = from_float<T>(v * cosine.values[p] + u * sine.values[p]);
  }
  if (kv_head < 0) return store_at(a.q, token * a.num_heads + head, low_out, high_out);
  if (a.k != nullptr) store_at(a.k, token * a.num_kv_heads + kv_head, low_out, high_out);
  if (place.kept) store_at(a.k_cache, in_cache, low_out, high_out);
}
// --8<-- [end:kernel]

template <class T>
bool is_aligned(const Args& a) {
  const auto fits = [](const void* p, int64_t stride) { return rows_are_aligned(static_cast<const T*>(p), stride); };
  return fits(a.qkv, a.qkv_stride) && fits(a.q_weight, 0) && fits(a.k_weight, 0) && fits(a.q, 0) && fits(a.k, 0) &&
         fits(a.k_cache, 0) && fits(a.v_cache, 0) && rows_are_aligned(a.cos_sin, a.cos_sin_stride);
}

template <class T>
void launch_all(const Args& a, cudaStream_t stream) {
  const int heads = a.num_heads + 2 * a.num_kv_heads;
  const dim3 grid(unsigned(a.tokens), unsigned((heads + kHeads - 1) / kHeads));
  LaunchOptions options;
  options.dependent = true;
  dispatch_switch(is_aligned<T>(a), [&](auto aligned) {
    launch(options, write_heads<T, aligned.value>, grid, dim3(kLanes, kHeads), 0, stream, a);
  });
}

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    if constexpr (sizeof zero == 2) launch_all<decltype(zero)>(args, stream);
  });
}
