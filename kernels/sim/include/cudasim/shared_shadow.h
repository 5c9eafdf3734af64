// What a checked build keeps of each byte of shared memory: who wrote it, who read it, and what lies in between.
//
// What orders two accesses of different threads of a block, and nothing else does:
//   * a barrier of the block (__syncthreads and its kin, a grid-wide barrier) between them;
//   * __syncwarp, for the lanes of one warp that are in its mask, also through a third lane.
// Shuffles and votes order no memory in CUDA, nor do they here. Atomics do not race with atomics, but they order
// nothing: a lock or a flag in shared memory is reported. (The order in which the simulator happens to run threads
// plays no part, so one run finds a race that any schedule could show.)
//
// Of the readers of a byte since its last write two are kept, of different warps if there are such, and likewise of
// atomics. A third is forgotten only where three lanes of one warp read a byte unordered, and then a lane writes it
// that a
// __syncwarp has ordered after the first two and not after the third.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cudasim/unseen.h"

namespace cudasim {

enum class Kind : uint8_t { kRead = 0, kWrite = 1, kAtomic = 2, kBarrier = 3, kWarpFunction = 4 };

struct SharedAccess {
  uint32_t epoch = 0;  // which interval between barriers, counted over all blocks: 0 is never
  uint32_t clock = 0;  // of its lane, counted by __syncwarp
  uint32_t site = 0;
  uint32_t thread = 0;
};

struct SharedByte {
  SharedAccess write, atomic[2], read[2];
};

class SharedShadow {
 public:
  static constexpr int kThreads = 1024, kLanes = 32;

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

  CUDASIM_UNSEEN void block_begins() {
    first_epoch_ = ++epoch_;
    std::memset(seen_, 0, sizeof seen_);
    for (int t = 0; t < kThreads; ++t) seen_[t][t % kLanes] = 1;
  }
  CUDASIM_UNSEEN void barrier_opened() { ++epoch_; }

  // The lanes of the mask now know what each of them knew.
  CUDASIM_UNSEEN void warp_synced(int warp, uint32_t mask) {
    uint32_t joined[kLanes] = {};
    for (int l = 0; l < kLanes; ++l) {
      if (!(mask >> l & 1)) continue;
      for (int o = 0; o < kLanes; ++o) {
        const uint32_t clock = seen_[warp * kLanes + l][o];
        if (clock > joined[o]) joined[o] = clock;
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      if (!(mask >> l & 1)) continue;
      std::memcpy(seen_[warp * kLanes + l], joined, sizeof joined);
      ++seen_[warp * kLanes + l][l];
    }
  }

  // Notes an access of the running thread to `bytes` cells, and says what is wrong with it.
  CUDASIM_UNSEEN Verdict note(SharedByte* cells, size_t bytes, Kind kind, uint32_t thread, uint32_t site) {
    const SharedAccess now{epoch_, seen_[thread][thread % kLanes], site, thread};
    Verdict verdict;
    for (size_t i = 0; i < bytes; ++i) {
      SharedByte& cell = cells[i];
      if (kind != Kind::kWrite && !written(cell) && !verdict.unwritten++) verdict.first_unwritten = i;
      if (!verdict.race.found) find_race(cell, now, kind, i, verdict.race);
      switch (kind) {
        case Kind::kRead:
          keep(cell.read, now);
          break;
        case Kind::kAtomic:
          keep(cell.atomic, now);
          break;
        default:  // ordered after all that came before, or a race has been found
          cell.write = now;
          cell.atomic[0].epoch = cell.atomic[1].epoch = cell.read[0].epoch = cell.read[1].epoch = 0;
      }
    }
    return verdict;
  }

 private:
  CUDASIM_UNSEEN CUDASIM_ALWAYS_INLINE bool written(const SharedByte& cell) const {
    return cell.write.epoch >= first_epoch_ || cell.atomic[0].epoch >= first_epoch_;
  }
  CUDASIM_UNSEEN CUDASIM_ALWAYS_INLINE bool ordered(const SharedAccess& earlier, const SharedAccess& now) const {
    return earlier.epoch != epoch_ || earlier.thread == now.thread ||
           (earlier.thread / kLanes == now.thread / kLanes &&
            seen_[now.thread][earlier.thread % kLanes] >= earlier.clock);
  }
  CUDASIM_UNSEEN CUDASIM_ALWAYS_INLINE void find_race(
      const SharedByte& cell, const SharedAccess& now, Kind kind, size_t i, Race& race) const {
    if (!ordered(cell.write, now)) return (void)(race = {true, cell.write, Kind::kWrite, i});
    for (int k = 0; k < 2; ++k) {
      if (kind != Kind::kAtomic && !ordered(cell.atomic[k], now)) race = {true, cell.atomic[k], Kind::kAtomic, i};
      if (kind != Kind::kRead && !ordered(cell.read[k], now)) race = {true, cell.read[k], Kind::kRead, i};
    }
  }
  CUDASIM_UNSEEN CUDASIM_ALWAYS_INLINE void keep(SharedAccess (&kept)[2], const SharedAccess& now) const {
    if (ordered(kept[0], now)) {
      kept[0] = now;
    } else if (ordered(kept[1], now)) {
      kept[1] = now;
    } else if (kept[0].thread / kLanes == kept[1].thread / kLanes && now.thread / kLanes != kept[0].thread / kLanes) {
      kept[1] = now;
    }
  }

  uint32_t epoch_ = 0, first_epoch_ = 1;
  uint32_t seen_[kThreads][kLanes] = {};  // the clock of each lane of its warp as far as a thread knows it
};

}  // namespace cudasim
