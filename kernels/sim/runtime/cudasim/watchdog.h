// The watchdog: looks every ten milliseconds which OS threads still run the same block, and sends those a signal. There
// the block gives way to its other threads if one does not stop computing, or ends with a report after CUDASIM_TIMEOUT
// seconds.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "cudasim/faults.h"

namespace cudasim {

class Watchdog {
 public:
  // An OS thread that runs blocks, as long as this object lives.
  class Worker {
   public:
    explicit Worker(Watchdog& watchdog) : watchdog_(watchdog), thread_(pthread_self()) {
      std::lock_guard<std::mutex> guard(watchdog_.lock_);
      watchdog_.workers_.push_back(this);
      if (watchdog_.asleep_) watchdog_.wake_.notify_one();
    }
    ~Worker() {
      std::lock_guard<std::mutex> guard(watchdog_.lock_);
      watchdog_.workers_.erase(std::find(watchdog_.workers_.begin(), watchdog_.workers_.end(), this));
    }
    void begins_block() { blocks_.fetch_add(1, std::memory_order_relaxed); }

   private:
    friend class Watchdog;
    Watchdog& watchdog_;
    const pthread_t thread_;
    FaultStack fault_stack_;
    std::atomic<long> blocks_{0};
    long seen_ = -1;
  };

  // Never destroyed, for its thread runs until the process ends. A forked child has no such thread and starts its own.
  static Watchdog& get() {
    static std::mutex starting;
    static Watchdog* watchdog = nullptr;
    static pid_t process = 0;
    std::lock_guard<std::mutex> guard(starting);
    if (process != getpid()) {
      process = getpid(), watchdog = new Watchdog;
      if (kCatchesSignals) {
        catch_signals();
        std::thread([w = watchdog] { w->watch(); }).detach();
      }
    }
    return *watchdog;
  }

 private:
  void watch() {
    for (int idle = 0;;) {
      {
        std::unique_lock<std::mutex> guard(lock_);
        idle = workers_.empty() ? idle + 1 : 0;
        if (idle > 100) {
          asleep_ = true;
          wake_.wait(guard, [this] { return !workers_.empty(); });
          asleep_ = false, idle = 0;
        }
        for (Worker* w : workers_) {
          const long now = w->blocks_.load(std::memory_order_relaxed);
          if (now == w->seen_) pthread_kill(w->thread_, kTickSignal);
          w->seen_ = now;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1000 / Block::kTicksPerSecond));
    }
  }

  std::mutex lock_;
  std::condition_variable wake_;
  std::vector<Worker*> workers_;
  bool asleep_ = false;
};

}  // namespace cudasim
