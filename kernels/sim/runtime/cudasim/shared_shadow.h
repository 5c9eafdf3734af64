// What a checked build keeps of each byte of shared memory: who wrote it, who read it, and what lies in between.
//
// What orders two accesses of different threads of a block, and nothing else does:
//   * a barrier of the block (__syncthreads and its kin, a grid-wide barrier) between them;
//   * __syncwarp, for the lanes of one warp that are in its mask, also through a third lane;
//   * a barrier of the cluster: what comes before a thread's cluster_arrive, before what follows the cluster_wait of
//   that
//     barrier in any thread.
// Shuffles and votes order no memory in CUDA, nor do they here. Atomics do not race with atomics, but they order
// nothing: a lock or a flag in shared memory is reported. (The order in which the simulator happens to run threads
// plays no part, so one run finds a race that any schedule could show.)
//
// Each block of a cluster has a shadow: what its threads know. The bytes' cells are those of the block that owns them.
//
// Of the readers of a byte since its last write two are kept, of different warps if there are such, and likewise of
// atomics. A third is forgotten only where three lanes of one warp read a byte unordered, and then a lane writes it
// that a __syncwarp has ordered after the first two and not after the third. Of the accesses by blocks other than the
// owner that is kept which the latest barrier of the cluster orders.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cudasim/linkage.h"

namespace cudasim {

enum class Kind : uint8_t { kRead = 0, kWrite = 1, kAtomic = 2, kBarrier = 3, kWarpFunction = 4 };

struct SharedAccess {
  uint32_t epoch = 0;  // which interval between barriers, counted over all blocks: 0 is never
  uint32_t clock = 0;  // of its lane, counted by __syncwarp
  uint32_t site = 0;
  uint32_t thread : 10;
  uint32_t rank : 4;    // of its block in the cluster
  uint32_t phase : 18;  // barriers of the cluster at which its thread had arrived, modulo 2^18
};
static_assert(sizeof(SharedAccess) == 16, "there are seven for each byte of shared memory");

struct SharedByte {
  SharedAccess write, atomic[2], read[2], far_read, far_atomic;
};

class SharedShadow {
 public:
  static constexpr int kThreads = 1024, kLanes = 32;
  static constexpr uint32_t kPhases = (1 << 18) - 1;

  // Whether a barrier that an access of this phase precedes is among the first `waited`.
  CUDASIM_ALWAYS_INLINE static bool precedes(uint32_t phase, uint32_t waited) {
    return int32_t((waited - phase) << 14) > 0;
  }

  struct Race {
    bool found = false;
    SharedAccess other;
    Kind kind = Kind::kRead;  // of the other
    size_t byte = 0;          // counted from the start of the access
  };
  struct Verdict {
    size_t unwritten = 0;  // bytes that no thread of the block has written
    size_t first_unwritten = 0;
    Race race;
  };

  // All blocks of a cluster begin in the same epoch; afterwards each has epochs of its own.
  static void cluster_begins() { ++last_epoch_; }
  void block_begins(uint32_t rank, bool alone) {
    rank_ = rank, alone_ = alone;
    epoch_ = first_epoch_ = last_epoch_;
    std::memset(arrived_, 0, sizeof arrived_), std::memset(waited_, 0, sizeof waited_);
    std::memset(seen_, 0, sizeof seen_);
    for (int t = 0; t < kThreads; ++t) seen_[t][t % kLanes] = 1;
  }
  void barrier_opened() {
    epoch_ = ++last_epoch_;
    if (alone_) return;
    const uint32_t most = most_waited();
    for (uint32_t& waited : waited_) waited = most;
  }
  void cluster_arrive(int thread) { ++arrived_[thread]; }
  void cluster_wait(int thread) { waited_[thread] = arrived_[thread]; }
  // Barriers of the cluster that any thread of the block knows to have opened.
  uint32_t most_waited() const {
    uint32_t most = 0;
    for (const uint32_t waited : waited_) most = waited > most ? waited : most;
    return most;
  }
  uint32_t arrived(int thread) const { return arrived_[thread]; }

