// What a block keeps of each warp: which lanes live, and who waits in which warp function.
#pragma once

#include <vector>

#include "cudasim/report.h"

namespace cudasim {

// Lanes that have called the same warp function with the same mask and wait for the others that the mask names.
struct Gathering {
  unsigned mask = 0, arrived = 0;
  Combine combine = nullptr;  // null: __syncwarp
  Place at;
  void* arguments[32];

  bool takes(const Place& place, unsigned m, Combine c) const {
    // __syncwarp may stand in different branches; every other one is a single instruction for all lanes.
    return mask == m && combine == c && (!c || (at.line == place.line && at.what == place.what));
  }
};

struct Warp {
  unsigned alive = 0;       // lanes that have not returned from the kernel
  unsigned at_barrier = 0;  // lanes that wait at the block's barrier
  unsigned at_cluster_barrier = 0;
  size_t open = 0;  // gatherings in use: more than one only where lanes have diverged
  std::vector<Gathering> gatherings;

  void start(unsigned lanes) { alive = lanes, at_barrier = at_cluster_barrier = 0, open = 0; }

  Gathering& join(const Place& at, unsigned mask, Combine combine) {
    for (size_t i = 0; i < open; ++i) {
      if (gatherings[i].takes(at, mask, combine)) return gatherings[i];
    }
    if (open == gatherings.size()) gatherings.emplace_back();
    Gathering& g = gatherings[open++];
    g.mask = mask, g.arrived = 0, g.combine = combine, g.at = at;
    return g;
  }
  void close(Gathering& g) {
    Gathering& last = gatherings[--open];
    if (&g != &last) std::swap(g, last);
  }
  bool complete(const Gathering& g) const { return (g.mask & alive) == (g.arrived & alive); }
};

}  // namespace cudasim
