// v2: one launch for Q, K and V.
//
//   grid    ceil(tokens * heads / 32) blocks, where heads are those of Q, K and V together
//   block   32 threads, one warp
//   thread  owns a head of a token, as in v1; what it does with it depends on whose head it is
//
// Traffic: that of v1, in one launch instead of three.
//
// The idea: the three kernels read rows of one matrix and depend on nothing of each other. A thread asks whose head it
// has, and Q, K and V run at the same time: with few tokens a launch costs more than the work.
#include "cache_slot.cuh"
#include "number_types.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kThreads = 32;

// --8<-- [start:kernel]
template <class T>
__global__ void write_heads(Args a) {
  const int heads = a.num_heads + 2 * a.num_kv_heads;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / heads;
  const int head = static_cast<int>(i % heads);
  const int kv_head = head - a.num_heads;  // below 0: a head of Q
  if (token >= a.tokens) return;
  const TokenPlace place = place_of(a, token);
  const T* x = static_cast<const T*>(a.qkv) + token * a.qkv_stride + head * kHeadDim;
  const int64_t in_cache = (place.slot * a.num_kv_heads + kv_head) * kHeadDim;

  if (kv_head >= a.num_kv_heads) {  // V
    T* page = static_cast<T*>(a.v_cache) + in_cache - a.num_kv_heads * kHeadDim;
    for (int r = 0; r < kHeadDim && place.kept; ++r) page[r] = x[r];
    return;
  }

  float sum = 0.0f;
  for (int r = 0; r < kHeadDim; ++r) sum += to_float(x[r]) * to_float(x[r]);
  const float scale = place.known ? 1.0f / sqrtf(sum / kHeadDim + a.eps) : not_a_number();

  const T* weight = static_cast<const T*>(kv_head < 0 ? a.q_weight : a.k_weight);
  const int64_t position = place.known ? place.position : 0;
  const float* row = a.cos_sin + position * a.cos_sin_stride;
  T* out = static_cast<T*>(a.q) + (token * a.num_heads + head) * kHeadDim;
  const int64_t in_k = (token * a.num_kv_heads + kv_head) * kHeadDim;
  if (kv_head >= 0) out = static_cast<T*>(a.k) + in_k;
  T* page = static_cast<T*>(a.k_cache) + in_cache;
  for (int r = 0; r < kHalf; ++r) {
    const float u = to_float(x[r]) * scale * to_float(weight[r]);
    const float v = to_float(x[r + kHalf]) * scale * to_float(weight[r + kHalf]);
    const T low = from_float<T>(u * row[r] - v * row[r + kHalf]);
    const T high = from_float<T>(v * row[r] + u * row[r + kHalf]);
    if (kv_head < 0 || a.k != nullptr) out[r] = low, out[r + kHalf] = high;
    if (kv_head >= 0 && place.kept) page[r] = low, page[r + kHalf] = high;
  }
}
// --8<-- [end:kernel]

template <class T>
void launch_all(const Args& a, cudaStream_t stream) {
  const int64_t threads = a.tokens * (a.num_heads + 2 * a.num_kv_heads);
  launch(write_heads<T>, dim3(unsigned((threads + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream, a);
}

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    if constexpr (sizeof zero == 2) launch_all<decltype(zero)>(args, stream);
  });
}
