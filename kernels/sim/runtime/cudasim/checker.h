// What the simulator tells the checked variant, which defines these functions in cudasim/checker_hooks.h. Elsewhere
// they are empty.
#pragma once

#include <cstddef>

#include "cudasim/language.h"

namespace cudasim {

#if CUDASIM_CHECKED
#define CUDASIM_HOOK(name, parameters) inline void name parameters;
#else
#define CUDASIM_HOOK(name, parameters) \
  inline void name parameters {}
#endif

// One launch, one block: each begin is followed by its end, after a failure too. The arguments are the simulator's
// copy.
CUDASIM_HOOK(checker_launch_begins,
             (dim3 /*grid*/,
              dim3 /*block*/,
              size_t /*dynamic shared bytes*/,
              const void* /*kernel*/,
              const void* /*arguments*/,
              size_t /*argument bytes*/))
CUDASIM_HOOK(checker_block_begins,
             (uint3 /*block*/,
              void* /*dynamic shared*/,
              size_t /*dynamic shared bytes*/,
              void* /*copy of the static variables, null: none*/,
              int /*threads*/))
CUDASIM_HOOK(checker_block_returned, ())  // its last thread
CUDASIM_HOOK(checker_block_ends, ())
// Of a cluster: before its blocks begin, and whose turn it is.
CUDASIM_HOOK(checker_cluster_begins, (int /*blocks*/))
CUDASIM_HOOK(checker_block_runs, (int /*rank*/))
CUDASIM_HOOK(checker_launch_ends, ())
// Who runs now: a thread of the block, or -1 for the OS thread itself.
CUDASIM_HOOK(checker_thread_runs, (int /*thread*/, const char* /*stack*/, size_t /*stack bytes*/))
// Between these two the running thread is in the simulator's own code.
CUDASIM_HOOK(checker_enters_simulator, ())
CUDASIM_HOOK(checker_leaves_simulator, ())
// The running thread arrives at a barrier or a warp function.
CUDASIM_HOOK(checker_barrier, (const char* /*name*/, const char* /*file*/, int /*line*/))
CUDASIM_HOOK(checker_cluster_arrive, (const char* /*name*/, const char* /*file*/, int /*line*/))
CUDASIM_HOOK(checker_cluster_wait, (const char* /*name*/, const char* /*file*/, int /*line*/))  // which is over
CUDASIM_HOOK(checker_warp_function,
             (const char* /*name*/, int /*warp*/, unsigned /*mask*/, const char* /*file*/, int /*line*/))
// All have arrived. Only __syncwarp orders the memory of a warp: shuffles and votes do not.
CUDASIM_HOOK(checker_barrier_opened, ())
CUDASIM_HOOK(checker_cluster_barrier_opened, ())
CUDASIM_HOOK(checker_warp_synced, (int /*warp*/, unsigned /*mask*/))

#undef CUDASIM_HOOK

}  // namespace cudasim
