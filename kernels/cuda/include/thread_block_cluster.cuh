// Thread block clusters (compute capability 9.0 and later) for nvcc: what kernels call, and how large a cluster may be.
// Elsewhere each block is a cluster of its own. The simulator has the same functions.
#pragma once

#include <map>
#include <mutex>
#include <tuple>

#include "cuda_requests.cuh"

// This block's number in its cluster, and how many blocks that has. Below compute capability 9.0 each block is a
// cluster of its own.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ unsigned cluster_blocks() {
  unsigned blocks = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return blocks;
}

// The address of `mine`, which points into this block's shared memory, in block `rank` of the cluster. That block must
// have begun (a barrier of the cluster says so) and must not end before the last access (another one sees to it).
template <class T>
__device__ __forceinline__ T* shared_of(T* mine, [[maybe_unused]] unsigned rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned long long theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
  return reinterpret_cast<T*>(theirs);
#else
  return mine;
#endif
}

// The barrier of all threads of a cluster, in two halves: what a thread did before it arrives is seen by those that
// have waited. Threads that have returned count as arrived. Without .aligned, for it may stand where a warp has
// diverged.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
// Arrives and promises nothing about memory: for a barrier that only says that all blocks have begun. The other one
// costs a fence of the whole GPU.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

namespace cuda_platform {

inline cudaLaunchAttribute cluster_attribute(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = unsigned(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

// Whether the current GPU has room for a cluster of that size. An answer that is an error is a no.
inline bool fits(const void* kernel, int threads, size_t shared_bytes, int cluster) {
  cudaLaunchAttribute attribute = cluster_attribute(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(cluster));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  try {
    const auto what = [] { return std::string("Asking for the clusters of a kernel"); };
    allow(kernel, shared_bytes, cluster, what);
    check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), what);
  } catch (const std::runtime_error&) {
    return false;
  }
  return clusters > 0;
}

inline int find_most_cluster_blocks(const void* kernel, int threads, size_t shared_bytes) {
  if (!is_hopper_or_later()) return 1;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), [] { return std::string("Asking for a kernel's attributes"); });
  if (attributes.ptxVersion < 90) return 1;  // compiled for an older GPU: its functions know no clusters
  for (const int blocks : {16, 8, 4, 2}) {
    if (fits(kernel, threads, shared_bytes, blocks)) return blocks;
  }
  return 1;
}

}  // namespace cuda_platform

// The most blocks in a cluster of this kernel that the current GPU can run: 16, 8, 4, 2 or 1. It is looked up once, and
// enqueues nothing, so that it may be called while a stream is captured.
template <class... P>
int most_cluster_blocks(void (*kernel)(P...), int threads, size_t shared_bytes) {
  int device = 0;
  cuda_platform::check(cudaGetDevice(&device), [] { return std::string("Asking for the current GPU"); });
  const auto* function = reinterpret_cast<const void*>(kernel);
  static std::mutex lock;
  static std::map<std::tuple<const void*, int, size_t, int>, int> known;
  const std::lock_guard<std::mutex> guard(lock);
  const auto [at, is_new] = known.try_emplace({function, threads, shared_bytes, device}, 0);
  if (is_new || at->second == 0) {
    at->second = cuda_platform::find_most_cluster_blocks(function, threads, shared_bytes);
  }
  return at->second;
}
