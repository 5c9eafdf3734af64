// A thread block cluster: blocks that run at once, reach each other's shared memory and have a barrier. A launch
// without clusters has clusters of one block.
//
// One OS thread runs a cluster. A block runs until none of its threads can go on, or until it gives way (by lot, or
// since a thread of it waits for something); then the next block that can goes on.
#pragma once

#include <memory>

#include "cudasim/block.h"

namespace cudasim {

class Cluster {
 public:
  explicit Cluster(Grid& of);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster() { current = nullptr; }

  void run(long number);  // from the start of its blocks to their end

  int size() const { return int(blocks_.size()); }
  const Block& block(int rank) const { return *blocks_[size_t(rank)]; }
  unsigned phase() const { return phase_; }  // how many barriers have opened
  char* order(unsigned phase) { return &order_[phase & 1]; }
  void thread_arrives() {
    if (--missing_ == 0) open_barrier();
  }
  void thread_returns(bool has_arrived) {
    --living_;
    if (!has_arrived) thread_arrives();
  }
  // The block that has ended and whose shared memory has that address, or null.
  const Block* ended_owner(uintptr_t address) const;
  // Whether another block has a thread that can go on.
  bool others_can_go_on(int rank) const;

  volatile long ticks = 0;  // of the watchdog, since the blocks began

 private:
  void enter(int rank);
  int next_rank();
  void open_barrier();
  void report_deadlock();

  Grid& grid_;
  std::vector<std::unique_ptr<Block>> blocks_;
  int inside_ = -1;  // whose static variables are in their place
  Random random_;
  long living_ = 0, missing_ = 0;  // threads that have not returned; of them, those that have not arrived
  unsigned phase_ = 0;
  char order_[2] = {};  // addresses by which ThreadSanitizer orders barriers
};

inline Cluster::Cluster(Grid& of) : grid_(of) {
  for (int rank = 0; rank < of.cluster; ++rank) blocks_.push_back(std::make_unique<Block>(of, *this, rank));
}

// From here on that block runs.
inline void Cluster::enter(int rank) {
  Block& block = *blocks_[size_t(rank)];
  current = &block, blockIdx = block.index();
  checker_block_runs(rank);
  if (size() == 1 || rank == inside_) return;
  const StaticSharedMemory& statics = StaticSharedMemory::of_library();
  if (inside_ >= 0) statics.save(blocks_[size_t(inside_)]->memory().statics());
  statics.restore(block.memory().statics());
  inside_ = rank;
}

// The next block that can go on, or one drawn by lot; -1: there is none.
inline int Cluster::next_rank() {
  int able[kMaxClusterBlocks], count = 0;
  for (int i = 1; i <= size(); ++i) {
    const int rank = (std::max(inside_, 0) + i) % size();
    if (blocks_[size_t(rank)]->can_go_on()) able[count++] = rank;
  }
  return count == 0 ? -1 : able[grid_.seed ? random_.below(unsigned(count)) : 0];
}

inline void Cluster::run(long number) {
  ticks = 0, phase_ = 0;
  living_ = missing_ = size() * grid_.threads;
  random_ = Random(uint64_t(grid_.seed) * 1000033 + uint64_t(number));
  checker_cluster_begins(size());
  for (int rank = 0; rank < size(); ++rank) {
    blocks_[size_t(rank)]->begin(number * size() + rank);
    enter(rank);
    blocks_[size_t(rank)]->start_threads();
  }
  int last = 0;
  for (int rank; !blocks_[size_t(last)]->stopped() && (rank = next_rank()) >= 0; last = rank) {
    Block& block = *blocks_[size_t(rank)];
    enter(rank);
    block.resume();
    if (block.ended() && size() > 1) block.memory().seal(), inside_ = -1;
  }
  if (!blocks_[size_t(last)]->stopped() && living_ && size() > 1) report_deadlock();
  for (int i = 0; i < size(); ++i) {  // the one that has stopped first, for the first report counts
    const int rank = (last + i) % size();
    Block& block = *blocks_[size_t(rank)];
    // A block alone is the current one, and for ThreadSanitizer its threads may still be at work.
    if (size() > 1) current = &block, blockIdx = block.index();
    checker_block_runs(rank);
    block.end(size() == 1);
  }
  inside_ = -1;
}

inline void Cluster::open_barrier() {
  ++phase_;
  missing_ = living_;
  checker_cluster_barrier_opened();
  for (const auto& block : blocks_) block->wake_from_cluster_barrier();
}

inline bool Cluster::others_can_go_on(int rank) const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank && block(other).can_go_on()) return true;
  }
  return false;
}

