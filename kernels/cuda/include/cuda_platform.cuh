// cuda_platform.cuh: the one header that a kernel file includes. With nvcc it is CUDA; with a C++ compiler, the
// simulator.
//
// It adds the few things that the two spell differently: launch(), dynamic_shared(), grid_sync(), thread block
// clusters, programmatic dependent launch, a base-2 exponential, a load that leaves the first-level cache alone, and
// two sizes of the device.
#pragma once

#ifdef __CUDACC__
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda_requests.cuh"
#include "thread_block_cluster.cuh"
#else
#include "cuda_sim.h"
#endif

struct LaunchOptions {
  bool cooperative = false;  // all blocks run at once, so that grid_sync() may be called
  // The kernel may start before the one ahead of it in the stream has ended (programmatic dependent launch, from
  // compute capability 9.0 on): it must call grid_dependency_wait() before it reads what that kernel writes.
  bool dependent = false;
  // So many blocks, one after the other along x, form a cluster: 1, 2, 4, 8 or 16, as most_cluster_blocks() allows.
  // They run at once and reach each other's shared memory. grid.x must be a multiple.
  int cluster = 1;
};

#ifdef __CUDACC__

// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// A barrier of all threads of a cooperative launch.
__device__ __forceinline__ void grid_sync() {
  cooperative_groups::this_grid().sync();
}

// Returns once the kernels that this one depends on have ended and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Says that the next kernel may start as far as this block is concerned.
__device__ __forceinline__ void grid_dependency_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// 2^x within 2 ulp; below 2^-126 it gives 0. One instruction, where exp2f() takes four.
__device__ __forceinline__ float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 16 bytes that nobody reads again soon: they take no place in the first-level cache. `from` is a multiple of 16.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 raw;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return raw;
}

// Of the current device: its multiprocessors, and the most dynamic shared memory that a block can be given, in bytes.
inline int multiprocessors() {
  return cuda_platform::device_attribute(cudaDevAttrMultiProcessorCount);
}
inline int most_shared_bytes() {
  return cuda_platform::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

// Runs kernel(args...) on the stream. Throws std::runtime_error with a sentence if the launch is refused.
template <class... P, class... A>
void launch(LaunchOptions options,
            void (*kernel)(P...),
            dim3 grid,
            dim3 block,
            size_t shared_bytes,
            cudaStream_t stream,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "launch() needs one argument for each parameter of the kernel");
  const auto what = [&] {
    return "Launching a kernel with grid " + cuda_platform::text(grid) + ", block " + cuda_platform::text(block) +
           " and " + std::to_string(shared_bytes) + " bytes of dynamic shared memory";
  };
  if (options.cluster > 1 && grid.x % unsigned(options.cluster) != 0) {
    throw std::runtime_error(what() + " failed: grid.x is no multiple of the " + std::to_string(options.cluster) +
                             " blocks of a cluster.");
  }
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (options.cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  if (options.cluster > 1) attributes[config.numAttrs++] = cuda_platform::cluster_attribute(options.cluster);
  if (options.dependent && cuda_platform::is_hopper_or_later()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  cuda_platform::allow(reinterpret_cast<const void*>(kernel), shared_bytes, options.cluster, what);
  cuda_platform::check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), what);
}

#else  // the simulator; what the functions mean is said above

template <class T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(cudasim::current->shared());
}
inline void grid_sync(CUDASIM_HERE) {
  cudasim::current->barrier(CUDASIM_PLACE("grid_sync"), 1, true);
}
inline unsigned cluster_rank() {
  return unsigned(cudasim::current->rank);
}
inline unsigned cluster_blocks() {
  return unsigned(cudasim::current->cluster_blocks);
}
template <class T>
inline T* shared_of(T* mine, unsigned rank, CUDASIM_HERE) {
  return static_cast<T*>(cudasim::current->shared_of(CUDASIM_PLACE("shared_of"), mine, rank));
}
inline void cluster_arrive(CUDASIM_HERE) {
  cudasim::current->cluster_arrive(CUDASIM_PLACE("cluster_arrive"));
}
inline void cluster_arrive_relaxed(CUDASIM_HERE) {
  cudasim::current->cluster_arrive(CUDASIM_PLACE("cluster_arrive_relaxed"));
}
inline void cluster_wait(CUDASIM_HERE) {
  cudasim::current->cluster_wait(CUDASIM_PLACE("cluster_wait"));
}
template <class... P>
int most_cluster_blocks(void (*)(P...), int, size_t) {
  return cudasim::kMaxClusterBlocks;
}
inline void grid_dependency_wait() {}  // kernels run one after the other
inline void grid_dependency_trigger() {}
inline int multiprocessors() {
  return 2;  // so few that small launches, too, have more work than blocks
}
inline int most_shared_bytes() {
  return 64 * 1024;  // of the smallest GPU that is supported
}
inline float exp2_approximate(float x) {
  return exp2f(x);
}
__forceinline__ uint4 load_once(const void* from) {
  return *static_cast<const uint4*>(from);
}

template <class... P, class... A>
void launch(LaunchOptions options,
            void (*kernel)(P...),
            dim3 grid,
            dim3 block,
            size_t shared_bytes,
            cudaStream_t,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "launch() needs one argument for each parameter of the kernel");
  cudasim::launch_kernel(options.cooperative, options.cluster, kernel, grid, block, shared_bytes,
                         static_cast<A&&>(args)...);
}

#endif

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A&&... args) {
  launch(LaunchOptions{}, kernel, grid, block, shared_bytes, stream, static_cast<A&&>(args)...);
}
