// Kernels that are right with wrong = 0 and have one fault with wrong = 1, for the checked variant to find. The comment
// at the line that it must name begins with @.
#include <string>

#include "checked_cluster_faults.cuh"
#include "checked_global_faults.cuh"
#include "checked_helper.cuh"
#include "cuda_platform.cuh"

namespace {

// ---- out of bounds in shared memory
__global__ void past_end(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x + wrong] = 1.0f;  // @past_end
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x - wrong + wrong];
}

__global__ void before_start(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[int(threadIdx.x) - 2 * wrong];  // @before_start
}

__global__ void into_neighbour(float* out, int wrong) {  // 128 bytes each: no padding would keep them apart
  __shared__ float first[32], second[32];
  __shared__ float third[32];
  first[threadIdx.x] = second[threadIdx.x] = third[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = third[threadIdx.x + wrong] + second[threadIdx.x] + first[threadIdx.x];  // @into_neighbour
}

template <int N>
__global__ void of_template(float* out, int wrong) {
  __shared__ float partial[N];
  if (threadIdx.x < N) partial[threadIdx.x + (N + 2) * wrong] = 1.0f;  // @of_template
  __syncthreads();
  out[threadIdx.x] = partial[threadIdx.x % N];
}

__device__ float sum_of_block(float value, int wrong) {
  __shared__ float sums[4];
  if (threadIdx.x < 4) sums[threadIdx.x] = value;
  __syncthreads();
  return sums[0] + sums[3 + wrong];  // @of_device_function
}
__global__ void of_device_function(float* out, int wrong) {
  out[threadIdx.x] = sum_of_block(1.0f, wrong);
}

__global__ void dynamic_past_end(float* out, int wrong) {
  float* tile = dynamic_shared<float>();
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x + wrong];  // @dynamic_past_end
}

__global__ void in_helper(float* out, int wrong) {
  __shared__ float tile[32];
  store_at(tile, int(threadIdx.x) + wrong, 1.0f);  // @in_helper
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

__device__ int table[8];
__global__ void of_device_variable(float* out, int wrong) {
  if (threadIdx.x < 8) table[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = float(table[threadIdx.x % 8 + 8 * wrong]);  // @of_device_variable
}

// ---- shared memory that nobody wrote
__global__ void unwritten(float* out, int wrong) {
  __shared__ float tile[32];
  if (threadIdx.x < 31 || !wrong) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];  // @unwritten
}

__global__ void unwritten_by_this_block(float* out, int wrong) {  // the block before it wrote: that does not count
  __shared__ float tile;
  if (threadIdx.x == 0 && (blockIdx.x == 0 || !wrong)) tile = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile;  // @unwritten_by_this_block
}

__global__ void unwritten_component(float* out, int wrong) {
  __shared__ float4 vectors[32];
  vectors[threadIdx.x].x = vectors[threadIdx.x].y = vectors[threadIdx.x].z = 1.0f;
  if (!wrong) vectors[threadIdx.x].w = 1.0f;
  const float4 v = vectors[threadIdx.x];  // @unwritten_component
  out[threadIdx.x] = v.x + v.w;
}

struct Padded {
  double number;
  int count;
};
__global__ void padding_is_not_read(float* out, int) {
  __shared__ Padded all[32];
  all[threadIdx.x].number = 1.0, all[threadIdx.x].count = 2;
  __syncwarp();
  const Padded other = all[threadIdx.x ^ 1];
  out[threadIdx.x] = float(other.number) + float(other.count);
}

// ---- races in shared memory
__global__ void read_too_early(float* out, int wrong) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.0f;  // @read_too_early other
  if (!wrong) __syncthreads();
  out[threadIdx.x % 32] = tile[63 - threadIdx.x];  // @read_too_early
}

__global__ void overwritten_too_early(float* out, int wrong) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  const float old = tile[63 - threadIdx.x];  // @overwritten_too_early other
  if (!wrong) __syncthreads();
  tile[threadIdx.x] = old + 1.0f;  // @overwritten_too_early
  out[threadIdx.x % 32] = old;
}

__global__ void two_writers(float* out, int wrong) {
  __shared__ int flag;
  if (threadIdx.x == 0 || (wrong && threadIdx.x == 40)) flag = int(threadIdx.x);  // @two_writers
  __syncthreads();
  out[threadIdx.x % 32] = float(flag);
}

__global__ void warp_without_syncwarp(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  if (!wrong) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];  // @warp_without_syncwarp
}

__global__ void syncwarp_of_one_half(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  const int half = int(threadIdx.x) / 16;
  __syncwarp(half ? 0xffff0000u : 0x0000ffffu);
  if (!wrong || threadIdx.x >= 16) out[threadIdx.x] = tile[threadIdx.x ^ 1];
  if (wrong && threadIdx.x < 16) out[threadIdx.x] = tile[threadIdx.x ^ 16];  // @syncwarp_of_one_half
}

