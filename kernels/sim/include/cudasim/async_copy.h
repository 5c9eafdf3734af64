// AsyncCopies of async_copy.cuh. Bytes come as late as they may: when a thread waits for them, or asks for more than
// can be on their way. Who reads them before finds what was there.
#pragma once

#include "cudasim/language.h"

struct AsyncCopies {
  void ask(void* to, const void* from, bool there) {
    while (asked == kMost) arrive();
    coming[asked++] = {static_cast<uint4*>(to), static_cast<const uint4*>(from), there};
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
    uint4* to;
    const uint4* from;
    bool there;
  };
  Copy coming[kMost];
  int ends[kMostGroups];  // of groups: how many copies were asked for up to each
  int asked = 0, groups = 0;

  // The oldest group, or what was asked for where there is none.
  void arrive() {
    const int count = groups > 0 ? ends[0] : asked;
    for (int i = 0; i < count; ++i) *coming[i].to = coming[i].there ? *coming[i].from : uint4{};
    for (int i = count; i < asked; ++i) coming[i - count] = coming[i];
    asked -= count;
    for (int i = 1; i < groups; ++i) ends[i - 1] = ends[i] - count;
    groups = groups > 0 ? groups - 1 : 0;
  }
};

inline bool copies_are_async() {
  return true;
}
