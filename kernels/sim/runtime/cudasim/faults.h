// Signals during a kernel: faults (a null pointer, a division by zero, a failed assert) become a report instead of the
// end of the process, and the watchdog's tick comes here.
//
// Each library of the simulator has handlers. The one that is called, that of the library that was loaded last, asks
// the one whose kernel runs on this OS thread, at once and not link by link: a process may have hundreds, and a thread
// of a kernel has 64 KB of stack. What concerns no kernel is passed on to the handler that was there before. Sanitizers
// have handlers of their own, and then these are not installed.
#pragma once

#include <csignal>
#include <cstdint>

#ifdef __linux__
#include <ucontext.h>
#endif

#include "cudasim/block.h"

namespace cudasim {

constexpr bool kCatchesSignals = !CUDASIM_ASAN && !CUDASIM_TSAN;
constexpr int kTickSignal = SIGURG;  // ignored by whoever does not expect it, debuggers too

inline struct sigaction& previous_action(int signal) {
  static struct sigaction actions[64];
  return actions[signal];
}

inline void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = previous_action(signal);
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  if (signal == kTickSignal) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Where the interrupted code was; 0 where we do not know how to ask.
inline uintptr_t program_counter([[maybe_unused]] void* context) {
#if defined(__linux__) && defined(__x86_64__)
  return uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__)
  return uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#else
  return 0;
#endif
}

// Whether a signal is the concern of the block that this OS thread runs; then it is dealt with.
inline bool handle(Block& block, int signal, siginfo_t* info, void* context) {
  if (signal != kTickSignal && !block.in_kernel()) return false;
  if (signal != kTickSignal) block.stop_at_fault(signal, *info, program_counter(context));
  block.on_tick(program_counter(context));
  return true;
}

// The stack on which this OS thread handles faults while it runs blocks. At its low end stands whose it is.
class FaultStack {
 public:
  FaultStack() : memory_(kCatchesSignals ? kBytes : 0) {
    if (!kCatchesSignals) return;
    stack_t stack = {};
    stack.ss_sp = memory_.data();
    stack.ss_size = memory_.size();
    *reinterpret_cast<Owner*>(memory_.data()) = {kMark, &current, handle};
    sigaltstack(&stack, &previous_);
  }
  ~FaultStack() {
    if (kCatchesSignals) sigaltstack(&previous_, nullptr);
  }

  // For handlers, which may belong to another library: the one that runs blocks on this OS thread deals with the
  // signal, if it can. They must not look at `current` themselves: on a thread that has never run their library that
  // allocates its thread_local variables, and what was interrupted may be just there.
  static bool owner_handles(int signal, siginfo_t* info, void* context) {
    stack_t stack = {};
    if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) || stack.ss_size != kBytes) return false;
    const Owner& owner = *static_cast<const Owner*>(stack.ss_sp);
    auto* block = owner.mark == kMark ? static_cast<Block*>(*owner.current) : nullptr;
    return block && owner.handle(*block, signal, info, context);
  }

 private:
  struct Owner {
    unsigned long mark;
    RunningBlock* const* current;  // of the library whose handle() that is
    bool (*handle)(Block&, int, siginfo_t*, void*);
  };

  static constexpr size_t kBytes = 64 << 10;
  static constexpr unsigned long kMark = 0x43554441;  // of a stack of ours
  std::vector<char> memory_;
  stack_t previous_ = {};
};

inline void on_signal(int signal, siginfo_t* info, void* context) {
  if (!FaultStack::owner_handles(signal, info, context)) pass_on(signal, info, context);
}

inline void catch_signals() {
  static const bool once = [] {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, kTickSignal}) {
      struct sigaction action = {};
      sigemptyset(&action.sa_mask);
      action.sa_sigaction = on_signal;
      // A handler may leave for another fiber, so it must not block its signal. A fault may be a stack that has
      // overflowed, so it needs another one; a tick may come back to where it interrupted, so it stays on its fiber's.
      action.sa_flags = SA_SIGINFO | SA_NODEFER | (signal == kTickSignal ? SA_RESTART : SA_ONSTACK);
      sigaction(signal, &action, &previous_action(signal));
    }
    return true;
  }();
  (void)once;
}

}  // namespace cudasim
