// What a kernel sees of the block that its OS thread runs. The rest is the runtime's (runtime/cudasim/block.h), which
// is compiled once and not with each kernel.
#pragma once

#include "cudasim/language.h"

namespace cudasim {

// Where a thread called a function of the simulator.
struct Place {
  const char* what = "";  // "__syncthreads"
  const char* file = "";
  int line = 0;
};

// Computes a warp function for all its lanes at once, by the last lane to arrive. arguments[i]: of lane i.
using Combine = void (*)(void** arguments, unsigned mask);

struct Verdict {  // on the predicates that threads bring to a barrier
  int count = 0;
  bool all = true;
};

class RunningBlock {
 public:
  RunningBlock(const RunningBlock&) = delete;
  RunningBlock& operator=(const RunningBlock&) = delete;

  Verdict barrier(const Place& at, int predicate = 1, bool of_grid = false);
  void warp_function(const Place& at, unsigned mask, Combine combine, void* argument);
  void yield(const Place& at);
  void cluster_arrive(const Place& at);
  void cluster_wait(const Place& at);
  void* shared_of(const Place& at, const volatile void* mine, unsigned other);
  // These end the launch with a report.
  [[noreturn]] void stop_at_trap();
  [[noreturn]] void stop_at_width(const Place& at, int width);

  void* shared() const { return shared_; }   // dynamic
  int thread() const { return thread_; }     // linear index of the running thread
  int lane() const { return thread_ & 31; }  // in its warp

  const int rank, cluster_blocks;  // in its cluster; of that

 protected:
  RunningBlock(int number, int blocks) : rank(number), cluster_blocks(blocks) {}
  ~RunningBlock() = default;

  int thread_ = -1;  // -1: the OS thread itself
  void* shared_ = nullptr;
};

inline thread_local RunningBlock* current = nullptr;

}  // namespace cudasim

// The last parameters of each function that can end in a report: the caller's line.
#define CUDASIM_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define CUDASIM_PLACE(name) (cudasim::Place{name, file, line})
