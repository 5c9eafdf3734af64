// Exercise of chapter 10: from a projection to a quantised KV cache, with three holes. README.md beside this file says
// how to go about it.
//
//   norm and rotation               given
//   Hadamard transform              seven stages: two within a lane, five among the lanes             hole 1
//   codes and scales                a group's largest magnitude, its scale, its codes, their bytes    hole 2
//   a scale that is a power of two  by the bits of the largest magnitude                              hole 3
//
// A warp has a head of a token. Of each 128 elements, a chunk, lane l has the four from 4 l on.
#include <stdexcept>
#include <string>

#include "head_transform.cuh"
#include "quantized_rows.cuh"
#include "store_place.cuh"

namespace {

using Args = qwen::NormRopeHadamardQuantStore;
constexpr int kWarps = 4;

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kTransformIsWritten = false;  // set it to true once it is

// Sylvester's matrix of order 128 times `scale`. Stage b = 0 … 6 replaces elements u and w, whose indices differ in bit
// b and u's has a 0 there, by u + w and u - w. This lane has elements 4 * lane to 4 * lane + 3, in v. All 32 lanes call
// it together, so __shfl_xor_sync(kAllLanes, value, distance) gives the value of lane ^ distance. Multiply at the end.
__device__ __forceinline__ void transform_chunk(float (&v)[kOfLane], float scale, int lane) {
  (void)v, (void)scale, (void)lane;  // write it here
}

// ---- Hole 3 --------------------------------------------------------------------------------------------------------
constexpr bool kPowerIsWritten = false;  // set it to true once it is

// The UE8M0 code of the smallest power of two that is not below amax / 448 (e4m3), or amax / 6: 0 is 2^-127, 127 is 1.
// `amax_bits` are those of a finite fp32 number without its sign: 23 bits of fraction, above them the exponent + 127.
// Exactly, for every amax: without a logarithm, and without a division that rounds. 448 is 1.75 * 2^8, 6 is 1.5 * 2^2.
__device__ __forceinline__ unsigned power_of_two_code(unsigned amax_bits, bool e4m3) {
  (void)amax_bits, (void)e4m3;  // write it here
  return 127;
}

// ---- Given: the scale of a group, from the bits of its largest magnitude --------------------------------------------
[[maybe_unused]] __device__ __forceinline__ GroupScale group_scale(unsigned amax_bits, const QuantizedLayout& layout) {
  if (layout.scale_format != ScaleFormat::kUE8M0) return scale_of(amax_bits, layout);
  const bool finite = amax_bits < kInfinityBits;
  const unsigned code = finite ? power_of_two_code(amax_bits, layout.values == ValueFormat::kE4M3) : 255;
  return {from_ue8m0(code), code};
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kCodesAreWritten = false;  // set it to true once they are

// Quantises chunk c of a head, of which this lane has four numbers, in groups of to.group neighbours: 16, 32, 64 or
// 128, so a group lies in 4 to 32 neighbouring lanes, and each lane needs its largest magnitude. Take the magnitudes by
// their bits, __float_as_uint(x) & 0x7fffffffu, as integers: a NaN is then above all numbers. group_scale() gives the
// scale, divide(v, scale, to.scale_format) puts v in its units, encode(v, to.values) makes four codes, the first in the
// lowest bits: 32 bits of FP8, 16 of FP4.
//
// If `stored`, write the codes to `data`, where the head's begin, and the group's scale.code to `scales`: the number of
// the group within the head times 1 byte, or 4 for fp32. One lane of a group does that. At the end v must be what the
// codes stand for: decode(codes, i, to.values) * scale.value.
__device__ __forceinline__ void quantize_chunk(
    float (&v)[kOfLane], const QuantizedLayout& to, uint8_t* data, uint8_t* scales, bool stored, int c, int lane) {
  (void)v, (void)to, (void)data, (void)scales, (void)stored, (void)c, (void)lane;  // write it here
}

// ---- Given: the way of a head, and from a call to the kernel that serves it -----------------------------------------
template <class T, int kChunks>
__device__ __forceinline__ void store_stage(const Args& a, const HeadValues<kChunks>& head, int64_t row, int lane) {
  T* out = static_cast<T*>(a.out) + row * kChunks * kChunk + kOfLane * lane;
  for (int c = 0; c < kChunks; ++c) {
    for (int i = 0; i < kOfLane; ++i) out[c * kChunk + i] = from_float<T>(head.values[c][i]);
  }
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kWarps* kWarpSize) transform_heads(Args a) {
  alignas(16) __shared__ float exchange[kWarps][kChunks * kChunk];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp, token = row / a.heads;
  if (token >= a.tokens) return;
  const int h = int(row - token * a.heads);
  const T* x = static_cast<const T*>(a.x) + token * a.token_stride + h * a.head_stride;
  HeadValues<kChunks> head;
  for (int c = 0; c < kChunks; ++c) {
    for (int i = 0; i < kOfLane; ++i) head.values[c][i] = to_float(x[c * kChunk + kOfLane * lane + i]);
  }
  const StorePlace place = place_in(a, token);
  const bool is_key = h < a.num_keys;
  if (is_key && a.norm_weight != nullptr) {
    normalize(head, NormWeight<T, kChunks>::load(a.norm_weight, lane), a.eps, lane);
  }
  if (a.stage == qwen::Stage::kNorm) store_stage<T>(a, head, row, lane);
  if (is_key && a.cos_sin != nullptr) {
    const float* turns = a.cos_sin + (place.known ? place.position : 0) * a.cos_sin_stride;
    const auto angles = load_angles<kChunks>(turns, a.rotary_dim, a.interleaved, a.conjugate, lane);
    rotate(head, angles, a.rotary_dim, a.interleaved, exchange[warp], lane);
    if (!place.known) head.for_each([](float& value) { value = not_a_number(); });
  }
  if (is_key && a.hadamard_scale != 0) {
    for (int c = 0; c < kChunks; ++c) transform_chunk(head.values[c], a.hadamard_scale, lane);
  }
  if (a.stage == qwen::Stage::kTransform) store_stage<T>(a, head, row, lane);
  if (a.layout.values == ValueFormat::kNone) return;

  head.for_each([](float& value) { value = to_float(from_float<T>(value)); });
  const RowOffset at = row_offset(a.layout, place.kept ? place.slot : 0, is_key ? h : h - a.num_keys);
  const qwen::QuantizedRows& rows = is_key ? a.k : a.v;
  const bool stored = place.kept && rows.data != nullptr;
  for (int c = 0; c < kChunks; ++c) {
    quantize_chunk(head.values[c], a.layout, rows.data + at.data, rows.scales + at.scales, stored, c, lane);
  }
  if (a.stage == qwen::Stage::kCastBack) store_stage<T>(a, head, row, lane);
}

void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 10, ") + hole + " is not written yet: write it in " +
                           "chapters/ch10_quantized_kv/exercise/norm_rope_hadamard_quant_store.cu, then set " + flag +
                           " to true.");
}

template <class T, int kChunks>
void launch_heads(const Args& a, cudaStream_t stream) {
  const dim3 grid(unsigned((a.tokens * a.heads + kWarps - 1) / kWarps)), block(kWarps * kWarpSize);
  launch(transform_heads<T, kChunks>, grid, block, 0, stream, a);
}

}  // namespace

void qwen_norm_rope_hadamard_quant_store(const qwen::NormRopeHadamardQuantStore& args, cudaStream_t stream) {
  if (args.hadamard_scale != 0) need(kTransformIsWritten, "hole 1 (transform_chunk)", "kTransformIsWritten");
  if (args.layout.values != ValueFormat::kNone) {
    need(kCodesAreWritten, "hole 2 (quantize_chunk)", "kCodesAreWritten");
    if (args.layout.scale_format == ScaleFormat::kUE8M0) {
      need(kPowerIsWritten, "hole 3 (power_of_two_code)", "kPowerIsWritten");
    }
  }
  dispatch_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.head_dim == kChunk) return launch_heads<T, 1>(args, stream);
    launch_heads<T, 4>(args, stream);
  });
}
