// qk_norm_rope_cache_write.cu: what stands between the QKV projection and attention, in one launch. Heads of Q and K
// are normed and rotated; K and V go straight to their page.
//
// Mapping   Block x has token x; its threads form groups of kLanes lanes, and each group has a head. RoPE turns the
//           pair (r, r + 64), so lane l owns the pairs kPairs * l, …: kPairs elements of the lower half, and those of
//           the upper half that they turn with. No value of a neighbour is needed but for the sum of squares. With 8
//           lanes a head a lane has 8 + 8 elements: two loads of 16 bytes, and a warp takes four heads.
// Order     The squares of the 64 pairs are added in a binary tree over r, its lower levels within a lane, its upper
//           ones by shuffles. kLanes moves the border between the two, and not a bit of the sum.
// Traffic   qkv in; as many elements out, to q, k_cache and v_cache (and k once more on request). Plus 512 bytes of
//           cos_sin a token.
// Contract  fp32 arithmetic, one rounding. A slot outside of the cache is not written; a position outside of cos_sin
//           gives NaN and writes nothing: no index leads to memory that is not ours.
#include "cache_slot.cuh"
#include "chunk_load.cuh"
#include "operators.h"
#include "vector_load.cuh"
#include "warp_reduce.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kMostThreads = 256;

// The sum of squares over a head, in each of its lanes. Squares of 16-bit numbers have at most 22 digits, so that a
// pair's sum is rounded once, whether or not the compiler fuses it.
// --8<-- [start:sum]
template <int kLanes, int kPairs, class Half>
__device__ __forceinline__ float square_sum(const Half& low, const Half& high) {
  float sums[kPairs];
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const float u = to_float(low.values[p]), v = to_float(high.values[p]);
    sums[p] = fmaf(u, u, v * v);
  }
#pragma unroll
  for (int n = kPairs; n > 1; n /= 2) {
#pragma unroll
    for (int p = 0; p < n / 2; ++p) sums[p] = sums[2 * p] + sums[2 * p + 1];
  }
  // Another head of the warp may be V, or none: only the lanes of this head take part.
  const unsigned group = (threadIdx.y * kLanes + threadIdx.x) % kWarpSize / kLanes;
  const unsigned lanes = kAllLanes >> (kWarpSize - kLanes) << (group * kLanes);
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    sums[0] += __shfl_xor_sync(lanes, sums[0], distance);
  }
  return sums[0];
}
// --8<-- [end:sum]

// --8<-- [start:kernel]
// Block: (kLanes, heads). Grid: (tokens, as many such groups of heads as a token has).
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kMostThreads) write_heads(Args a) {
  constexpr int kPairs = kHalf / kLanes;
  const int64_t token = blockIdx.x;
  const int head = blockIdx.y * blockDim.y + threadIdx.y, first = threadIdx.x * kPairs;
  grid_dependency_trigger();
  grid_dependency_wait();  // whoever ran before may have written positions and slots, too
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

  const int kv_head = head - a.num_heads;  // below 0 for a head of Q
  const int64_t in_cache = place.slot * a.num_kv_heads + kv_head;
  if (kv_head >= a.num_kv_heads) {  // V: a copy
    if (place.kept) store_at(a.v_cache, in_cache - a.num_kv_heads, low, high);
    return;
  }

  // Asked for before the sum, so that all is on its way at once. Only cos_sin has to wait:
  // for the position.
  const T* weight = static_cast<const T*>(kv_head < 0 ? a.q_weight : a.k_weight) + first;
  const auto low_weight = load_chunk<kAligned, kPairs>(weight);
  const auto high_weight = load_chunk<kAligned, kPairs>(weight + kHalf);
  const int64_t position = place.known ? place.position : 0;
  const float* row = a.cos_sin + position * a.cos_sin_stride + first;
  const auto cosine = load_chunk<kAligned, kPairs>(row);
  const auto sine = load_chunk<kAligned, kPairs>(row + kHalf);

  const float mean = square_sum<kLanes, kPairs>(low, high) / kHeadDim;
  const float scale = place.known ? 1.0f / sqrtf(mean + a.eps) : not_a_number();
  Chunk<T, kPairs> low_out, high_out;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const float u = to_float(low.values[p]) * scale * to_float(low_weight.values[p]);
    const float v = to_float(high.values[p]) * scale * to_float(high_weight.values[p]);
    const float c = cosine.values[p], s = sine.values[p];
    // Fused by hand, so that all instances round alike.
    low_out.values[p] = from_float<T>(fmaf(u, c, -(v * s)));
    high_out.values[p] = from_float<T>(fmaf(v, c, u * s));
  }
  if (kv_head < 0) return store_at(a.q, token * a.num_heads + head, low_out, high_out);
  if (a.k != nullptr) store_at(a.k, token * a.num_kv_heads + kv_head, low_out, high_out);
  if (place.kept) store_at(a.k_cache, in_cache, low_out, high_out);
}
// --8<-- [end:kernel]

template <class T, int kLanes, bool kAligned>
void launch_heads(const Args& a, int most_threads, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const int heads = a.num_heads + 2 * a.num_kv_heads, most = most_threads / kLanes;
  const int of_block = heads < most ? heads : most;
  const dim3 grid(unsigned(a.tokens), unsigned((heads + of_block - 1) / of_block));
  launch(options, write_heads<T, kLanes, kAligned>, grid, dim3(kLanes, unsigned(of_block)), 0, stream, a);
}

template <class T>
bool is_aligned(const Args& a) {
  const auto fits = [](const void* p, int64_t stride) { return rows_are_aligned(static_cast<const T*>(p), stride); };
  return fits(a.qkv, a.qkv_stride) && fits(a.q_weight, 0) && fits(a.k_weight, 0) && fits(a.q, 0) && fits(a.k, 0) &&
         fits(a.k_cache, 0) && fits(a.v_cache, 0) && rows_are_aligned(a.cos_sin, a.cos_sin_stride);
}

// Blocks of one warp spread few tokens over many SMs. Measured on an H200: docs/experiments.md.
// --8<-- [start:choice]
template <class T>
void write_tokens(const Args& a, cudaStream_t stream) {
  dispatch_switch(is_aligned<T>(a), [&](auto aligned) {
    const int threads = a.tokens <= 64 ? 32 : a.tokens <= 512 ? kMostThreads : 128;
    launch_heads<T, 8, aligned.value>(a, threads, stream);
  });
}
// --8<-- [end:choice]

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) write_tokens<T>(args, stream);
  });
}
