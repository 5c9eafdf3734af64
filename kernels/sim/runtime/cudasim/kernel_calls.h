// What kernels call, on the block that runs.
#pragma once

#include "cudasim/block.h"

namespace cudasim {

Verdict RunningBlock::barrier(const Place& at, int predicate, bool of_grid) {
  return static_cast<Block*>(this)->barrier(at, predicate, of_grid);
}
void RunningBlock::warp_function(const Place& at, unsigned mask, Combine combine, void* argument) {
  static_cast<Block*>(this)->warp_function(at, mask, combine, argument);
}
void RunningBlock::yield(const Place& at) {
  static_cast<Block*>(this)->yield(at);
}
void RunningBlock::cluster_arrive(const Place& at) {
  static_cast<Block*>(this)->cluster_arrive(at);
}
void RunningBlock::cluster_wait(const Place& at) {
  static_cast<Block*>(this)->cluster_wait(at);
}
void* RunningBlock::shared_of(const Place& at, const volatile void* mine, unsigned other) {
  return static_cast<Block*>(this)->shared_of(at, mine, other);
}
void RunningBlock::stop_at_trap() {
  static_cast<Block*>(this)->stop("calls __trap()");
}
void RunningBlock::stop_at_width(const Place& at, int width) {
  static_cast<Block*>(this)->stop(text(at) + " has width " + std::to_string(width) +
                                  "; it must be 1, 2, 4, 8, 16 or 32");
}

}  // namespace cudasim
