// Where the threads of a block wait for each other: barriers and warp functions.
#pragma once

#include <thread>

#include "cudasim/cluster.h"

namespace cudasim {

inline void Block::open_barrier() {
  arrived_ = 0, ++generation_;
  verdict_[generation_ & 1] = {};
  const int me = running_ == &pool_->main ? -1 : thread();
  for (int w = 0; w < int(warps_.size()); ++w) {
    for (unsigned lanes = warps_[w].at_barrier; lanes; lanes &= lanes - 1) {
      const int i = w * 32 + __builtin_ctz(lanes);
      if (i != me) wake(i);
    }
    warps_[w].at_barrier = 0;
  }
  checker_barrier_opened();
}

// The running thread was the last to come: it goes on, or draws lots with the others.
inline void Block::came_last() {
  if (random_order_) wake(thread()), switch_to(next());
}

inline Verdict Block::barrier(const Place& at, int predicate, bool of_grid) {
  Inside inside(*this);
  const unsigned mine = generation_ & 1;
  running_->at = at;
  warps_[thread() / 32].at_barrier |= 1u << lane();
  checker_barrier(at.what, at.file, at.line);
  if (!arrived_) barrier_at_ = at;
  if (barrier_at_.line != at.line || barrier_at_.what != at.what) stop_at_two_barriers(at);
  verdict_[mine].count += predicate != 0, verdict_[mine].all &= predicate != 0;
  order_release(&order_[mine]);
  if (++arrived_ < living_) {
    switch_to(next());
  } else {
    if (of_grid) meet_other_blocks(&order_[mine]);
    open_barrier();
    came_last();
  }
  order_acquire(&order_[mine]);
  return verdict_[mine];
}

// The running thread has come to its end.
void Block::exit() {
  enter();
  if (living_ == 1 && cluster_blocks > 1) checker_block_returned();
  Warp& warp = warps_[thread() / 32];
  --living_, warp.alive &= ~(1u << lane());
  order_release(&pool_->main.arrives);
  // Neither barriers nor masks wait for threads that have returned.
  if (living_ && arrived_ == living_) open_barrier();
  for (size_t i = warp.open; i-- > 0;) {
    if (warp.complete(warp.gatherings[i])) finish(thread() / 32, warp.gatherings[i]);
  }
  cluster.thread_returns(running_->cluster_arrived && running_->cluster_phase == cluster.phase());
  Fiber* to = next();
  heed_accesses();
  switch_to(to, true);
  std::abort();  // never reached: nobody wakes a thread that has returned
}

inline void Block::meet_other_blocks(char* order) {
  order_acquire(order);
  if (!grid.meet(running_->at)) stop("another block has failed");
  cluster.ticks = 0;  // those that passed while this block waited are not its own
  order_release(order);
}

// All lanes are here: computes the function for them and lets them go on.
inline void Block::finish(int warp, Gathering& g) {
  const unsigned needed = g.mask & warps_[warp].alive;
  if (g.combine) {
    g.combine(g.arguments, needed);
  } else {
    order_warp(fibers_ + warp * 32, needed);
    checker_warp_synced(warp, needed);
  }
  const int me = thread();
  for (unsigned lanes = needed; lanes; lanes &= lanes - 1) {
    const int i = warp * 32 + __builtin_ctz(lanes);
    if (i != me) wake(i);
  }
  warps_[warp].close(g);
}

inline void Block::order_warp([[maybe_unused]] Fiber* lanes, [[maybe_unused]] unsigned mask) {
#if CUDASIM_TSAN
  Fiber& lead = lanes[__builtin_ctz(mask)];
  char* order = &lead.leaves[++lead.generation & 1];
  for (unsigned m = mask; m; m &= m - 1) order_acquire(&lanes[__builtin_ctz(m)].arrives);
  order_release(order);
  for (unsigned m = mask; m; m &= m - 1) lanes[__builtin_ctz(m)].order = order;
#endif
}

inline void Block::warp_function(const Place& at, unsigned mask, Combine combine, void* argument) {
  Inside inside(*this);
  Fiber* me = running_;
  const int warp = thread() / 32, lane = thread() & 31;
  me->at = at;
  if (!(mask >> lane & 1)) stop_outside_mask(at, mask);
  if (!combine) order_release(&me->arrives);
  checker_warp_function(at.what, warp, mask, at.file, at.line);
  Gathering& g = warps_[warp].join(at, mask, combine);
  g.arguments[lane] = argument;
  g.arrived |= 1u << lane;
  if (warps_[warp].complete(g)) {
    finish(warp, g);
    came_last();
  } else {
    switch_to(next());
  }
  if (!combine) order_acquire(me->order);
}

inline void Block::yield(const Place& at) {
  running_->at = at;
  stop_if_hopeless(0);
  Inside inside(*this);
  wake(thread());
  switch_to(next_elsewhere());
  std::this_thread::yield();
}

// The checker calls it at every access: at one in CUDASIM_PREEMPT calls another thread goes on.
inline void Block::maybe_preempt() {
  if (asked_ && in_kernel()) look_at_clock(0);
  if (!grid.preempt || !in_kernel()) return;
  Inside inside(*this);
  if (random_.below(unsigned(grid.preempt)) == 0) wake(thread()), switch_to(next());
}

}  // namespace cudasim
