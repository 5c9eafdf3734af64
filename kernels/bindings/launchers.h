// launchers.h: which compiled kernel an operator runs. The kernels live in libraries of their own, without PyTorch;
// Python loads them and enters their launchers here, so an operator can be pointed at another library at any time.
#pragma once

#include <cstddef>
#include <string>

#include "operators.h"

namespace qwen {

enum class Backend { kCpu, kCuda, kSim };

// Exported by a checked library of the simulator.
using AddOperand = void (*)(const char* name, const void* data, std::size_t bytes, int writable);
using ForgetOperands = void (*)();

// The launcher of `op` for a backend. Throws c10::Error with a sentence when none is loaded.
void* find_launcher(Backend backend, const char* op);

// Tells a checked build of the simulator which bytes a kernel may touch, for as long as the object lives.
class KnownOperands {
 public:
  KnownOperands(Backend backend, const char* op);
  ~KnownOperands();
  KnownOperands(const KnownOperands&) = delete;
  KnownOperands& operator=(const KnownOperands&) = delete;
  void add(const char* name, const void* data, std::size_t bytes, bool writable) const;

 private:
  AddOperand add_ = nullptr;
  ForgetOperands forget_ = nullptr;
};

}  // namespace qwen
