// The tensors of the current call: what its kernels may read and write in global memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cudasim/unseen.h"

namespace cudasim {

struct Operand {
  std::string name;
  uintptr_t low = 0, high = 0;
  bool writable = false;
  int object = -1, trace = 0;  // its number in that trace
};

class Operands {
 public:
  CUDASIM_UNSEEN void add(const char* name, const void* data, size_t bytes, bool writable) {
    const auto low = reinterpret_cast<uintptr_t>(data);
    all_.push_back({name, low, low + bytes, writable});
    first_ = all_.data(), count_ = all_.size();
  }
  CUDASIM_UNSEEN void forget() { all_.clear(), count_ = 0, recent_[0] = recent_[1] = 0; }
  CUDASIM_UNSEEN size_t count() const { return count_; }
  CUDASIM_UNSEEN Operand& operator[](size_t i) { return first_[i]; }

  CUDASIM_UNSEEN bool near(uintptr_t address, size_t bytes) const {
    for (size_t i = 0; i < count_; ++i) {
      if (address + bytes >= first_[i].low && address < first_[i].high + bytes) return true;
    }
    return false;
  }

  // The operand that holds all these bytes and may be accessed so, or null. Operands may overlap: x and out in place.
  CUDASIM_UNSEEN CUDASIM_ALWAYS_INLINE Operand* find(uintptr_t address, size_t bytes, bool write) {
    for (size_t i = 0, k = recent_[write]; i < count_; ++i, k = k + 1 < count_ ? k + 1 : 0) {
      Operand& o = first_[k];
      if (address >= o.low && address + bytes <= o.high && (o.writable || !write)) {
        recent_[write] = k;
        return &o;
      }
    }
    return nullptr;
  }

 private:
  std::vector<Operand> all_;
  Operand* first_ = nullptr;  // of all_, which is instrumented code
  size_t count_ = 0, recent_[2] = {};
};

// Those that this OS thread has registered for the launches that it makes.
inline thread_local Operands operands_of_this_thread;

}  // namespace cudasim
