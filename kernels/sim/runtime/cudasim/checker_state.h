// What the checker knows of the running launch, block and thread. One OS thread at a time runs kernels of this library.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cudasim/block.h"
#include "cudasim/call_sites.h"
#include "cudasim/operands.h"
#include "cudasim/shared_shadow.h"
#include "cudasim/trace.h"

namespace cudasim {

// A piece of shared memory, and what is known of each byte of it.
struct SharedSegment {
  uintptr_t low = 0, high = 0;
  SharedByte* cells = nullptr;
  size_t allocated = 0;

  void cover(uintptr_t from, uintptr_t to) {
    if (to - from > allocated) {
      std::free(cells);
      allocated = to - from;
      cells = static_cast<SharedByte*>(std::calloc(allocated, sizeof(SharedByte)));
      if (!cells) throw std::bad_alloc();
    }
    low = from, high = to;
  }
};

// A read of shared memory that nobody has written: reported once it is sure that no race explains it.
struct UnwrittenRead {
  bool found = false;
  bool far = false;  // of another block's: it may still write
  int thread = 0;
  uint32_t site = 0;
  std::string what;  // "reads 4 bytes of __shared__ partial at byte 12"
};

struct AddressRange {
  uintptr_t low = 0, high = 0;
  CUDASIM_ALWAYS_INLINE bool has(uintptr_t address) const { return address >= low && address < high; }
};
inline AddressRange range_of(const void* object, size_t bytes) {
  const auto low = reinterpret_cast<uintptr_t>(object);
  return {low, low + bytes};
}

// An access of a block's shared memory by another one: the last that a barrier of the cluster orders.
struct Visit {
  bool found = false;
  uint32_t phase = 0, site = 0;
  int thread = 0;
  uint3 block{};
  std::string what;  // "reads 4 bytes"
};

// What is known of a block of the cluster that runs.
struct CheckedBlock {
  SharedShadow shadow;
  SharedSegment dynamic, statics;
  CallStack calls[SharedShadow::kThreads];
  uint32_t sequence[SharedShadow::kThreads] = {};
  uintptr_t stacks[SharedShadow::kThreads] = {};  // the lowest byte of each thread's stack, 0: it has not run yet
  AddressRange running;                           // its RunningBlock, which kernels read through inlined functions
  uintptr_t copy = 0;                             // where other blocks find its static variables, 0: there are none
  uint3 index{};
  uint32_t rank = 0, block = 0;  // in the cluster; linear index in the grid
  bool returned = false;
  UnwrittenRead unwritten;
  Visit visit;
};

struct Checker {
  std::mutex one_launch;
  Image image;
  std::vector<Variable> variables;  // sorted by address
  AddressRange thread_locals;       // of this library, for the OS thread that runs kernels: threadIdx and its like
  AddressRange arguments;           // the simulator's copy, which each thread reads

  Operands* operands = nullptr;  // of the thread that launches
  SiteTable sites;
  std::vector<CheckedBlock*> blocks;  // of the cluster; more are kept for larger ones
  CheckedBlock* own = nullptr;        // the one that runs
  AddressRange statics;               // from the first static shared variable to the end of the last
  int cluster_blocks = 1;
  size_t stack_bytes = 0;
  int threads = 0;  // of a block