  // The lanes of the mask now know what each of them knew.
  void warp_synced(int warp, uint32_t mask) {
    uint32_t joined[kLanes] = {}, waited = 0;
    for (int l = 0; l < kLanes; ++l) {
      if (!(mask >> l & 1)) continue;
      waited = waited_[warp * kLanes + l] > waited ? waited_[warp * kLanes + l] : waited;
      for (int o = 0; o < kLanes; ++o) {
        const uint32_t clock = seen_[warp * kLanes + l][o];
        if (clock > joined[o]) joined[o] = clock;
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      if (!(mask >> l & 1)) continue;
      std::memcpy(seen_[warp * kLanes + l], joined, sizeof joined);
      ++seen_[warp * kLanes + l][l];
      waited_[warp * kLanes + l] = waited;
    }
  }

  // Notes an access of the running thread to `bytes` cells of block `owner`, and says what is wrong with it.
  Verdict note(SharedByte* cells, size_t bytes, Kind kind, uint32_t thread, uint32_t site, uint32_t owner) {
    const SharedAccess now{epoch_,     seen_[thread][thread % kLanes], site, thread & 1023,
                           rank_ & 15, arrived_[thread] & kPhases};
    Verdict verdict;
    for (size_t i = 0; i < bytes; ++i) {
      SharedByte& cell = cells[i];
      if (kind != Kind::kWrite && !written(cell) && !verdict.unwritten++) verdict.first_unwritten = i;
      if (!verdict.race.found) find_race(cell, now, kind, i, verdict.race);
      switch (kind) {
        case Kind::kRead:
          owner == rank_ ? keep(cell.read, now) : keep_far(cell.far_read, now);
          break;
        case Kind::kAtomic:
          owner == rank_ ? keep(cell.atomic, now) : keep_far(cell.far_atomic, now);
          break;
        default:  // ordered after all that came before, or a race has been found
          cell.write = now;
          cell.atomic[0].epoch = cell.atomic[1].epoch = cell.read[0].epoch = cell.read[1].epoch = 0;
          cell.far_read.epoch = cell.far_atomic.epoch = 0;
      }
    }
    return verdict;
  }

 private:
  CUDASIM_ALWAYS_INLINE bool written(const SharedByte& cell) const {
    return cell.write.epoch >= first_epoch_ || cell.atomic[0].epoch >= first_epoch_ ||
           cell.far_atomic.epoch >= first_epoch_;
  }
  CUDASIM_ALWAYS_INLINE bool ordered(const SharedAccess& earlier, const SharedAccess& now) const {
    if (earlier.epoch < first_epoch_) return true;
    if (earlier.rank == now.rank && (earlier.epoch != epoch_ || earlier.thread == now.thread ||
                                     (earlier.thread / kLanes == now.thread / kLanes &&
                                      seen_[now.thread][earlier.thread % kLanes] >= earlier.clock)))
      return true;
    return precedes(earlier.phase, waited_[now.thread]);
  }
  CUDASIM_ALWAYS_INLINE void find_race(
      const SharedByte& cell, const SharedAccess& now, Kind kind, size_t i, Race& race) const {
    if (!ordered(cell.write, now)) return (void)(race = {true, cell.write, Kind::kWrite, i});
    for (int k = 0; k < 2; ++k) {
      if (kind != Kind::kAtomic && !ordered(cell.atomic[k], now)) race = {true, cell.atomic[k], Kind::kAtomic, i};
      if (kind != Kind::kRead && !ordered(cell.read[k], now)) race = {true, cell.read[k], Kind::kRead, i};
    }
    if (alone_) return;
    if (kind != Kind::kAtomic && !ordered(cell.far_atomic, now)) race = {true, cell.far_atomic, Kind::kAtomic, i};
    if (kind != Kind::kRead && !ordered(cell.far_read, now)) race = {true, cell.far_read, Kind::kRead, i};
  }
  CUDASIM_ALWAYS_INLINE void keep(SharedAccess (&kept)[2], const SharedAccess& now) const {
    if (ordered(kept[0], now)) {
      kept[0] = now;
    } else if (ordered(kept[1], now)) {
      kept[1] = now;
    } else if (kept[0].thread / kLanes == kept[1].thread / kLanes && now.thread / kLanes != kept[0].thread / kLanes) {
      kept[1] = now;
    }
  }

  CUDASIM_ALWAYS_INLINE void keep_far(SharedAccess& kept, const SharedAccess& now) const {
    if (kept.epoch < first_epoch_ || !precedes(now.phase, kept.phase)) kept = now;
  }

  static inline uint32_t last_epoch_ = 0;  // of all blocks: one OS thread at a time runs them
  uint32_t epoch_ = 0, first_epoch_ = 1, rank_ = 0;
  bool alone_ = true;                                        // in its cluster
  uint32_t arrived_[kThreads] = {}, waited_[kThreads] = {};  // at barriers of the cluster
  uint32_t seen_[kThreads][kLanes] = {};  // the clock of each lane of its warp as far as a thread knows it
};

}  // namespace cudasim
