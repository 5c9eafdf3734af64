// The tensors of the current call: what its kernels may read and write in global memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cudasim/linkage.h"

namespace cudasim {

struct Operand {
  std::string name;
  uintptr_t low = 0, high = 0;
  bool writable = false;
  int object = -1, trace = 0;  // its number in that trace
};

class Operands {
 public:
  void add(const char* name, const void* data, size_t bytes, bool writable) {
    const auto low = reinterpret_cast<uintptr_t>(data);
    all_.push_back({name, low, low + bytes, writable});
  }
  void forget() { all_.clear(), recent_[0] = recent_[1] = 0; }
  size_t count() const { return all_.size(); }
  Operand& operator[](size_t i) { return all_[i]; }

  bool near(uintptr_t address, size_t bytes) const {
    for (const Operand& o : all_) {
      if (address + bytes >= o.low && address < o.high + bytes) return true;
    }
    return false;
  }

  // The operand that holds all these bytes and may be accessed so, or null. Operands may overlap: x and out in place.
  CUDASIM_ALWAYS_INLINE Operand* find(uintptr_t address, size_t bytes, bool write) {
    for (size_t i = 0, k = recent_[write]; i < all_.size(); ++i, k = k + 1 < all_.size() ? k + 1 : 0) {
      Operand& o = all_[k];
      if (address >= o.low && address + bytes <= o.high && (o.writable || !write)) {
        recent_[write] = k;
        return &o;
      }
    }
    return nullptr;
  }

 private:
  std::vector<Operand> all_;
  size_t recent_[2] = {};  // of reads and of writes
};

// Those that this OS thread has registered for the launches that it makes.
inline thread_local Operands operands_of_this_thread;

}  // namespace cudasim
