// v1: a thread for each head, and a launch each for Q, K and V.
//
//   grid    ceil(tokens * heads / 32) blocks, for the heads of Q, of K, and of V in turn
//   block   32 threads, one warp
//   thread  owns a head of a token: it walks the 128 elements for the sum of squares, then pair by pair for the
//   rotation
//
// Traffic: qkv in, as much out, 512 bytes of cos_sin a token. Neighbouring threads are 256 bytes apart, so each load of
// a warp touches 32 sectors for 64 bytes. And each launch has its start and its end, in which nothing is moved.
//
// The idea: none yet. Each later version removes one waste of this one.
#include "cache_slot.cuh"
#include "number_types.cuh"

namespace {

using Args = qwen::QkNormRopeCacheWrite;
constexpr int kThreads = 32;

// --8<-- [start:head]
// Norms and rotates the head x of a token; put(i, value) takes element i of the result.
template <class T, class Put>
__device__ void turn(const Args& a, TokenPlace at, const T* x, const T* weight, Put put) {
  float sum = 0.0f;
  for (int i = 0; i < kHeadDim; ++i) sum += to_float(x[i]) * to_float(x[i]);
  const float scale = at.known ? 1.0f / sqrtf(sum / kHeadDim + a.eps) : not_a_number();
  const float* row = a.cos_sin + (at.known ? at.position : 0) * a.cos_sin_stride;
  for (int r = 0; r < kHalf; ++r) {
    const float u = to_float(x[r]) * scale * to_float(weight[r]);
    const float v = to_float(x[r + kHalf]) * scale * to_float(weight[r + kHalf]);
    put(r, from_float<T>(u * row[r] - v * row[r + kHalf]));
    put(r + kHalf, from_float<T>(v * row[r] + u * row[r + kHalf]));
  }
}

template <class T>
__global__ void turn_q(Args a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t token = i / a.num_heads, head = i % a.num_heads;
  if (token >= a.tokens) return;
  const T* x = static_cast<const T*>(a.qkv) + token * a.qkv_stride + head * kHeadDim;
  const T* weight = static_cast<const T*>(a.q_weight);
  T* q = static_cast<T*>(a.q) + i * kHeadDim;
  turn(a, place_of(a, token), x, weight, [&](int r, T value) { q[r] = value; });
}
// --8<-- [end:head]

template <class T>
__global__ void turn_k(Args a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t token = i / a.num_kv_heads, head = i % a.num_kv_heads;
  if (token >= a.tokens) return;
  const TokenPlace at = place_of(a, token);
  const T* qkv = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const T* x = qkv + (a.num_heads + head) * kHeadDim;
  T* k = static_cast<T*>(a.k) + i * kHeadDim;
  T* page = static_cast<T*>(a.k_cache) + (at.slot * a.num_kv_heads + head) * kHeadDim;
  turn(a, at, x, static_cast<const T*>(a.k_weight), [&](int r, T value) {
    if (a.k != nullptr) k[r] = value;
    if (at.kept) page[r] = value;
  });
}

// --8<-- [start:copy_v]
template <class T>
__global__ void copy_v(Args a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t token = i / a.num_kv_heads, head = i % a.num_kv_heads;
  if (token >= a.tokens) return;
  const TokenPlace place = place_of(a, token);
  if (!place.kept) return;
  const T* qkv = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const T* v = qkv + (a.num_heads + a.num_kv_heads + head) * kHeadDim;
  T* page = static_cast<T*>(a.v_cache) + (place.slot * a.num_kv_heads + head) * kHeadDim;
  for (int r = 0; r < kHeadDim; ++r) page[r] = v[r];
}
// --8<-- [end:copy_v]

// --8<-- [start:launch]
template <class T>
void launch_all(const Args& a, cudaStream_t stream) {
  const auto blocks = [&](int heads) {
    const int64_t threads = a.tokens * heads;
    return dim3(unsigned((threads + kThreads - 1) / kThreads));
  };
  launch(turn_q<T>, blocks(a.num_heads), dim3(kThreads), 0, stream, a);
  launch(turn_k<T>, blocks(a.num_kv_heads), dim3(kThreads), 0, stream, a);
  launch(copy_v<T>, blocks(a.num_kv_heads), dim3(kThreads), 0, stream, a);
}
// --8<-- [end:launch]

}  // namespace

void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) {
    if constexpr (sizeof zero == 2) launch_all<decltype(zero)>(args, stream);
  });
}
