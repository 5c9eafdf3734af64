// v2: a warp for each head, which lies in shared memory; every stage shares the elements out among the lanes anew.
//
//   grid    ceil(tokens * heads / 4) blocks
//   block   128 threads, four warps
//   lane    takes elements lane, lane + 32, … of a stage, or as many pairs, or a group
//
// Traffic: as v1, but a load or store of a warp touches neighbouring elements. They are two bytes wide, codes one.
//
// The idea: no stage's mapping has to suit another stage. The price is a way through shared memory and a barrier of the
// warp between stages: seven for the Hadamard transform alone. And where a lane has a group, most lanes have none.
#include "number_types.cuh"
#include "quantized_rows.cuh"
#include "store_place.cuh"
#include "warp_reduce.cuh"

namespace {

using Args = qwen::NormRopeHadamardQuantStore;
constexpr int kWarps = 4, kChunk = 128;

template <int kDim, class T>
__device__ void normalize(float* head, const T* weight, float eps, int lane) {
  float sums[kDim / kChunk];
  for (int c = 0; c < kDim / kChunk; ++c) {  // the tree of all versions: its leaves are the pairs (r, r + 64)
    const float *low = head + c * kChunk + 2 * lane, *high = low + kChunk / 2;
    sums[c] = fmaf(low[0], low[0], high[0] * high[0]) + fmaf(low[1], low[1], high[1] * high[1]);
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      sums[c] += __shfl_xor_sync(kAllLanes, sums[c], distance);
    }
  }
  for (int n = kDim / kChunk; n > 1; n /= 2) {
    for (int c = 0; c < n / 2; ++c) sums[c] = sums[2 * c] + sums[2 * c + 1];
  }
  const float scale = 1.0f / sqrtf(sums[0] / kDim + eps);
  __syncwarp();
  for (int i = lane; i < kDim; i += kWarpSize) head[i] = head[i] * scale * to_float(weight[i]);
}

__device__ void rotate(const Args& a, float* tail, const float* row, int lane) {
  const int half = a.rotary_dim / 2;
  for (int j = lane; j < half; j += kWarpSize) {
    float& first = tail[a.interleaved ? 2 * j : j];
    float& second = tail[a.interleaved ? 2 * j + 1 : j + half];
    const float u = first, v = second, s = a.conjugate ? -row[half + j] : row[half + j];
    first = fmaf(u, row[j], -(v * s));
    second = fmaf(v, row[j], u * s);
  }
}

// --8<-- [start:hadamard]
__device__ void hadamard(float* head, float scale, int lane) {
  for (int bit = 1; bit < kChunk; bit *= 2) {
    for (int p = lane; p < kChunk / 2; p += kWarpSize) {
      const int i = p / bit * 2 * bit + p % bit;  // element p of those without this bit
      const float u = head[i], w = head[i + bit];
      head[i] = u + w;
      head[i + bit] = u - w;
    }
    __syncwarp();
  }
  for (int i = lane; i < kChunk; i += kWarpSize) head[i] *= scale;
}
// --8<-- [end:hadamard]

template <int kDim>
__device__ void quantize(
    const QuantizedLayout& to, float* head, uint8_t* data, uint8_t* scales, bool stored, int lane) {
  for (int g = lane; g < kDim / to.group; g += kWarpSize) {
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

// --8<-- [start:kernel]
template <class T, int kDim>
__global__ void transform_heads(Args a) {
  __shared__ float heads[kWarps][kDim];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp, token = row / a.heads;
  if (token >= a.tokens) return;
  const int h = int(row - token * a.heads);
  const T* x = static_cast<const T*>(a.x) + token * a.token_stride + h * a.head_stride;
  float* head = heads[warp];
  for (int i = lane; i < kDim; i += kWarpSize) head[i] = to_float(x[i]);
  const auto give = [&](qwen::Stage stage) {
    __syncwarp();  // after every stage
    if (a.stage != stage) return;
    for (int i = lane; i < kDim; i += kWarpSize) static_cast<T*>(a.out)[row * kDim + i] = from_float<T>(head[i]);
  };
  __syncwarp();

  const StorePlace place = place_in(a, token);
  const bool is_key = h < a.num_keys;
  if (is_key && a.norm_weight != nullptr) normalize<kDim>(head, static_cast<const T*>(a.norm_weight), a.eps, lane);
  give(qwen::Stage::kNorm);
  if (is_key && a.cos_sin != nullptr && place.known) {
    rotate(a, head + kDim - a.rotary_dim, a.cos_sin + place.position * a.cos_sin_stride, lane);
  }
  __syncwarp();
  for (int i = lane; is_key && !place.known && i < kDim; i += kWarpSize) head[i] = not_a_number();
  __syncwarp();
  if (is_key && a.hadamard_scale != 0) hadamard(head, a.hadamard_scale, lane);
  give(qwen::Stage::kTransform);
  if (a.layout.values == ValueFormat::kNone) return;

  for (int i = lane; i < kDim; i += kWarpSize) head[i] = to_float(from_float<T>(head[i]));
  __syncwarp();
  const RowOffset at = row_offset(a.layout, place.kept ? place.slot : 0, is_key ? h : h - a.num_keys);
  const qwen::QuantizedRows& rows = is_key ? a.k : a.v;
  const bool stored = place.kept && rows.data != nullptr;
  quantize<kDim>(a.layout, head, rows.data + at.data, rows.scales + at.scales, stored, lane);
  give(qwen::Stage::kCastBack);
}
// --8<-- [end:kernel]

template <class T>
void launch_heads(const Args& a, cudaStream_t stream) {
  const dim3 grid(unsigned((a.tokens * a.heads + kWarps - 1) / kWarps)), block(kWarps * kWarpSize);
  if (a.head_dim == kChunk) return launch(transform_heads<T, 128>, grid, block, 0, stream, a);
  launch(transform_heads<T, 512>, grid, block, 0, stream, a);
}

}  // namespace

void qwen_norm_rope_hadamard_quant_store(const qwen::NormRopeHadamardQuantStore& args, cudaStream_t stream) {
  dispatch_dtype(args.dtype, [&](auto zero) { launch_heads<decltype(zero)>(args, stream); });
}