__global__ void shuffle_is_no_barrier(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  const float other = __shfl_xor_sync(~0u, 1.0f, 1);
  if (!wrong) __syncwarp();
  out[threadIdx.x] = other + tile[threadIdx.x ^ 1];  // @shuffle_is_no_barrier
}

__global__ void barrier_of_one_warp(float* out, int wrong) {  // __syncwarp does nothing for other warps
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.0f;
  if (wrong)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x % 32] = tile[threadIdx.x ^ 32];  // @barrier_of_one_warp
}

__global__ void atomic_before_zero(float* out, int wrong) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  if (!wrong) __syncthreads();
  atomicAdd(&count, 1);  // @atomic_before_zero
  __syncthreads();
  out[threadIdx.x % 32] = float(count);
}

__global__ void read_beside_atomic(float* out, int wrong) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  if (!wrong) __syncthreads();
  out[threadIdx.x % 32] = float(count);  // @read_beside_atomic
}

}  // namespace

#define FAULT(name, threads, shared, kernel, ...) FAULT_IN_CLUSTERS(name, 1, threads, shared, kernel, __VA_ARGS__)
#define FAULT_IN_CLUSTERS(name, cluster, threads, shared, kernel, ...)                                            \
  extern "C" __attribute__((visibility("default"))) const char* name(const float* in, float* out, int wrong) {    \
    static thread_local std::string report;                                                                       \
    report.clear();                                                                                               \
    try {                                                                                                         \
      launch(LaunchOptions{false, false, cluster}, kernel, dim3(2), dim3(threads), shared, nullptr, __VA_ARGS__); \
    } catch (const std::exception& error) {                                                                       \
      report = error.what();                                                                                      \
    }                                                                                                             \
    (void)in;                                                                                                     \
    return report.c_str();                                                                                        \
  }
#define SHARED_FAULT(name, threads) FAULT(name##_run, threads, 0, name, out, wrong)
#define CLUSTER_FAULT(name, threads) \
  FAULT_IN_CLUSTERS(name##_run, 2, threads, threads * sizeof(float), name, out, wrong)
#define GLOBAL_FAULT(name) FAULT(name##_run, 32, 0, name, in, out, wrong)

SHARED_FAULT(past_end, 32)
SHARED_FAULT(before_start, 32)
SHARED_FAULT(into_neighbour, 32)
FAULT(of_template_run, 32, 0, of_template<8>, out, wrong)
SHARED_FAULT(of_device_function, 32)
FAULT(dynamic_past_end_run, 32, 32 * sizeof(float), dynamic_past_end, out, wrong)
SHARED_FAULT(in_helper, 32)
SHARED_FAULT(of_device_variable, 32)
SHARED_FAULT(unwritten, 32)
SHARED_FAULT(unwritten_by_this_block, 32)
SHARED_FAULT(unwritten_component, 32)
SHARED_FAULT(padding_is_not_read, 32)
SHARED_FAULT(read_too_early, 64)
SHARED_FAULT(overwritten_too_early, 64)
SHARED_FAULT(two_writers, 64)
SHARED_FAULT(warp_without_syncwarp, 32)
SHARED_FAULT(syncwarp_of_one_half, 32)
SHARED_FAULT(shuffle_is_no_barrier, 32)
SHARED_FAULT(barrier_of_one_warp, 64)
SHARED_FAULT(atomic_before_zero, 64)
SHARED_FAULT(read_beside_atomic, 64)
GLOBAL_FAULT(global_past_end)
GLOBAL_FAULT(global_before_start)
GLOBAL_FAULT(writes_input)
GLOBAL_FAULT(far_away)
FAULT(null_pointer_run, 32, 0, null_pointer, wrong ? nullptr : in, out, wrong)
GLOBAL_FAULT(misaligned)
GLOBAL_FAULT(misaligned_in_shared)
GLOBAL_FAULT(half_past_end)
GLOBAL_FAULT(local_of_another)
CLUSTER_FAULT(far_read_without_wait, 32)
CLUSTER_FAULT(far_read_without_barrier, 32)
CLUSTER_FAULT(far_reader_is_overtaken, 32)
CLUSTER_FAULT(far_writers, 32)
CLUSTER_FAULT(far_read_beside_atomic, 32)
CLUSTER_FAULT(far_past_end, 32)
CLUSTER_FAULT(far_dynamic_past_end, 32)
CLUSTER_FAULT(far_unwritten, 32)
CLUSTER_FAULT(far_read_at_the_end, 32)
CLUSTER_FAULT(far_block_has_ended, 32)
CLUSTER_FAULT(far_pointer_comes_back, 32)
CLUSTER_FAULT(far_barrier_is_passed_on, 64)