inline const Block* Cluster::ended_owner(uintptr_t address) const {
  for (const auto& block : blocks_) {
    if (block->memory().has_sealed(address)) return block.get();
  }
  return nullptr;
}

__attribute__((cold)) inline void Cluster::report_deadlock() {
  std::string report = "cuda_sim: blocks " + text(block(0).index()) + " to " + text(block(size() - 1).index()) +
                       " of a cluster: deadlock: no thread of them can go on";
  for (const auto& block : blocks_) {
    current = block.get(), blockIdx = block->index();
    report += "\n  block " + text(block->index()) + block->where_everyone_is();
  }
  grid_.fail(report);
}

// ---- what kernels call
inline void Block::cluster_arrive(const Place& at) {
  Inside inside(*this);
  running_->at = at;
  if (running_->cluster_arrived)
    stop("calls " + text(at) + " a second time without cluster_wait; each arrival needs its wait before the next");
  order_release(cluster.order(cluster.phase()));
  checker_cluster_arrive(at.what, at.file, at.line);
  running_->cluster_arrived = true, running_->cluster_phase = cluster.phase();
  cluster.thread_arrives();
}

inline void Block::cluster_wait(const Place& at) {
  Inside inside(*this);
  running_->at = at;
  if (!running_->cluster_arrived)
    stop("calls " + text(at) + " without cluster_arrive before it; each wait needs an arrival");
  const unsigned phase = running_->cluster_phase;
  if (cluster.phase() == phase) {
    warps_[size_t(thread() / 32)].at_cluster_barrier |= 1u << lane();
    switch_to(next());
  } else {
    came_last();
  }
  running_->cluster_arrived = false;
  order_acquire(cluster.order(phase));
  checker_cluster_wait(at.what, at.file, at.line);
}

inline void Block::wake_from_cluster_barrier() {
  for (size_t w = 0; w < warps_.size(); ++w) {
    for (unsigned lanes = warps_[w].at_cluster_barrier; lanes; lanes &= lanes - 1)
      wake(int(w) * 32 + __builtin_ctz(lanes));
    warps_[w].at_cluster_barrier = 0;
  }
}

inline void* Block::shared_of(const Place& at, const volatile void* mine, unsigned other) {
  if (other >= unsigned(cluster_blocks)) stop_at_rank(at, other);
  Inside inside(*this);
  char* const p = static_cast<char*>(const_cast<void*>(mine));
  const SharedMemory& theirs = cluster.block(int(other)).memory();
  const size_t offset = size_t(p - memory_.dynamic());
  if (offset <= grid.shared_bytes) return theirs.dynamic() + offset;
  const StaticSharedMemory& statics = StaticSharedMemory::of_library();
  if (!statics.has(p)) stop("gives " + text(at) + " a pointer that is not into its block's shared memory");
  return int(other) == rank ? p : theirs.statics() + statics.offset(p);
}

__attribute__((cold)) inline void Block::stop_at_rank(const Place& at, unsigned other) {
  stop("asks " + text(at) + " for block " + std::to_string(other) + " of a cluster that has " +
       std::to_string(cluster_blocks) + (cluster_blocks == 1 ? " block" : " blocks"));
}

}  // namespace cudasim
