// async_copy.cuh: bytes on their way from memory into shared memory. They take no register while they are coming
// (compute capability 8.0 and later; before, each is a load and a store).
#pragma once

#include "cuda_platform.cuh"

#ifdef __CUDACC__

// What one thread has asked for, in groups that arrive in order.
struct AsyncCopies {
  // 16 bytes or 4, from a multiple of as many to another one; zeros if they are not `there`.
  // --8<-- [start:ask]
  template <int kBytes = 16>
  __device__ __forceinline__ void ask(void* to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
    const auto shared = unsigned(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16) {
      asm volatile(
          "cp.async.cg.shared.global.L2::128B "
          "[%0], [%1], 16, %2;" ::"r"(shared),
          "l"(from), "r"(there ? 16 : 0)
          : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(from), "r"(there ? 4 : 0)
                   : "memory");
    }
#else
    using Word = std::conditional_t<kBytes == 16, uint4, uint32_t>;
    *static_cast<Word*>(to) = there ? *static_cast<const Word*>(from) : Word{};
#endif
  }
  // --8<-- [end:ask]
  // All that was asked for since the last time is a group. It may have nothing in it.
  __device__ __forceinline__ void close_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  // All groups but the kNewest that were closed last have arrived, as this thread sees it. A barrier tells others.
  template <int kNewest>
  __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#endif
  }
};

// Whether the current GPU has them; it has 99 KB or more of shared memory for a block, too.
inline bool copies_are_async() {
  return cuda_platform::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
}

#else
#include "cudasim/async_copy.h"
#endif
