// A running block, of a cluster of them (cudasim/cluster.h): its fibers, and who of them goes on next.
//
// Threads of a block change places only where one waits, draws lots (CUDASIM_SEED) or is preempted. The last lane to
// arrive at a warp function computes it for all of them; the last thread to arrive at a barrier opens it.
#pragma once

#include <csignal>

#include "cudasim/checker.h"
#include "cudasim/fiber.h"
#include "cudasim/grid.h"
#include "cudasim/shared_memory.h"
#include "cudasim/warp_state.h"

namespace cudasim {

class Cluster;

class Block : public RunningBlock {
 public:
  Block(Grid& of, Cluster& in, int rank);
  ~Block();

  // What its cluster calls: one block of the grid from its start to its end, as often as there are more.
  void begin(long id);
  void start_threads();
  void resume();  // until none of its threads can go on, or it gives way to other blocks
  void end(bool reports_deadlock);
  bool can_go_on() const { return head_ != tail_; }
  bool ended() const { return living_ == 0; }
  bool stopped() const { return stopped_; }
  uint3 index() const { return index_; }
  SharedMemory& memory() { return memory_; }
  const SharedMemory& memory() const { return memory_; }
  void wake_from_cluster_barrier();
  std::string where_everyone_is() const;

  // What kernels call, through RunningBlock.
  Verdict barrier(const Place& at, int predicate, bool of_grid);
  void warp_function(const Place& at, unsigned mask, Combine combine, void* argument);
  void yield(const Place& at);
  void cluster_arrive(const Place& at);
  void cluster_wait(const Place& at);
  void* shared_of(const Place& at, const volatile void* mine, unsigned other);
  [[noreturn]] void stop(std::string sentence);  // ends the launch with a report

  bool in_kernel() const { return !inside_ && running_ != &pool_->main; }  // not in the simulator's own code
  void maybe_preempt();

  // What the handlers of signals call.
  static constexpr int kTicksPerSecond = 100;
  void on_tick(uintptr_t program_counter);
  static void say_where();  // on the error output: block and thread
  [[noreturn]] void stop_at_fault(int signal, const siginfo_t& info, uintptr_t program_counter);

  Grid& grid;
  Cluster& cluster;
  const int threads;

 private:
  // Marks the simulator's own code on behalf of the running thread.
  struct Inside {
    Block& block;
    explicit Inside(Block& b) : block(b) { block.enter(); }
    ~Inside() { block.leave(); }
  };
  void enter() {
    checker_enters_simulator(), ignore_accesses();
    inside_ = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);  // a tick may come between any two instructions
  }
  void leave() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    inside_ = false;
    heed_accesses(), checker_leaves_simulator();
  }

  CUDASIM_PLAIN static inline void entry();
  CUDASIM_SWITCH inline void switch_to(Fiber* to, bool for_good = false);
  CUDASIM_PLAIN inline void exit();
  CUDASIM_PLAIN inline void abandon_fibers();
  void start_fiber(int i);
  void wake(int thread) { ready_[tail_++ & ring_mask_] = thread; }
  Fiber* next();
  Fiber* next_elsewhere() { return cluster_blocks > 1 ? &pool_->main : next(); }  // other blocks first
  void came_last();
  void open_barrier();
  void meet_other_blocks(char* order);
  void finish(int warp, Gathering& g);
  void order_warp(Fiber* lanes, unsigned mask);
  [[noreturn]] void stop_at_two_barriers(const Place& at);
  [[noreturn]] void stop_outside_mask(const Place& at, unsigned mask);
  void look_at_clock(uintptr_t program_counter);
  void stop_if_hopeless(uintptr_t program_counter);
  std::string where_is(int thread) const;
  [[noreturn]] void stop_at_rank(const Place& at, unsigned other);
  void report();

  FiberPool* pool_;
  Fiber *fibers_, *running_;
  uint3* const thread_index_ = &threadIdx;  // here, for the address of a thread_local can cost a call
  std::vector<int> ready_;                  // a ring of threads that can run
  unsigned ring_mask_ = 1, head_ = 0, tail_ = 0;
  const bool random_order_;
  volatile bool inside_ = true;
  std::vector<Warp> warps_;
  int living_ = 0, arrived_ = 0;  // threads that have not returned; of them, those that wait at the barrier
  unsigned generation_ = 0;       // of barriers
  Place barrier_at_;
  Verdict verdict_[2];
  char order_[2] = {};  // addresses by which ThreadSanitizer orders barriers
  Random random_;
  uint3 index_{};
  SharedMemory memory_;
  bool stopped_ = false;
  std::string error_;
  uintptr_t error_at_ = 0;       // the code address of the error, where no Place tells it
  volatile bool asked_ = false;  // checked builds: a tick waits to be looked at
  unsigned head_at_tick_ = 0;
};

inline Block* running_block() {
  return static_cast<Block*>(current);
}

