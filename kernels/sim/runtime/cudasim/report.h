// What the simulator says when a kernel is wrong: places in the source, threads, sentences.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cudasim/running_block.h"

namespace cudasim {

inline std::string text(const Place& p) {
  const char* slash = std::strrchr(p.file, '/');
  return std::string(p.what) + " at " + (slash ? slash + 1 : p.file) + ":" + std::to_string(p.line);
}

inline std::string text(uint3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}
inline std::string text(dim3 v) {
  return text(make_uint3(v.x, v.y, v.z));
}

inline uint3 coordinates(uint64_t linear, dim3 extent) {
  return make_uint3(unsigned(linear % extent.x), unsigned(linear / extent.x % extent.y),
                    unsigned(linear / extent.x / extent.y));
}

// "thread 5", "threads 0-15, 32-47": numbers in ascending order, and how to write one of them.
template <class Name>
std::string text_of_ranges(const std::string& noun, const std::vector<int>& numbers, Name name) {
  std::string s = noun + (numbers.size() == 1 ? " " : "s ");
  int ranges = 0;
  for (size_t i = 0, end; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    if (++ranges > 8) return s + ", ... (" + std::to_string(numbers.size()) + " in all)";
    s += (i ? ", " : "") + name(numbers[i]);
    if (end - i > 1) s += (end - i > 2 ? "-" : ", ") + name(numbers[end - 1]);
  }
  return s;
}

// Threads by their linear index; with coordinates where the block has more than one dimension.
inline std::string text_of_threads(const std::vector<int>& threads, dim3 block) {
  return text_of_ranges("thread", threads, [&](int t) {
    return block.y * block.z == 1 ? std::to_string(t) : text(coordinates(uint64_t(t), block));
  });
}

inline std::string text_of_lanes(unsigned mask) {
  std::vector<int> lanes;
  for (; mask; mask &= mask - 1) lanes.push_back(__builtin_ctz(mask));
  return text_of_ranges("lane", lanes, [](int l) { return std::to_string(l); });
}

inline std::string hexadecimal(unsigned mask) {
  char s[16];
  std::snprintf(s, sizeof s, "0x%08x", mask);
  return s;
}

// The value of an environment variable as a number; `otherwise` where it is not set.
inline long environment(const char* name, long otherwise) {
  const char* s = std::getenv(name);
  return s && *s ? std::atol(s) : otherwise;
}

}  // namespace cudasim
