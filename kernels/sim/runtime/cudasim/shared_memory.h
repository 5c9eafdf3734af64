// The shared memory of one block: its dynamic part, and in a cluster a copy of the static variables.
//
// The blocks of a cluster run on one OS thread, so that a static variable has one address for all of them. While a
// block does not run, its variables are in its copy: there the other blocks reach them (Cluster::enter).
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "cudasim/library.h"
#include "cudasim/sanitizers.h"

namespace cudasim {

class SharedMemory {
 public:
  // On either side of each part, so that the checker sees an overrun. AddressSanitizer sees it by the exact size.
  static constexpr size_t kMargin = CUDASIM_CHECKED ? 1024 : 0;

  SharedMemory(size_t dynamic_bytes, bool in_cluster)
      : seals_(in_cluster && !CUDASIM_CHECKED),
        dynamic_(dynamic_bytes, kSealsByPage && seals_),
        statics_(in_cluster ? StaticSharedMemory::of_library().bytes() : 0, kSealsByPage && seals_) {}
  ~SharedMemory() { open(); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* dynamic() const { return dynamic_.data; }
  char* statics() const { return statics_.data; }
  bool has_sealed(uintptr_t address) const { return sealed_ && (dynamic_.has(address) || statics_.has(address)); }

  // The block has ended: whoever touches its memory now ends the launch. (The checker knows by itself.)
  void seal() { protect(true); }
  void open() { protect(false); }

 private:
  static constexpr bool kSealsByPage = !CUDASIM_ASAN && !CUDASIM_TSAN;

  struct Part {
    void* memory = nullptr;
    char* data = nullptr;
    size_t bytes;  // with the margins

    Part(size_t wanted, bool whole_pages) : bytes(wanted + !wanted + 2 * kMargin) {
      // 16 bytes is what CUDA promises.
      const size_t page = whole_pages ? size_t(sysconf(_SC_PAGESIZE)) : kMargin ? 128 : 16;
      if (whole_pages) bytes = (bytes + page - 1) / page * page;
      if (posix_memalign(&memory, page, bytes)) throw std::bad_alloc();
      data = static_cast<char*>(memory) + kMargin;
    }
    ~Part() { std::free(memory); }
    bool has(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(memory) < bytes; }
  };

  void protect(bool sealed) {
    if (!seals_ || sealed_ == sealed) return;
    sealed_ = sealed;
    for (const Part* part : {&dynamic_, &statics_}) {
#if CUDASIM_ASAN
      sealed ? __asan_poison_memory_region(part->memory, part->bytes)
             : __asan_unpoison_memory_region(part->memory, part->bytes);
#else
      mprotect(part->memory, part->bytes, sealed ? PROT_NONE : PROT_READ | PROT_WRITE);
#endif
    }
  }

  const bool seals_;
  bool sealed_ = false;
  Part dynamic_, statics_;
};

}  // namespace cudasim
