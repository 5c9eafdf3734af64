// AsyncCopies of async_copy.cuh. Bytes come as late as they may: when a thread waits for them. Who reads them before
// finds what was there.
#pragma once

#include <deque>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudasim/language.h"

struct AsyncCopies {
  template <int kBytes>
  void ask(void* to, const void* from, bool there) {
    using Word = std::conditional_t<kBytes == 16, uint4, unsigned>;
    coming.push_back([=] { *static_cast<Word*>(to) = there ? *static_cast<const Word*>(from) : Word{}; });
  }
  void close_group() {
    groups.push_back(std::move(coming));
    coming.clear();
  }
  template <int kNewest>
  void wait() {
    for (; groups.size() > size_t(kNewest); groups.pop_front()) {
      for (const auto& copy : groups.front()) copy();
    }
  }

 private:
  std::vector<std::function<void()>> coming;
  std::deque<std::vector<std::function<void()>>> groups;
};

inline bool copies_are_async() {
  return true;
}
