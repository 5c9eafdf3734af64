// How a launch ends with a report: which block, which threads, which line.
#pragma once

#include <map>

#include "cudasim/cluster.h"

namespace cudasim {

__attribute__((cold)) inline void Block::stop(std::string sentence) {
  if (!inside_) enter();
  error_ = text_of_threads({thread()}, grid.block) + ": ";
  error_ += sentence;
  std::string().swap(sentence);  // this stack is left as it is: whatever owns memory on it leaks
  stopped_ = true;
  switch_to(&pool_->main);  // and never back
  std::abort();
}

__attribute__((cold)) inline void Block::stop_at_two_barriers(const Place& at) {
  stop("threads of one block meet at different barriers, " + text(barrier_at_) + " and " + text(at) +
       "; every thread must reach the same one");
}

__attribute__((cold)) inline void Block::stop_outside_mask(const Place& at, unsigned mask) {
  stop("lane " + std::to_string(lane()) + " calls " + text(at) + " with mask " + hexadecimal(mask) +
       ", which leaves it out; the mask must name every lane that calls");
}

// For AddressSanitizer's report, which has the line.
inline void Block::say_where() {
  if (!current || running_block()->running_ == &running_block()->pool_->main) return;
  std::fprintf(stderr, "cuda_sim: in block %s, %s\n", text(blockIdx).c_str(),
               text_of_threads({running_block()->thread()}, blockDim).c_str());
}

// A fault ends the launch, not the process.
__attribute__((cold)) inline void Block::stop_at_fault(int signal, const siginfo_t& info, uintptr_t program_counter) {
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  const auto stack = reinterpret_cast<uintptr_t>(running_->stack);
  char at[64];
  std::snprintf(at, sizeof at, "reads or writes address 0x%llx", static_cast<unsigned long long>(address));
  std::string what = "executes a trap";
  if (signal == SIGSEGV || signal == SIGBUS) {
    what = std::string(at) + ", where it has no memory: an index out of bounds, or a wrong pointer";
    if (address < 65536) what = std::string(at) + ": a null pointer";
#ifdef SI_KERNEL
    if (info.si_code == SI_KERNEL) what = "reads or writes an address that no pointer can have: was it ever set?";
#endif
    if (const Block* owner = cluster.ended_owner(address))
      what = std::string(at) + ", the shared memory of block " + text(owner->index()) +
             ", which has ended: a barrier of the cluster must come after the last access";
    if (address < stack && stack - address <= FiberPool::kGuardBytes)
      what = "needs more than its " + std::to_string(running_->stack_bytes >> 10) +
             " KB of stack: too large local arrays, "
             "or a recursion without an end";
  }
  if (signal == SIGFPE)
    what = "divides an integer by zero, or the lowest integer by -1: on a GPU the result has no meaning";
  if (signal == SIGABRT) what = "calls abort(), as a failed assert does";
  error_at_ = program_counter;
  stop(what);
}

// Called ten milliseconds after the last tick, or more, in the same block.
inline void Block::on_tick(uintptr_t program_counter) {
  cluster.ticks = cluster.ticks + 1;
  if (!in_kernel()) return;
  asked_ = CUDASIM_CHECKED;  // the checker may be at work: it looks at the clock when it has done
  // In a function of a library we must not leave: it may hold a lock that another thread of the block wants.
  if (!CUDASIM_CHECKED && in_library(program_counter)) look_at_clock(program_counter);
}

// A thread that has computed for a whole tick lets the others go on: it may be waiting for one of them.
inline void Block::look_at_clock(uintptr_t program_counter) {
  asked_ = false;
  stop_if_hopeless(program_counter);
  Inside inside(*this);
  const bool alone = head_ == tail_ && !cluster.others_can_go_on(rank), moved = head_ != head_at_tick_;
  head_at_tick_ = head_;
  if (alone || moved) return;
  ++head_at_tick_;  // the next thread has its tick before it
  wake(thread());
  switch_to(next_elsewhere());
}

inline void Block::stop_if_hopeless(uintptr_t program_counter) {
  if (grid.failed) stop("another block has failed");
  if (grid.timeout && cluster.ticks > grid.timeout * kTicksPerSecond) {
    error_at_ = program_counter;
    stop("the block has not ended after " + std::to_string(grid.timeout) +
         " seconds (CUDASIM_TIMEOUT): does this thread wait for something that never comes?");
  }
}

__attribute__((cold)) inline void Block::report() {
  const std::string line = error_at_ ? library_line(error_at_) : "";
  grid.fail("cuda_sim: block " + text(blockIdx) + ": " + error_ + (line.empty() ? "" : "; it is at " + line) +
            where_everyone_is());
}

// One line for each group of threads that are at the same place.
__attribute__((cold)) inline std::string Block::where_everyone_is() const {
  std::map<std::string, std::vector<int>> groups;
  for (int i = 0; i < threads; ++i) groups[where_is(i)].push_back(i);
  std::map<int, std::string> lines;  // by the first thread of each group
  for (const auto& [where, who] : groups) lines[who[0]] = "\n  " + text_of_threads(who, grid.block) + ": " + where;
  std::string report;
  for (const auto& line : lines) report += line.second;
  return report;
}

inline std::string Block::where_is(int i) const {
  const Place& at = fibers_[i].at;
  const Warp& warp = warps_[i / 32];
  const unsigned bit = 1u << (i & 31);
  if (!(warp.alive & bit)) return "returned from the kernel";
  if ((warp.at_barrier | warp.at_cluster_barrier) & bit) return "waiting in " + text(at);
  for (size_t k = 0; k < warp.open; ++k) {
    const Gathering& g = warp.gatherings[k];
    if (!(g.arrived & bit)) continue;
    return "waiting in " + text(at) + ", mask " + hexadecimal(g.mask) + ", for " +
           text_of_lanes(g.mask & warp.alive & ~g.arrived);
  }
  return at.line ? "last passed " + text(at) : "no barrier reached yet";
}

// The launch has failed: threads have stopped in the middle of the kernel. What they did comes before what this OS
// thread does next, and the next launch starts with fibers of which ThreadSanitizer remembers nothing.
void Block::abandon_fibers() {
#if CUDASIM_TSAN
  for (int i = 0; i < threads; ++i) {
    Fiber& f = fibers_[i];
    if (!(warps_[i / 32].alive >> (i & 31) & 1)) continue;
    __tsan_switch_to_fiber(f.tool, __tsan_switch_to_fiber_no_sync);
    order_release(&pool_->main.arrives);
    const bool started = f.context.resume_at != reinterpret_cast<void*>(&Block::entry);
    if (started) heed_accesses();
    __tsan_switch_to_fiber(pool_->main.tool, __tsan_switch_to_fiber_no_sync);
    __tsan_destroy_fiber(f.tool);
    f.tool = __tsan_create_fiber(0);
  }
#endif
}

}  // namespace cudasim
