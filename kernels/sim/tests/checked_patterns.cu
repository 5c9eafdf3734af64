// Kernels whose requests to memory can be counted by hand, for the trace.
#include <string>

#include "cuda_platform.cuh"

namespace {

// ---- global memory: one warp reads `in` and writes `out`
__global__ void strided(const float* in, float* out, int stride) {
  out[threadIdx.x] = in[threadIdx.x * stride];  // @strided
}
__global__ void shifted(const float* in, float* out, int shift) {
  out[threadIdx.x] = in[threadIdx.x + shift];  // @shifted
}
__global__ void four_at_once(const float* in, float* out, int) {
  const float4 v = reinterpret_cast<const float4*>(in)[threadIdx.x];  // @load four
  float4 doubled;
  doubled.x = 2 * v.x, doubled.y = 2 * v.y, doubled.z = 2 * v.z, doubled.w = 2 * v.w;
  reinterpret_cast<float4*>(out)[threadIdx.x] = doubled;  // @store four
}
__global__ void made_in_place(const float* in, float* out, int) {
  const float v = __ldg(in + threadIdx.x);                                            // @ldg
  reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(v, v + 1, v + 2, v + 3);  // @make
}
__global__ void copied(const float* in, float* out, int) {
  reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<const float4*>(in)[threadIdx.x];  // @copy
}
__global__ void braces(const float* in, float* out, int) {
  const float v = in[threadIdx.x];
  reinterpret_cast<float2*>(out)[threadIdx.x] = {v, v};  // @braces
}
__global__ void bf16_pairs(const float* in, float* out, int) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(in[threadIdx.x], 1.0f);
  reinterpret_cast<__nv_bfloat162*>(out)[threadIdx.x] = pair;  // @pairs
}
__global__ void half_of_warp(const float* in, float* out, int lanes) {
  if (int(threadIdx.x) < lanes) {
    out[threadIdx.x] = in[threadIdx.x];  // @half
  } else {
    out[threadIdx.x] = 0.0f;  // @other half
  }
}
__global__ void in_a_loop(const float* in, float* out, int n) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) sum += in[i * blockDim.x + threadIdx.x];  // @loop
  out[threadIdx.x] = sum;
}
__global__ void updates(const float*, float* out, int) {
  atomicAdd(out + threadIdx.x / 2, 1.0f);
}  // @updates

// ---- shared memory
__global__ void shared_stride(const float* in, float* out, int stride) {
  __shared__ float tile[33 * 32];
  for (int i = threadIdx.x; i < 33 * 32; i += 32) tile[i] = in[0];
  __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x * stride];  // @shared_stride
}
template <class Vector>
__global__ void shared_vector(const float* in, float* out, int) {
  __shared__ __align__(16) float tile[128];
  for (int i = threadIdx.x; i < 128; i += 32) tile[i] = in[0];
  __syncwarp();
  out[threadIdx.x] = reinterpret_cast<const Vector*>(tile)[threadIdx.x].x;  // @shared_element
  const Vector v = reinterpret_cast<const Vector*>(tile)[threadIdx.x];      // @shared_vector
  out[threadIdx.x] += v.y;
}
__global__ void shared_atomic(const float*, float* out, int) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);  // @shared_atomic
  __syncthreads();
  out[threadIdx.x] = float(count);  // @broadcast
}

// ---- who meets whom
__device__ float sum_of_warp(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);  // @shuffle
  return v;
}
__global__ void two_warps(const float* in, float* out, int) {
  __shared__ float sums[2];
  const float sum = sum_of_warp(in[threadIdx.x]);           // @two_warps load
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;  // @two_warps store
  __syncthreads();                                          // @two_warps barrier
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0] + sums[1];
}

}  // namespace

#define PATTERN(name, kernel, blocks, threads)                                                             \
  extern "C" __attribute__((visibility("default"))) const char* name(const float* in, float* out, int n) { \
    static thread_local std::string report;                                                                \
    report.clear();                                                                                        \
    try {                                                                                                  \
      launch(kernel, dim3(blocks), dim3(threads), 0, nullptr, in, out, n);                                 \
    } catch (const std::exception& error) {                                                                \
      report = error.what();                                                                               \
    }                                                                                                      \
    return report.c_str();                                                                                 \
  }

PATTERN(strided_run, strided, 1, 32)
PATTERN(shifted_run, shifted, 1, 32)
PATTERN(four_at_once_run, four_at_once, 1, 32)
PATTERN(made_in_place_run, made_in_place, 1, 32)
PATTERN(copied_run, copied, 1, 32)
PATTERN(braces_run, braces, 1, 32)
PATTERN(bf16_pairs_run, bf16_pairs, 1, 32)
PATTERN(half_of_warp_run, half_of_warp, 1, 32)
PATTERN(in_a_loop_run, in_a_loop, 1, 32)
PATTERN(updates_run, updates, 1, 32)
PATTERN(shared_stride_run, shared_stride, 1, 32)
PATTERN(shared_float2_run, shared_vector<float2>, 1, 32)
PATTERN(shared_float4_run, shared_vector<float4>, 1, 32)
PATTERN(shared_atomic_run, shared_atomic, 1, 32)
PATTERN(two_warps_run, two_warps, 2, 64)
