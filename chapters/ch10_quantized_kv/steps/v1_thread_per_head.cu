// v1: a thread for each head, which it walks stage by stage.
//
//   grid    ceil(tokens * heads / 32) blocks
//   block   32 threads, one warp
//   thread  owns a head of a token, as an array of its own
//
// Traffic: x in, codes and scales out, once. But an array that is indexed by a variable lies in memory, not in
// registers: each stage reads the head there and writes it back. And neighbouring threads are a head apart, so that a
// load of a warp touches 32 sectors for 64 bytes.
//
// The idea: one launch. Nothing else yet; each stage is the formula's loop, in the order of additions that all share.
#include "number_types.cuh"
#include "quantized_rows.cuh"
#include "store_place.cuh"

namespace {

using Args = qwen::NormRopeHadamardQuantStore;
constexpr int kThreads = 32, kChunk = 128;

__device__ float tree_sum(float* values, int size) {
  for (; size > 1; size /= 2) {
    for (int i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  }
  return values[0];
}

template <int kDim, class T>
__device__ void normalize(float* head, const T* weight, float eps) {
  float sums[kDim / kChunk], squares[kChunk / 2];
  for (int c = 0; c < kDim / kChunk; ++c) {
    const float *low = head + c * kChunk, *high = low + kChunk / 2;
    for (int r = 0; r < kChunk / 2; ++r) squares[r] = fmaf(low[r], low[r], high[r] * high[r]);
    sums[c] = tree_sum(squares, kChunk / 2);
  }
  const float scale = 1.0f / sqrtf(tree_sum(sums, kDim / kChunk) / kDim + eps);
  for (int i = 0; i < kDim; ++i) head[i] = head[i] * scale * to_float(weight[i]);
}

__device__ void rotate(const Args& a, float* tail, const float* row) {
  const int half = a.rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    float& first = tail[a.interleaved ? 2 * j : j];
    float& second = tail[a.interleaved ? 2 * j + 1 : j + half];
    const float u = first, v = second, s = a.conjugate ? -row[half + j] : row[half + j];
    first = fmaf(u, row[j], -(v * s));
    second = fmaf(v, row[j], u * s);
  }
}

// --8<-- [start:hadamard]
__device__ void hadamard(float* head, float scale) {
  for (int bit = 1; bit < kChunk; bit *= 2) {
    for (int i = 0; i < kChunk; ++i) {
      if (i & bit) continue;
      const float u = head[i], w = head[i + bit];
      head[i] = u + w;
      head[i + bit] = u - w;
    }
  }
  for (int i = 0; i < kChunk; ++i) head[i] *= scale;
}
// --8<-- [end:hadamard]

// --8<-- [start:quantize]
template <int kDim>
__device__ void quantize(const QuantizedLayout& to, float* head, uint8_t* data, uint8_t* scales, bool stored) {
  for (int g = 0; g < kDim / to.group; ++g) {
    float* numbers = head + g * to.group;
    unsigned amax = 0;
    for (int i = 0; i < to.group; ++i) amax = max(amax, __float_as_uint(numbers[i]) & 0x7fffffffu);
    const GroupScale scale = scale_of(amax, to);
    if (stored && to.scale_format == ScaleFormat::kFloat32) reinterpret_cast<unsigned*>(scales)[g] = scale.code;
    if (stored && to.scale_format != ScaleFormat::kFloat32) scales[g] = uint8_t(scale.code);
    for (int i = 0; i < to.group; i += 4) {
      float four[4] = {numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]};
      divide(four, scale, to.scale_format);
      const uint32_t codes = encode(four, to.values);
      const int bytes = to.values == ValueFormat::kE4M3 ? 4 : 2, at = (g * to.group + i) / 4 * bytes;
      for (int b = 0; stored && b < bytes; ++b) data[at + b] = uint8_t(codes >> 8 * b);
      for (int k = 0; k < 4; ++k) numbers[i + k] = decode(codes, k, to.values) * scale.value;
    }
  }
}
// --8<-- [end:quantize]

// --8<-- [start:kernel]
template <class T, int kDim>
__global__ void transform_heads(Args a) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = row / a.heads;
  if (token >= a.tokens) return;
  const int h = int(row - token * a.heads);
  const T* x = static_cast<const T*>(a.x) + token * a.token_stride + h * a.head_stride;
  float head[kDim];
  for (int i = 0; i < kDim; ++i) head[i] = to_float(x[i]);
  const auto give = [&](qwen::Stage stage) {
    for (int i = 0; a.stage == stage && i < kDim; ++i) static_cast<T*>(a.out)[row * kDim + i] = from_float<T>(head[i]);
  };

  const StorePlace place = place_in(a, token);
  const bool is_key = h < a.num_keys;
  if (is_key && a.norm_weight != nullptr) normalize<kDim>(head, static_cast<const T*>(a.norm_weight), a.eps);
  give(qwen::Stage::kNorm);
  if (is_key && a.cos_sin != nullptr && place.known) {
    rotate(a, head + kDim - a.rotary_dim, a.cos_sin + place.position * a.cos_sin_stride);
  }
  for (int i = 0; is_key && !place.known && i < kDim; ++i) head[i] = not_a_number();
  if (is_key && a.hadamard_scale != 0) hadamard(head, a.hadamard_scale);
  give(qwen::Stage::kTransform);
  if (a.layout.values == ValueFormat::kNone) return;

  for (int i = 0; i < kDim; ++i) head[i] = to_float(from_float<T>(head[i]));
  const RowOffset at = row_offset(a.layout, place.kept ? place.slot : 0, is_key ? h : h - a.num_keys);
  const qwen::QuantizedRows& rows = is_key ? a.k : a.v;
  quantize<kDim>(a.layout, head, rows.data + at.data, rows.scales + at.scales, place.kept && rows.data != nullptr);
  give(qwen::Stage::kCastBack);
}
// --8<-- [end:kernel]

template <class T>
void launch_heads(const Args& a, cudaStream_t stream) {
  const dim3 grid(unsigned((a.tokens * a.heads + kThreads - 1) / kThreads));
  if (a.head_dim == kChunk) return launch(transform_heads<T, 128>, grid, dim3(kThreads), 0, stream, a);
  launch(transform_heads<T, 512>, grid, dim3(kThreads), 0, stream, a);
}

}  // namespace

void qwen_norm_rope_hadamard_quant_store(const qwen::NormRopeHadamardQuantStore& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_heads<decltype(zero)>(args, stream); });
}
