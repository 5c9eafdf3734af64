// norm_rope_hadamard_quant_store.cu: five stages between a projection and a quantised KV cache, in one launch.
//
// Mapping   Two kernels. Heads that a cache gets in every step go four or eight to a warp: four_heads_store.cuh. All
//           others have a warp each, transform_heads below: lane l owns the four elements from 128 c + 4 l on, for each
//           chunk c of 128. Its loads and stores lie beside its neighbours'. A group of 16 elements is four lanes, one
//           of 128 the warp. launch() says which it is; both give the same bits.
// Order     Sums and butterflies run in one order, whatever the launch: a head has the same bits in any company.
// Traffic   x in; codes and scales out. On request one stage more, in the dtype of x. Nothing else leaves the registers
//           but for the rotation of transform_heads, where an element meets its partner in shared memory.
// Contract  Norm, rotation and Hadamard transform in fp32, one rounding to the dtype of x; then quantisation, which
//           rounds a second time. So the codes of a head are those of its stored, rounded form. Queries, where x has
//           them ahead of keys, take the first two stages and leave for their own output. Stages are switched at
//           run time: every warp of a launch takes the same way. Six kernels serve all combinations, and ten the usual
//           ones, for two dtypes and five pairs of formats.
#include "chunk_codes.cuh"
#include "four_heads_store.cuh"
#include "store_place.cuh"

namespace {

using Args = qwen::NormRopeHadamardQuantStore;

template <class T, int kChunks>
__device__ __forceinline__ void store_rounded(void* out, const HeadValues<kChunks>& head, int64_t row, int lane) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    Chunk<T, kOfLane> chunk;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) chunk.values[i] = from_float<T>(head.values[c][i]);
    store_chunk<true>(static_cast<T*>(out) + (row * kChunks + c) * kChunk + kOfLane * lane, chunk);
  }
}
template <class T, int kChunks>
__device__ __forceinline__ void store_stage(const Args& a, const HeadValues<kChunks>& head, int64_t row, int lane) {
  store_rounded<T>(a.out, head, row, lane);
}
template <class T, int kChunks>
__device__ __forceinline__ void store_query(
    const Args& a, const HeadValues<kChunks>& head, int64_t token, int query_head, int lane) {
  store_rounded<T>(a.query_out, head, token * a.num_queries + query_head, lane);
}

// Quantises the head, stores it if it is to be, and leaves what its codes stand for.
template <int kChunks>
__device__ __forceinline__ void quantize(
    const Args& a, HeadValues<kChunks>& head, uint8_t* data, uint8_t* scales, bool stored, int lane) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    float (&v)[kOfLane] = head.values[c];
    const ChunkCodes codes(v, a.layout);
    if (stored) codes.store(data, scales, a.layout, lane, c);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) v[i] = decode(codes.four, i, a.layout.values) * codes.scale.value;
  }
}

// --8<-- [start:kernel]
template <class T, int kChunks>
__global__ void __launch_bounds__(kMostWarps* kWarpSize) transform_heads(Args a) {
  alignas(16) __shared__ float exchange[kMostWarps][kChunks * kChunk];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const unsigned row = blockIdx.x * (blockDim.x / kWarpSize) + warp;
  const unsigned token = row / a.heads, x_head = row - token * a.heads;
  const int h = int(x_head) - a.num_queries;  // below 0: a query
  grid_dependency_trigger();
  grid_dependency_wait();
  if (token >= a.tokens) return;

  HeadValues<kChunks> head;
  const T* x = static_cast<const T*>(a.x) + token * a.token_stride + x_head * a.head_stride;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const auto loaded = load_chunk<true, kOfLane>(x + c * kChunk + kOfLane * lane);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) head.values[c][i] = to_float(loaded.values[i]);
  }
  const StorePlace place = place_in(a, token);
  const bool is_key = h < a.num_keys;

  Angles<kChunks> angles = {};
  if (is_key && a.cos_sin != nullptr) {  // before the norm: all is on its way at once
    const float* turns = a.cos_sin + (place.known ? place.position : 0) * a.cos_sin_stride;
    angles = load_angles<kChunks>(turns, a.rotary_dim, a.interleaved, a.conjugate, lane);
  }
  if (is_key && a.norm_weight != nullptr) {
    const void* weight = h < 0 ? a.query_weight : a.norm_weight;
    normalize(head, NormWeight<T, kChunks>::load(weight, lane), a.eps, lane);
  }
  if (a.stage == qwen::Stage::kNorm) store_stage<T>(a, head, row, lane);
  if (is_key && a.cos_sin != nullptr) {
    rotate(head, angles, a.rotary_dim, a.interleaved, exchange[warp], lane);
    if (!place.known) head.for_each([](float& value) { value = not_a_number(); });
  }
  if (h < 0) return store_query<T>(a, head, token, x_head, lane);
  if (is_key && a.hadamard_scale != 0) hadamard(head, a.hadamard_scale, lane);
  if (a.stage == qwen::Stage::kTransform) store_stage<T>(a, head, row, lane);
  if (a.layout.values == ValueFormat::kNone) return;

  head.for_each([](float& value) { value = to_float(from_float<T>(value)); });
  const int cache_head = is_key ? h : h - a.num_keys;
  const RowOffset at = row_offset(a.layout, place.kept ? place.slot : 0, cache_head);
  const qwen::QuantizedRows& rows = is_key ? a.k : a.v;
  const bool stored = place.kept && rows.data != nullptr;
  quantize(a, head, rows.data + at.data, rows.scales + at.scales, stored, lane);
  if (a.stage == qwen::Stage::kCastBack) store_stage<T>(a, head, row, lane);
}
// --8<-- [end:kernel]

// Blocks of one warp spread the heads of few tokens over many SMs.
// --8<-- [start:launch]
int warps_of_block(int64_t warps) {
  return warps <= 512 ? 1 : kMostWarps;
}

template <class A>
void launch_dependent(void (*kernel)(A), dim3 grid, dim3 block, const A& args, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  launch(options, kernel, grid, block, 0, stream, args);
}

template <class T, int kChunks>
void launch_heads(const Args& a, cudaStream_t stream) {
  const int64_t rows = a.tokens * a.heads;
  const int warps = warps_of_block(rows);
  const dim3 grid(unsigned((rows + warps - 1) / warps)), block(unsigned(warps * kWarpSize));
  launch_dependent(transform_heads<T, kChunks>, grid, block, a, stream);
}
// --8<-- [end:launch]

template <class T>
void launch_four_heads(const Args& a, cudaStream_t stream) {
  dispatch_format(a.layout, [&](auto values, auto scales) {
    const FourHeads f = four_heads(a);
    const unsigned quads = f.query_warps + quads_of(f.keys), warps = unsigned(warps_of_block(a.tokens * quads));
    const dim3 grid(quads, (f.tokens + warps - 1) / warps), block(kWarpSize, warps);
    launch_dependent(transform_four_heads<T, values(), scales()>, grid, block, f, stream);
  });
}

}  // namespace

void qwen_norm_rope_hadamard_quant_store(const qwen::NormRopeHadamardQuantStore& args, cudaStream_t stream) {
  // --8<-- [start:choice]
  dispatch_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (suits_four_heads(args)) return launch_four_heads<T>(args, stream);
    }
    if (args.head_dim == kChunk) return launch_heads<T, 1>(args, stream);
    launch_heads<T, 4>(args, stream);
  });
  // --8<-- [end:choice]
}
