// From a code address to the line of the source, at the time of a report. binutils' addr2line (it comes with g++) reads
// the library's debug information; without it a report gives the library and the offset in it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cudasim/elf_symbols.h"

namespace cudasim {

struct Frame {
  std::string function, file;
  int line = 0;
};

// The frames at one return address, innermost first: what the compiler has inlined is taken apart again.
inline void append_frames(const Image& image, uintptr_t return_address, std::vector<Frame>& frames) {
  char command[64];
  std::snprintf(command, sizeof command, "' 0x%llx 2>/dev/null",
                static_cast<unsigned long long>(return_address - 1 - image.base));
  if (image.path.find('\'') != std::string::npos) return;
  FILE* out = popen(("addr2line -i -f -C -e '" + image.path + command).c_str(), "r");
  if (!out) return;
  char line[4096];
  while (std::fgets(line, sizeof line, out)) {
    Frame frame;
    frame.function = std::string(line, std::strcspn(line, "\n"));
    if (!std::fgets(line, sizeof line, out)) break;
    const char* colon = std::strrchr(line, ':');
    if (!colon || line[0] == '?') continue;
    frame.file = std::string(line, size_t(colon - line));
    frame.line = std::atoi(colon + 1);
    frames.push_back(frame);
  }
  pclose(out);
}

inline bool of_simulator(const std::string& file) {
  return file.find("/cudasim/") != std::string::npos || file.find("cuda_sim.h") != std::string::npos ||
         file.find("cuda_platform.cuh") != std::string::npos || file.find("/c++/") != std::string::npos;
}

inline bool ends_with(const std::string& s, const char* end) {
  const size_t n = std::strlen(end);
  return s.size() >= n && s.compare(s.size() - n, n, end) == 0;
}

// "warp_sum" of "float (anonymous namespace)::warp_sum<4>(float)".
inline std::string short_name(const std::string& function) {
  const std::string nowhere = "(anonymous namespace)::";
  const size_t start = function.find(nowhere) == std::string::npos ? 0 : function.find(nowhere) + nowhere.size();
  const std::string name = function.substr(start, function.find_first_of("(<", start) - start);
  return name.substr(name.find_last_of(" :") + 1);  // npos + 1: the whole
}

// "rms_norm.cu:41". Where the compiler has merged the code of several lines there is none.
inline std::string text(const Frame& f) {
  const std::string file = f.file.substr(f.file.rfind('/') + 1);
  return f.line ? file + ":" + std::to_string(f.line) : file + " (in " + short_name(f.function) + ")";
}

// "rms_norm.cu:41": the innermost line in a .cu file, or else the innermost one that is not the simulator's. A helper
// in a header is named too: "rms_norm.cu:41 (in warp_sum, warp_reduce.cuh:12)".
inline std::string describe_frames(const std::vector<Frame>& frames) {
  const Frame *helper = nullptr, *kernel = nullptr;
  for (const Frame& frame : frames) {
    if (of_simulator(frame.file)) continue;
    if (!helper) helper = &frame;
    if (!kernel && ends_with(frame.file, ".cu")) kernel = &frame;
  }
  if (!helper) return "";
  if (!kernel || kernel == helper) return text(*helper);
  return text(*kernel) + " (in " + short_name(helper->function) + ", " + text(*helper) + ")";
}

}  // namespace cudasim
