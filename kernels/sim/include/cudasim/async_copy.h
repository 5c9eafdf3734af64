// AsyncCopies of async_copy.cuh. Bytes come as late as they may: when a thread waits for them, or asks for more than
// can be on their way. Who reads them before finds what was there.
#pragma once

#include "cudasim/language.h"

struct AsyncCopies {
  template <int kBytes = 16>
  void ask(void* to, const void* from, bool there) {
    while (asked == kMost) arrive();
    coming[asked++] = {to, from, there, kBytes};
  }
  void close_group() {
    if (groups == kMostGroups) arrive();
    ends[groups++] = asked;
  }
  template <int kNewest>
  void wait() {
    while (groups > kNewest) arrive();
  }

 private:
  static constexpr int kMost = 64, kMostGroups = 8;
  struct Copy {
    void* to;
    const void* from;
    bool there;
    int bytes;
  };
  Copy coming[kMost];
  int ends[kMostGroups];  // of groups: how many copies were asked for up to each
  int asked = 0, groups = 0;

  static void arrived(const Copy& copy) {
    if (copy.bytes == 4) {
      *static_cast<uint32_t*>(copy.to) = copy.there ? *static_cast<const uint32_t*>(copy.from) : 0;
    } else {
      *static_cast<uint4*>(copy.to) = copy.there ? *static_cast<const uint4*>(copy.from) : uint4{};
    }
  }
  // The oldest group, or what was asked for where there is none.
  void arrive() {
    const int count = groups > 0 ? ends[0] : asked;
    for (int i = 0; i < count; ++i) arrived(coming[i]);
    for (int i = count; i < asked; ++i) coming[i - count] = coming[i];
    asked -= count;
    for (int i = 1; i < groups; ++i) ends[i - 1] = ends[i] - count;
    groups = groups > 0 ? groups - 1 : 0;
  }
};

inline bool copies_are_async() {
  return true;
}