  TraceRecorder trace;
  std::vector<int> variable_objects;  // numbers of the variables in the trace, -1: none yet
  int dynamic_object = -1;
};

// How an access is made: by a number of its size, by one of CUDA's vectors (float4 is aligned to 16 bytes, and has no
// padding), or by a copy of bytes that need not be aligned.
enum class Form : uint8_t { kScalar, kVector, kPieces };

// What each access looks at first.
struct RunningThread {
  uintptr_t stack = 0;
  size_t stack_bytes = 0;  // 0 while the simulator's own code runs
  int index = -1;          // -1: no thread of a kernel
  CallStack* calls = nullptr;
};

inline Checker* checker_or_null = nullptr;
inline RunningThread running_thread;

inline Checker* new_checker() {
  auto* c = new Checker;
  c->image = find_image();
  c->variables = find_variables(c->image);
  c->variable_objects.assign(c->variables.size(), -1);
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (const Variable& v : c->variables) {
    if (v.owner == Variable::kShared) low = std::min(low, v.low), high = std::max(high, v.high);
  }
  if (low < high) c->statics = {low, high};
  return c;
}

// Never destroyed: a launch may come from another static's destructor.
inline Checker& checker() {
  if (!checker_or_null) checker_or_null = new_checker();
  return *checker_or_null;
}

// This much on either side of the dynamic shared memory belongs to nobody.
constexpr size_t kDynamicGapBytes = 1024;

// While it lives, accesses are not a kernel's.
struct OwnCode {
  const size_t stack_bytes = running_thread.stack_bytes;
  CUDASIM_ALWAYS_INLINE OwnCode() { running_thread.stack_bytes = 0; }
  CUDASIM_ALWAYS_INLINE ~OwnCode() { running_thread.stack_bytes = stack_bytes; }
};

CUDASIM_ALWAYS_INLINE void fill_bytes(char* to, int value, size_t bytes) {
  const uint64_t word = uint64_t(value & 0xff) * 0x0101010101010101ull;
  for (; bytes >= 8; bytes -= 8, to += 8) {
    __builtin_memcpy(to, &word, 8);
    asm volatile("" ::: "memory");  // or the compiler would see a memset in this loop, which is checked itself
  }
  for (size_t i = 0; i < bytes; ++i) {
    to[i] = char(value);
    asm volatile("" ::: "memory");
  }
}

#ifdef __linux__
inline int note_thread_locals(dl_phdr_info* info, size_t, void*) {
  Checker& c = checker();
  if (info->dlpi_addr != c.image.base || !info->dlpi_tls_data) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
    c.thread_locals = range_of(info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz);
  }
  return 1;
}
#endif

// ---- sentences
inline std::string count_of(size_t bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

// "8 bytes past the end of x (4096 bytes)"
inline std::string beside(uintptr_t address, size_t bytes, uintptr_t low, uintptr_t high, const std::string& what) {
  const std::string whole = what + " (" + count_of(high - low) + ")";
  if (address == high) return "just past the end of " + whole;
  if (address > high) return count_of(address - high) + " past the end of " + whole;
  if (address < low) return count_of(low - address) + " before the start of " + whole;
  return "at byte " + std::to_string(address - low) + " of " + whole + ", " + count_of(address + bytes - high) +
         " past its end";
}

// What the launch ends with, if it is the first report.
inline void blame(uint3 block, int thread, const std::string& sentence) {
  running_block()->grid.fail("cuda_sim: block " + text(block) + ": " + text_of_threads({thread}, blockDim) + ": " +
                             sentence);
}

// Ends the launch. `thread` need not be the one that runs; `explained`: by itself, whatever was read before.
[[noreturn]] inline void report(int thread, uint32_t site, const std::string& what, bool explained = false) {
  Checker& c = checker();
  running_thread.stack_bytes = 0;
  std::string sentence = c.sites.text(site, c.image) + ": " + what;
  const UnwrittenRead& unwritten = c.own->unwritten;
  if (unwritten.found && !explained) {  // what was read then may be the reason of what is wrong now
    sentence += "\n  Before that, " + text_of_threads({unwritten.thread}, blockDim) + " at " +
                c.sites.text(unwritten.site, c.image) + " " + unwritten.what + ", which nobody had written";
  }
  if (thread != running_thread.index) blame(blockIdx, thread, sentence);
  running_block()->stop(sentence);
}

// The same of a thread of another block of the cluster.
[[noreturn]] inline void report_of_other(uint3 block, int thread, uint32_t site, const std::string& what) {
  Checker& c = checker();
  running_thread.stack_bytes = 0;
  blame(block, thread, c.sites.text(site, c.image) + ": " + what);
  running_block()->stop("");
}

}  // namespace cudasim