inline Block::Block(Grid& of, Cluster& in, int number)
    : RunningBlock(number, of.cluster),
      grid(of),
      cluster(in),
      threads(int(of.threads)),
      pool_(FiberPool::take(threads)),
      fibers_(pool_->fibers.data()),
      running_(&pool_->main),
      random_order_(of.seed != 0),
      warps_(size_t(threads + 31) / 32),
      memory_(of.shared_bytes, of.cluster > 1) {
  shared_ = memory_.dynamic();
  while (ring_mask_ < unsigned(threads) + 1) ring_mask_ *= 2;
  ready_.resize(ring_mask_--);
  for (int i = 0; i < threads; ++i) fibers_[i].index = i, fibers_[i].thread = coordinates(unsigned(i), grid.block);
#if CUDASIM_TSAN
  pool_->main.tool = __tsan_get_current_fiber();
#endif
  blockDim = grid.block, gridDim = grid.grid;
#if CUDASIM_ASAN
  __asan_set_error_report_callback([](const char*) { say_where(); });
#endif
}

inline Block::~Block() {
  FiberPool::give_back(pool_);
}

inline Fiber* Block::next() {
  if (head_ == tail_) return &pool_->main;
  if (random_order_ && cluster_blocks > 1 && random_.below(8) == 0) return &pool_->main;  // to another block
  if (random_order_) std::swap(ready_[head_ & ring_mask_], ready_[(head_ + random_.below(tail_ - head_)) & ring_mask_]);
  return fibers_ + ready_[head_++ & ring_mask_];
}

void Block::switch_to(Fiber* to, [[maybe_unused]] bool for_good) {
  Fiber* from = running_;
  if (from == to) return;
  running_ = to, thread_ = to->index, *thread_index_ = to->thread;
  checker_thread_runs(thread_, to->stack, to->stack_bytes);
  CUDASIM_LEAVES(from, to, for_good);
  switch_context(&from->context, &to->context);
  CUDASIM_IS_BACK(from);
}

void Block::entry() {  // the first function on each fiber's stack
  auto* block = static_cast<Block*>(current);
#if CUDASIM_ASAN
  const void* lowest;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &lowest, &bytes);
  Fiber& main = block->pool_->main;
  if (!main.stack) main.stack = static_cast<char*>(const_cast<void*>(lowest)), main.stack_bytes = bytes;
#endif
  order_acquire(&block->grid);
  block->inside_ = false;
  checker_leaves_simulator();
  std::string thrown;
  try {
    block->grid.call(block->grid.arguments);
  } catch (const std::exception& e) {  // no device code throws, but a host function that it calls may
    thrown = e.what();
  }
  if (!thrown.empty()) block->stop(thrown);
  block->exit();
}

inline void Block::start_fiber(int i) {
  Fiber& f = fibers_[i];
  f.at = {}, f.cluster_arrived = false;
#if CUDASIM_TSAN
  __tsan_set_fiber_name(f.tool, (text_of_threads({i}, grid.block) + " of block " + text(blockIdx)).c_str());
#endif
#if CUDASIM_ASAN
  f.tool = nullptr;
  __asan_unpoison_memory_region(f.stack, f.stack_bytes);
#endif
  // Stacks begin at 16 different offsets: at one, all of them would fall on the same few cache sets. The alignment is
  // that of a function just called: a return address lies on top on x86-64, and none on AArch64.
  void** top = reinterpret_cast<void**>(f.stack + f.stack_bytes - i % 16 * 256) - 3;
#ifdef __aarch64__
  --top;
#endif
  top[0] = top[1] = nullptr;  // where a debugger's backtrace ends
  f.context = {top, reinterpret_cast<void*>(&Block::entry)};
  wake(i);
}

inline void Block::begin(long id) {
  index_ = coordinates(uint64_t(id), grid.grid);
  random_ = Random(uint64_t(grid.seed) * 1000003 + uint64_t(id));
  memory_.open();
  std::memset(shared_, 0xff, grid.shared_bytes);  // NaNs: shared memory starts undefined
  living_ = threads, arrived_ = 0, head_ = tail_ = 0, verdict_[0] = verdict_[1] = {}, pool_->main.stack = nullptr;
  asked_ = false;
  for (int w = 0; w < int(warps_.size()); ++w) {
    const int lanes = threads - w * 32;
    warps_[w].start(lanes < 32 ? (1u << lanes) - 1 : ~0u);
  }
}

inline void Block::start_threads() {
  if (!CUDASIM_CHECKED) StaticSharedMemory::of_library().poison();  // the checker does it
  checker_block_begins(index_, shared_, grid.shared_bytes, cluster_blocks > 1 ? memory_.statics() : nullptr, threads);
  for (int i = 0; i < threads; ++i) start_fiber(i);
}

inline void Block::resume() {
  order_release(&grid);
  switch_to(next());
}

inline void Block::end(bool reports_deadlock) {
  if (living_) abandon_fibers();
  order_acquire(&pool_->main.arrives);
  ignore_accesses();
  inside_ = true;
  if (reports_deadlock && !stopped_ && living_) error_ = "deadlock: no thread of the block can go on";
  if (!error_.empty()) report();
  checker_block_ends();
  heed_accesses();
}

}  // namespace cudasim

#include "cudasim/cluster.h"
#include "cudasim/stopping.h"
#include "cudasim/waiting.h"
