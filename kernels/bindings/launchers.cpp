// The table of launchers, and the C functions through which Python fills it.
#include "launchers.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace qwen {
namespace {

struct Table {
  std::mutex lock;
  std::map<std::pair<std::string, std::string>, void*> launchers;         // (backend, operator)
  std::map<std::string, std::string> missing;                             // backend → why it has no launchers
  std::map<std::string, std::pair<AddOperand, ForgetOperands>> checkers;  // operator → of its simulator library
};

Table& table() {
  static Table* const instance = new Table;  // never destroyed: operators may run while the process ends
  return *instance;
}

}  // namespace

void* find_launcher(Backend backend, const char* op) {
  const char* name = backend == Backend::kCuda ? "cuda" : "sim";
  Table& t = table();
  const std::lock_guard<std::mutex> guard(t.lock);
  const auto found = t.launchers.find({name, op});
  if (found != t.launchers.end() && found->second != nullptr) return found->second;
  const auto why = t.missing.find(name);
  TORCH_CHECK(why == t.missing.end(), op, ": ", why->second);
  TORCH_CHECK(false, op, ": no kernel is loaded for the backend ", name, "; import qwen_cuda.operators loads them.");
}

KnownOperands::KnownOperands(Backend backend, const char* op) {
  if (backend != Backend::kSim) return;
  Table& t = table();
  const std::lock_guard<std::mutex> guard(t.lock);
  const auto found = t.checkers.find(op);
  if (found != t.checkers.end()) std::tie(add_, forget_) = found->second;
}

KnownOperands::~KnownOperands() {
  if (forget_ != nullptr) forget_();
}

void KnownOperands::add(const char* name, const void* data, std::size_t bytes, bool writable) const {
  if (add_ != nullptr) add_(name, data, bytes, writable ? 1 : 0);
}

}  // namespace qwen

// Points `op` of "cuda" or "sim" at a launcher; nullptr removes it.
QWEN_EXPORT void qwen_set_launcher(const char* backend, const char* op, void* launcher) {
  qwen::Table& t = qwen::table();
  const std::lock_guard<std::mutex> guard(t.lock);
  t.launchers[{backend, op}] = launcher;
}

// What a call raises while the backend has no launcher for its operator; nullptr for the general sentence.
QWEN_EXPORT void qwen_set_missing(const char* backend, const char* sentence) {
  qwen::Table& t = qwen::table();
  const std::lock_guard<std::mutex> guard(t.lock);
  if (sentence == nullptr) {
    t.missing.erase(backend);
  } else {
    t.missing[backend] = sentence;
  }
}

// The functions of a checked simulator library that learn the operands of a call of `op`; nullptr for none.
QWEN_EXPORT void qwen_set_simulator_hooks(const char* op, qwen::AddOperand add, qwen::ForgetOperands forget) {
  qwen::Table& t = qwen::table();
  const std::lock_guard<std::mutex> guard(t.lock);
  t.checkers[op] = {add, forget};
}
