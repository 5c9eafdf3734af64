// What the blocks of one launch share.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "cudasim/launch.h"
#include "cudasim/report.h"

namespace cudasim {

class Random {  // xorshift64
 public:
  explicit Random(uint64_t seed = 0) : state_((seed + 1) * 0x9E3779B97F4A7C15ull | 1) {}
  unsigned below(unsigned n) {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return unsigned((state_ >> 20) % n);
  }

 private:
  uint64_t state_;
};

struct Grid : Launch {
  explicit Grid(const Launch& launch) : Launch(launch) {}

  const long blocks = long(grid.x) * grid.y * grid.z;
  const long threads = long(block.x) * block.y * block.z;  // of a block
  const long seed = environment("CUDASIM_SEED", 0);
  const long preempt = environment("CUDASIM_PREEMPT", 0);
  const long timeout = environment("CUDASIM_TIMEOUT", 30);  // seconds for a block; 0: no limit
  const long clusters = blocks / std::max(cluster, 1);
  std::vector<long> order{};  // of the clusters; empty: in order
  std::atomic<long> next{0};

  std::atomic<bool> failed{false};
  std::string error{};  // of the first block that failed

  void fail(const std::string& sentence) {
    std::lock_guard<std::mutex> guard(lock_);
    if (!failed) error = sentence;
    failed = true;
    turn_.notify_all();
  }

  // A block waits here for all the others. False: the launch has failed.
  bool meet(const Place& at) {
    std::unique_lock<std::mutex> guard(lock_);
    const long mine = meeting_;
    meeting_at_ = at;
    if (++arrived_ == blocks) arrived_ = 0, ++meeting_, turn_.notify_all();
    fail_if_nobody_comes();
    turn_.wait(guard, [&] { return meeting_ != mine || failed; });
    return meeting_ != mine;
  }

  // A block has come to its end.
  void leave() {
    std::lock_guard<std::mutex> guard(lock_);
    ++returned_;
    fail_if_nobody_comes();
  }

 private:
  void fail_if_nobody_comes() {
    if (failed || arrived_ == 0 || arrived_ + returned_ < blocks) return;
    error = "cuda_sim: deadlock: " + std::to_string(arrived_) + " of " + std::to_string(blocks) + " blocks wait in " +
            text(meeting_at_) + ", and the others have returned";
    failed = true;
    turn_.notify_all();
  }

  std::mutex lock_;
  std::condition_variable turn_;
  long arrived_ = 0, returned_ = 0, meeting_ = 0;
  Place meeting_at_;
};

}  // namespace cudasim
