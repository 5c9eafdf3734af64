// Faults of checked_faults.cu in global memory. The operands are 32 floats each: `in` may be read, `out` written.
#pragma once

#include "cuda_platform.cuh"

namespace {

__global__ void global_past_end(const float* in, float* out, int wrong) {
  out[threadIdx.x] = in[threadIdx.x + 2 * wrong];  // @global_past_end
}
__global__ void global_before_start(const float* in, float* out, int wrong) {
  out[int(threadIdx.x) - wrong] = in[threadIdx.x];  // @global_before_start
}
__global__ void writes_input(const float* in, float* out, int wrong) {
  out[threadIdx.x] = in[threadIdx.x];
  if (wrong) const_cast<float*>(in)[threadIdx.x] = 0.0f;  // @writes_input
}
__global__ void far_away(const float* in, float* out, int wrong) {
  out[threadIdx.x] = in[threadIdx.x + size_t(wrong) * 4000000000];  // @far_away
}
__global__ void null_pointer(const float* in, float* out, int wrong) {
  (void)wrong;
  out[threadIdx.x] = in[threadIdx.x];  // @null_pointer
}
__global__ void misaligned(const float* in, float* out, int wrong) {
  if (threadIdx.x < 7) {
    const float4 v = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + wrong);  // @misaligned
    out[threadIdx.x] = v.x + v.w;
  }
}
__global__ void misaligned_in_shared(const float* in, float* out, int wrong) {
  __shared__ __align__(16) float tile[32];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncwarp();
  if (threadIdx.x < 7) {
    const float4 v = *reinterpret_cast<const float4*>(tile + 4 * threadIdx.x + wrong);  // @misaligned_in_shared
    out[threadIdx.x] = v.x + v.w;
  }
}
__global__ void half_past_end(const float* in, float* out, int wrong) {  // aligned to 8 bytes, and so is the type
  if (threadIdx.x < 16) {
    const float2 v = reinterpret_cast<const float2*>(in)[threadIdx.x + wrong];  // @half_past_end
    out[threadIdx.x] = v.x + v.y;
  }
}
__global__ void local_of_another(const float* in, float* out, int wrong) {
  __shared__ float* pointer;
  float mine = in[threadIdx.x];
  if (threadIdx.x == 5) pointer = &mine;
  __syncthreads();
  if (wrong) mine += *pointer;  // @local_of_another
  __syncthreads();
  out[threadIdx.x] = mine;
}

}  // namespace
