// What AddressSanitizer and ThreadSanitizer must be told about fibers. Empty in other builds.
//
// ThreadSanitizer becomes an exact race checker of a kernel: it takes each fiber for a thread, barriers and __syncwarp
// alone order memory (as in CUDA, where shuffles do not), and what the simulator itself reads and writes is left out.
#pragma once

#include "cudasim/build.h"

#if CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if CUDASIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#endif

namespace cudasim {

// `release` at one end and `acquire` at the other: what came before the first happens before what follows the second.
inline void order_release([[maybe_unused]] void* p) {
#if CUDASIM_TSAN
  __tsan_release(p);
#endif
}
inline void order_acquire([[maybe_unused]] void* p) {
#if CUDASIM_TSAN
  __tsan_acquire(p);
#endif
}

// Between these two calls the thread's accesses are the simulator's own.
inline void ignore_accesses() {
#if CUDASIM_TSAN
  AnnotateIgnoreReadsBegin("", 0);
  AnnotateIgnoreWritesBegin("", 0);
#endif
}
inline void heed_accesses() {
#if CUDASIM_TSAN
  AnnotateIgnoreReadsEnd("", 0);
  AnnotateIgnoreWritesEnd("", 0);
#endif
}

}  // namespace cudasim

// Around a switch of stacks, in the function that switches: no call may lie between.
#if CUDASIM_ASAN
#define CUDASIM_LEAVES(from, to, for_good) \
  __sanitizer_start_switch_fiber((for_good) ? nullptr : &(from)->tool, (to)->stack, (to)->stack_bytes)
#define CUDASIM_IS_BACK(from) __sanitizer_finish_switch_fiber((from)->tool, nullptr, nullptr)
#elif CUDASIM_TSAN
#define CUDASIM_LEAVES(from, to, for_good) \
  (void)(for_good);                        \
  __tsan_switch_to_fiber((to)->tool, __tsan_switch_to_fiber_no_sync)
#define CUDASIM_IS_BACK(from)
#else
#define CUDASIM_LEAVES(from, to, for_good) (void)(for_good)
#define CUDASIM_IS_BACK(from)
#endif
