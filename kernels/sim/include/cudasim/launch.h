// A launch, as a kernel's file makes it; the runtime runs it (runtime/cudasim/team.h).
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "cudasim/language.h"

namespace cudasim {

// ThreadSanitizer would take the static variables of a cluster's blocks, which have one address, for the same.
constexpr int kMaxClusterBlocks = CUDASIM_TSAN ? 1 : 16;

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;  // of dynamic shared memory
  bool cooperative;
  int cluster;          // blocks of one
  const void* kernel;   // its address
  void (*call)(void*);  // calls it for one thread
  void* arguments;
  size_t argument_bytes;
};

// Runs all blocks and waits for them. Throws std::runtime_error with the first report.
void run(const Launch& launch);

template <class... P>
struct KernelCall {
  void (*kernel)(P...);
  std::tuple<P...> arguments;

  template <size_t... I>
  void make(std::index_sequence<I...>) {
    kernel(std::get<I>(arguments)...);
  }
  static void make_for_one_thread(void* call) { static_cast<KernelCall*>(call)->make(std::index_sequence_for<P...>()); }
};

template <class... P, class... A>
void launch_kernel(
    bool cooperative, int cluster, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
  KernelCall<P...> call{kernel, std::tuple<P...>(static_cast<P>(args)...)};
  run({grid, block, shared_bytes, cooperative, cluster, reinterpret_cast<const void*>(kernel),
       KernelCall<P...>::make_for_one_thread, &call, sizeof call});
}

}  // namespace cudasim
