// What the simulator must know of the library that it is a part of: where its code lies, and its shared variables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cudasim/build.h"
#include "cudasim/elf_symbols.h"
#include "cudasim/source_lines.h"

namespace cudasim {

inline const Image& library_image() {
  static const Image image = find_image();
  return image;
}

inline bool in_library(uintptr_t address) {
  const Image& image = library_image();
  return address >= image.low && address < image.high;
}

// "rms_norm.cu:41" of a code address; empty where the library has no debug information.
inline std::string library_line(uintptr_t program_counter) {
  std::vector<Frame> frames;
  append_frames(library_image(), program_counter + 1, frames);  // it expects a return address, one past the place
  return describe_frames(frames);
}

// The static shared variables of all kernels of the library: offset and bytes. Those of a thread_local variable count
// from another one whose address we know, so that they hold in every OS thread.
class StaticSharedMemory {
 public:
  static const StaticSharedMemory& of_library() {
    static const StaticSharedMemory memory;
    return memory;
  }

  // To NaNs, as a GPU leaves it undefined.
  CUDASIM_PLAIN void poison() const {
    for (const auto& [offset, bytes] : variables_) fill(base() + offset, bytes);
  }

  // Whether p points into a variable, or just past its end. In a cluster, its place in a block's copy.
  bool has(const void* p) const {
    const auto at = uintptr_t(p) - uintptr_t(base());
    for (const auto& [offset, bytes] : variables_) {
      if (at - uintptr_t(offset) <= bytes) return true;
    }
    return false;
  }
  std::ptrdiff_t offset(const void* p) const { return static_cast<const char*>(p) - base() - low_; }
  size_t bytes() const { return size_t(high_ - low_); }  // of a copy

  CUDASIM_PLAIN void save(char* copy) const {
    for (const auto& [offset, bytes] : variables_) move(copy + (offset - low_), base() + offset, bytes);
  }
  CUDASIM_PLAIN void restore(const char* copy) const {
    for (const auto& [offset, bytes] : variables_) move(base() + offset, copy + (offset - low_), bytes);
  }

 private:
  static constexpr bool kThreadLocal = !CUDASIM_ONE_OS_THREAD;
  static inline thread_local char landmark_ = 0;
  static char* base() { return kThreadLocal ? &landmark_ : nullptr; }

  static CUDASIM_PLAIN __attribute__((no_sanitize("address"))) void move(char* to, const char* from, size_t bytes) {
#if CUDASIM_ASAN || CUDASIM_TSAN || CUDASIM_CHECKED
    for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = static_cast<const volatile char*>(from)[i];
#else
    std::memcpy(to, from, bytes);
#endif
  }

  // With clang and AddressSanitizer a variable's symbol has the bytes of the guard behind it too.
  static CUDASIM_PLAIN __attribute__((no_sanitize("address"))) void fill(volatile char* p, size_t bytes) {
#if CUDASIM_ASAN || CUDASIM_TSAN
    while (bytes--) *p++ = char(0xff);  // memset is a sanitizer's own, and would be seen
#else
    std::memset(const_cast<char*>(p), 0xff, bytes);
#endif
  }

#ifdef __linux__
  StaticSharedMemory() {
    const int wanted = kThreadLocal ? STT_TLS : STT_OBJECT;
    std::ptrdiff_t origin = kThreadLocal ? 0 : -std::ptrdiff_t(library_image().base);
    each_symbol(library_image(), [&](const char* name, uintptr_t value, size_t bytes, int type) {
      if (type != wanted) return;
      if (std::strstr(name, CUDASIM_SHARED_TAG)) variables_.emplace_back(std::ptrdiff_t(value), bytes);
      if (kThreadLocal && std::strstr(name, "StaticSharedMemory9landmark_")) origin = std::ptrdiff_t(value);
    });
    for (auto& [offset, bytes] : variables_) {
      offset -= origin;
      const std::ptrdiff_t end = offset + std::ptrdiff_t(bytes);
      const bool first = low_ == high_;
      low_ = first ? offset : std::min(low_, offset), high_ = first ? end : std::max(high_, end);
    }
  }
#endif

  std::vector<std::pair<std::ptrdiff_t, size_t>> variables_;
  std::ptrdiff_t low_ = 0, high_ = 0;  // where the first one begins and the last one ends
};

}  // namespace cudasim
