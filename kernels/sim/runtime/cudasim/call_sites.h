// Where a thread is: the stack of its calls, and a small number for each place of access.
//
// A function that is not inlined announces its entry, with the caller's address, and its exit. So the place of an
// access is the address after it and those of the calls that led there: a helper's load is not the same for all its
// callers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cudasim/linkage.h"
#include "cudasim/source_lines.h"

namespace cudasim {

// Frames tell which calls are still going on: stacks grow downwards, so that of a call is below that of its caller.
// (Exits alone would not do: a function may be entered by a kernel's code and left inside the simulator's.)
struct CallStack {
  static constexpr uint32_t kDeepest = 48;  // deeper calls are not kept
  uint32_t depth = 0;
  uint64_t hash[kDeepest + 1] = {};  // of the first `depth` callers
  uintptr_t caller[kDeepest] = {}, frame[kDeepest] = {};

  void enter(uintptr_t from, uintptr_t at) {
    while (depth && frame[depth - 1] <= at) --depth;
    if (depth == kDeepest) return;
    caller[depth] = from, frame[depth] = at;
    hash[depth + 1] = (hash[depth] ^ from) * 0x9E3779B97F4A7C15ull + depth + 1;
    ++depth;
  }
  void leave(uintptr_t at) {
    if (depth && frame[depth - 1] <= at) --depth;
  }
  // Forgets the calls below a frame that is in use now.
  CUDASIM_ALWAYS_INLINE void settle(uintptr_t at) {
    while (depth && frame[depth - 1] < at) --depth;
  }
};

struct Site {
  uintptr_t pc = 0;                // the return address of the access; 0: that of the innermost call is the place
  std::vector<uintptr_t> callers;  // innermost first
  const char* file = "";           // of a barrier or a warp function: the line that called it
  int line = 0;
};

class SiteTable {
 public:
  // The number of the place; numbers count from 0.
  CUDASIM_ALWAYS_INLINE uint32_t number(uintptr_t pc, const CallStack& stack, const char* file = "", int line = 0) {
    const uint64_t place = (pc ^ uint64_t(line) << 48) * 0xD6E8FEB86659FD93ull;
    const uint64_t key = (stack.hash[stack.depth] ^ place) * 0x9E3779B97F4A7C15ull | 1;
    const size_t slot = key >> 53;
    if (recent_key_[slot] == key) return recent_[slot];
    const uint32_t found = look_up(key, pc, stack, file, line);
    recent_key_[slot] = key, recent_[slot] = found;
    return found;
  }

  const std::vector<Site>& all() const { return sites_; }

  std::string text(uint32_t site, const Image& image) const {
    std::vector<Frame> frames;
    if (sites_[site].line) frames.push_back({"", sites_[site].file, sites_[site].line});
    if (sites_[site].pc) append_frames(image, sites_[site].pc, frames);
    for (const uintptr_t caller : sites_[site].callers) {
      if (caller >= image.low && caller < image.high) append_frames(image, caller, frames);
    }
    const std::string line = describe_frames(frames);
    if (!line.empty()) return line;
    char offset[32];
    std::snprintf(offset, sizeof offset, "+0x%llx", static_cast<unsigned long long>(sites_[site].pc - image.base));
    return image.path.substr(image.path.rfind('/') + 1) + offset;
  }

 private:
  uint32_t look_up(uint64_t key, uintptr_t pc, const CallStack& stack, const char* file, int line) {
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] == key) return uint32_t(i);
    }
    keys_.push_back(key);
    Site site;
    site.pc = pc, site.file = file, site.line = line;
    for (uint32_t i = stack.depth; i-- > 0;) site.callers.push_back(stack.caller[i]);
    sites_.push_back(site);
    return uint32_t(sites_.size() - 1);
  }

  uint64_t recent_key_[2048] = {};
  uint32_t recent_[2048] = {};
  std::vector<uint64_t> keys_;
  std::vector<Site> sites_;
};

}  // namespace cudasim
