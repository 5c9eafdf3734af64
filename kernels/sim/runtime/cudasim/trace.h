// The trace: every access and every meeting of threads, in order, for qwen_cuda.simulator to read.
//
// A file is one line of JSON (launches, objects, names, sites, the library) and then records of 32 bytes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cudasim/call_sites.h"
#include "cudasim/shared_shadow.h"

namespace cudasim {

enum class Space : uint8_t { kNone = 0, kGlobal = 1, kShared = 2 };

struct TraceRecord {
  uint16_t launch;  // counted from the start of the trace
  uint16_t thread;  // linear index in its block
  int16_t object;   // operand or variable, -1: memory that is no operand. Of a barrier or warp function: its name
  Kind kind;
  Space space;
  uint32_t block;     // linear index in the grid
  uint32_t sequence;  // of the thread's records
  uint32_t site;
  uint32_t bytes;  // of a warp function: its mask
  int64_t offset;  // in bytes, in the object; without an object: the address
};
static_assert(sizeof(TraceRecord) == 32, "qwen_cuda/simulator/trace_file.py reads records of 32 bytes");

class TraceRecorder {
 public:
  static constexpr size_t kChunk = 1 << 16, kMostRecords = size_t(1) << 26;  // 2 GiB

  bool on = false;
  int number = 0;  // of traces so far

  void start() {
    clear();
    on = true, ++number;
  }
  void clear() {
    for (TraceRecord* chunk : chunks_) std::free(chunk);
    chunks_.clear(), objects_.clear(), launches_.clear(), names_.clear();
    chunk_ = nullptr, used_ = kChunk, count_ = 0, on = false;
  }

  void launch_begins(const std::string& json) { launches_.push_back(json); }
  // An operand (`address`: where it lies, for its alignment) or a shared variable, declared by `function`.
  int add_object(const std::string& name, Space space, size_t bytes, uintptr_t address, const std::string& function) {
    objects_.push_back("{\"name\":" + quoted(name) + ",\"space\":" +
                       (space == Space::kShared ? "\"shared\"" : "\"global\"") + ",\"bytes\":" + std::to_string(bytes) +
                       ",\"address\":" + std::to_string(address) + ",\"function\":" + quoted(function) + "}");
    return int(objects_.size() - 1);
  }
  int name(const char* name) {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return int(i);
    }
    names_.push_back(name);
    return int(names_.size() - 1);
  }
  uint16_t launch() const { return uint16_t(launches_.size() - 1); }

  // False: the trace is full.
  bool add(const TraceRecord& record) {
    if (used_ == kChunk) {
      if (count_ >= kMostRecords) return false;
      chunk_ = static_cast<TraceRecord*>(std::malloc(kChunk * sizeof(TraceRecord)));
      if (!chunk_) return false;
      chunks_.push_back(chunk_), used_ = 0;
    }
    chunk_[used_++] = record, ++count_;
    return true;
  }

  // 0, or errno.
  int write(const char* path, const Image& image, const std::vector<Site>& sites) {
    FILE* file = std::fopen(path, "wb");
    if (!file) return errno;
    std::string head = "{\"library\":" + quoted(image.path) + ",\"records\":" + std::to_string(count_);
    head += ",\"launches\":[" + joined(launches_) + "],\"objects\":[" + joined(objects_) + "],\"names\":[";
    for (size_t i = 0; i < names_.size(); ++i) head += (i ? "," : "") + quoted(names_[i]);
    head += "],\"sites\":[";
    for (size_t i = 0; i < sites.size(); ++i) head += (i ? "," : "") + of_site(sites[i], image);
    head += "]}\n";
    bool good = std::fwrite(head.data(), 1, head.size(), file) == head.size();
    for (size_t i = 0; i < chunks_.size() && good; ++i) {
      const size_t n = i + 1 < chunks_.size() ? kChunk : used_;
      good = std::fwrite(chunks_[i], sizeof(TraceRecord), n, file) == n;
    }
    const int error = good ? 0 : errno;
    return std::fclose(file) == 0 ? error : errno;
  }

  static std::string quoted(const std::string& s) {
    std::string out = "\"";
    for (const char c : s) {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<unsigned char>(c) < 32 ? '?' : c;
    }
    return out + '"';
  }

 private:
  static std::string joined(const std::vector<std::string>& parts) {
    std::string out;
    for (size_t i = 0; i < parts.size(); ++i) out += (i ? "," : "") + parts[i];
    return out;
  }
  // Offsets in the library of the addresses to look up, innermost first, and the line that is known without them.
  static std::string of_site(const Site& site, const Image& image) {
    std::string out = "{\"pcs\":[";
    const char* comma = "";
    const auto add = [&](uintptr_t pc) {
      if (pc <= image.low || pc > image.high) return;
      out += comma + std::to_string(pc - 1 - image.base), comma = ",";
    };
    add(site.pc);
    for (const uintptr_t caller : site.callers) add(caller);
    return out + "],\"file\":" + quoted(site.file) + ",\"line\":" + std::to_string(site.line) + "}";
  }

  std::vector<TraceRecord*> chunks_;
  TraceRecord* chunk_ = nullptr;
  size_t used_ = kChunk, count_ = 0;
  std::vector<std::string> launches_, objects_, names_;
};

}  // namespace cudasim
