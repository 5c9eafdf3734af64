// Shared memory, atomics, loads with hints, vector types, built-in variables.
#include <cmath>

#include "check.h"

namespace {

template <int kThreads>
__global__ void fresh_shared_memory(int* poisoned) {
  __shared__ unsigned words[kThreads];
  __shared__ float number;
  unsigned* dynamic = dynamic_shared<unsigned>();
  const unsigned t = threadIdx.x;
  const bool fresh = words[t] == 0xffffffffu && dynamic[t] == 0xffffffffu && isnan(number);
  if (__syncthreads_and(fresh) && t == 0) atomicAdd(poisoned, 1);
  words[t] = dynamic[t] = t + 1;  // which the next block must not find
  if (t == 0) number = float(blockIdx.x);
}

template <class T>
__global__ void atomic_updates(T* v, T* old) {
  const T t = T(threadIdx.x);
  if (blockIdx.x == 0) old[threadIdx.x] = atomicExch(&v[8 + threadIdx.x], t);
  atomicAdd(&v[0], 1);
  atomicSub(&v[1], 2);
  atomicMin(&v[2], t);
  atomicMax(&v[3], t);
  atomicAdd_block(&v[4], 1);
  atomicAdd_system(&v[5], 1);
  for (T seen = atomicCAS(&v[6], 0, 0), expected = seen + 1; seen != expected;) {  // + 1 by compare-and-swap
    expected = seen;
    seen = atomicCAS(&v[6], expected, expected + 1);
  }
}

__global__ void atomic_bits(unsigned* v) {
  const unsigned bit = 1u << threadIdx.x;
  atomicAnd(&v[0], ~bit);
  atomicOr(&v[1], bit);
  atomicXor(&v[2], bit | 1u);
  atomicInc(&v[3], 20u);
  atomicDec(&v[4], 20u);
}

__global__ void hinted_copy(float4* out, const float4* in) {
  const unsigned t = threadIdx.x;
  const float4 sum = make_float4(__ldg(&in[t]).x, __ldcs(&in[t]).y, __ldcg(&in[t]).z, __ldca(&in[t]).w);
  __stcs(&out[t], sum);
  __stcg(&out[32 + t], sum);
  __stwt(&out[64 + t], sum);
  __stwb(&out[96 + t], sum);
}

__global__ void coordinates_of_threads(uint3* thread, uint3* block, dim3* size) {
  const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned i = b * 24 + t;
  thread[i] = threadIdx;
  block[i] = blockIdx;
  size[i] = blockDim;
}

template <class T>
void expect_atomic_updates() {
  T v[40] = {}, old[32];
  v[2] = 100;
  for (int i = 8; i < 40; ++i) v[i] = T(i);
  launch(atomic_updates<T>, dim3(50), dim3(32), 0, nullptr, v, old);
  EXPECT(v[0] == 1600);
  EXPECT(v[1] == T(0) - 3200);
  EXPECT(v[2] == 0 && v[3] == 31);
  EXPECT(v[4] == 1600 && v[5] == 1600 && v[6] == 1600);
  for (int i = 0; i < 32; ++i) EXPECT(v[8 + i] == T(i) && old[i] == T(8 + i));
}

}  // namespace

#if defined(__linux__) && !CUDASIM_CHECKED  // which reports the read
CHECK(shared_memory_of_each_block_starts_as_nan) {
  int poisoned = 0;
  launch(fresh_shared_memory<64>, dim3(40), dim3(64), 64 * 4, nullptr, &poisoned);
  launch(fresh_shared_memory<32>, dim3(40), dim3(32), 32 * 4, nullptr, &poisoned);
  EXPECT(poisoned == 80);
}
#endif

CHECK(atomics_int) {
  expect_atomic_updates<int>();
}
CHECK(atomics_unsigned) {
  expect_atomic_updates<unsigned>();
}
CHECK(atomics_unsigned_long_long) {
  expect_atomic_updates<unsigned long long>();
}
CHECK(atomics_float) {
  expect_atomic_updates<float>();
}
CHECK(atomics_double) {
  expect_atomic_updates<double>();
}

CHECK(atomics_on_bits) {
  unsigned v[5] = {kFullMask, 0, 0, 0, 0};
  launch(atomic_bits, dim3(1), dim3(32), 0, nullptr, v);
  EXPECT(v[0] == 0 && v[1] == kFullMask && v[2] == 0xfffffffeu);  // bit 0 was turned 32 times
  EXPECT(v[3] == 32 % 21);                                        // counts 0 … 20
  EXPECT(v[4] == 20 - 31 % 21);                                   // counts 20 … 0
}

CHECK(loads_and_stores_with_hints) {
  float4 in[32], out[128];
  for (int i = 0; i < 32; ++i) in[i] = make_float4(float(i), float(i + 100), float(i + 200), float(i + 300));
  launch(hinted_copy, dim3(1), dim3(32), 0, nullptr, out, in);
  for (int i = 0; i < 128; ++i) {
    const float4 a = out[i], b = in[i % 32];
    EXPECT(a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w);
  }
}

CHECK(vector_types_have_the_sizes_of_cuda) {
  EXPECT(sizeof(char4) == 4 && alignof(char4) == 4 && sizeof(uchar3) == 3 && alignof(uchar3) == 1);
  EXPECT(sizeof(ushort4) == 8 && alignof(ushort4) == 8 && sizeof(short2) == 4 && alignof(short2) == 4);
  EXPECT(sizeof(float2) == 8 && alignof(float2) == 8 && sizeof(float3) == 12 && alignof(float3) == 4);
  EXPECT(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(uint4) == 16 && alignof(int4) == 16);
  EXPECT(sizeof(double2) == 16 && alignof(double2) == 16 && sizeof(longlong2) == 16 && alignof(ulonglong2) == 16);
  EXPECT(sizeof(__half2) == 4 && alignof(__half2) == 4 && sizeof(__nv_bfloat162) == 4 && alignof(__half) == 2);
  const int4 v{1, 2, 3, 4};
  const uchar4 c = make_uchar4(1, 2, 3, 255);
  EXPECT(v.x == 1 && v.w == 4 && c.w == 255);
}

CHECK(coordinates_cover_the_grid_once) {
  uint3 thread[6 * 24], block[6 * 24];
  dim3 size[6 * 24];
  launch(coordinates_of_threads, dim3(1, 2, 3), dim3(2, 3, 4), 0, nullptr, thread, block, size);
  for (unsigned i = 0; i < 6 * 24; ++i) {
    const unsigned t = i % 24, b = i / 24;
    EXPECT(thread[i].x == t % 2 && thread[i].y == t / 2 % 3 && thread[i].z == t / 6);
    EXPECT(block[i].x == 0 && block[i].y == b % 2 && block[i].z == b / 2);
    EXPECT(size[i].x == 2 && size[i].y == 3 && size[i].z == 4);
  }
}
