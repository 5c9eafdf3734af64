// Fibers: a CUDA thread is a stack of its own on which the kernel function runs. Switching costs a few nanoseconds.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "cudasim/report.h"
#include "cudasim/sanitizers.h"

namespace cudasim {

struct Context {
  void *stack_pointer, *resume_at;
};

// Saves where we are in *from and goes on at *to. Each register that a function must keep is on the stack or a clobber,
// so that the compiler saves no more than are in use.
CUDASIM_PLAIN inline void switch_context(Context* from, Context* to) {
#ifdef __x86_64__
  asm volatile(  // the red zone below the stack pointer may be in use: step over it before the push
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %%rax, 8(%0)\n\t"
      "movq (%1), %%rsp\n\t"
      "jmpq *8(%1)\n"
      "1:\tpopq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
#else
  asm volatile(  // hint #36 marks a target of indirect jumps, where the processor checks them
      "stp x29, x30, [sp, #-16]!\n\t"
      "adr x9, 1f\n\t"
      "mov x10, sp\n\t"
      "stp x10, x9, [%0]\n\t"
      "ldp x10, x9, [%1]\n\t"
      "mov sp, x10\n\t"
      "br x9\n"
      "1:\thint #36\n\t"
      "ldp x29, x30, [sp], #16"
      : "+r"(from), "+r"(to)
      :
      : "x9", "x10", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "d8", "d9", "d10",
        "d11", "d12", "d13", "d14", "d15", "memory", "cc");
#endif
}

struct Fiber {  // first what a switch touches: one cache line
  alignas(64) Context context{};
  Place at;  // of the last barrier or warp function that it called
  uint3 thread{};
  int index = -1;  // linear, in its block
  unsigned generation = 0;
  bool cluster_arrived = false;  // at a barrier of the cluster, and has not waited for it
  unsigned cluster_phase = 0;    // at which
  void* order = nullptr;         // where ThreadSanitizer orders the __syncwarp that it waits in
  char* stack = nullptr;         // the lowest byte; null for the OS thread's own stack
  size_t stack_bytes = 0;
  void* tool = nullptr;              // what a sanitizer keeps of a fiber
  char arrives = 0, leaves[2] = {};  // addresses by which ThreadSanitizer orders __syncwarp
};

// The fibers of one block. Stacks are kept for later launches, until somebody asks for their memory.
class FiberPool {
 public:
  std::vector<Fiber> fibers;
  Fiber main;  // the OS thread that runs the block

  static FiberPool* take(int threads) {
    FiberPool* pool = nullptr;
    {
      std::lock_guard<std::mutex> guard(lock());
      if (!idle().empty()) pool = idle().back(), idle().pop_back();
    }
    if (!pool) pool = new FiberPool;
    while (int(pool->fibers.size()) < threads) pool->fibers.push_back(new_fiber());
    return pool;
  }
  static void give_back(FiberPool* pool) {
    std::lock_guard<std::mutex> guard(lock());
    idle().push_back(pool);
  }

  // Gives the stacks that no launch uses back to the system. A process has a limited number of mappings, and each
  // library of the simulator has stacks of its own. AddressSanitizer keeps them: what it knows of their bytes would
  // outlive them.
  static void release() {
#if !CUDASIM_ASAN
    std::lock_guard<std::mutex> guard(lock());
    for (FiberPool* pool : idle()) {
      for (const Fiber& fiber : pool->fibers) {
#if CUDASIM_TSAN
        __tsan_destroy_fiber(fiber.tool);
#endif
        munmap(fiber.stack - kGuardBytes, kGuardBytes + kStackBytes);
      }
      stacks() -= int(pool->fibers.size());
      delete pool;
    }
    idle().clear();
#endif
  }

  static constexpr size_t kGuardBytes = 16384;

 private:
  static constexpr size_t kStackBytes = (CUDASIM_ASAN || CUDASIM_TSAN || CUDASIM_CHECKED) ? 256 << 10 : 64 << 10;
  static constexpr int kGuardedStacks = 4096;  // Linux allows 65530 mappings, and a guard page costs two of them

  static std::mutex& lock() {
    static std::mutex m;
    return m;
  }
  static std::vector<FiberPool*>& idle() {  // never destroyed: a launch may come from another static's destructor
    static auto* v = new std::vector<FiberPool*>;
    return *v;
  }
  static std::atomic<int>& stacks() {
    static std::atomic<int> count{0};
    return count;
  }
  static Fiber new_fiber() {
    int flags = MAP_PRIVATE | MAP_ANON;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::runtime_error(
          "cuda_sim: no memory is left for the stacks of threads; use fewer blocks at a time "
          "(CUDASIM_THREADS) or smaller blocks");
    }
    if (stacks()++ < kGuardedStacks) mprotect(memory, kGuardBytes, PROT_NONE);  // a stack that overflows faults
    Fiber f;
    f.stack = static_cast<char*>(memory) + kGuardBytes;
    f.stack_bytes = kStackBytes;
#if CUDASIM_TSAN
    f.tool = __tsan_create_fiber(0);
#endif
    return f;
  }
};

}  // namespace cudasim
