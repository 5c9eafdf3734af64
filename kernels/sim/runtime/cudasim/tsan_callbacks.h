// The functions that -fsanitize=thread makes the compiler call, as ThreadSanitizer's runtime would define them. They
// are hidden: each library calls its own.
#pragma once

#include "cudasim/access.h"

#define CUDASIM_CALLER __builtin_return_address(0)

// ---- loads and stores
#define CUDASIM_ACCESS(name, bytes, form)                                                     \
  CUDASIM_CALLBACK void __tsan_##name##read##bytes(void* p) {                                 \
    cudasim::on_access(p, bytes, cudasim::Kind::kRead, cudasim::Form::form, CUDASIM_CALLER);  \
  }                                                                                           \
  CUDASIM_CALLBACK void __tsan_##name##write##bytes(void* p) {                                \
    cudasim::on_access(p, bytes, cudasim::Kind::kWrite, cudasim::Form::form, CUDASIM_CALLER); \
  }                                                                                           \
  CUDASIM_CALLBACK void __tsan_##name##read_write##bytes(void* p) {                           \
    cudasim::on_access(p, bytes, cudasim::Kind::kRead, cudasim::Form::form, CUDASIM_CALLER);  \
    cudasim::on_access(p, bytes, cudasim::Kind::kWrite, cudasim::Form::form, CUDASIM_CALLER); \
  }
#define CUDASIM_ACCESSES(bytes)    \
  CUDASIM_ACCESS(, bytes, kScalar) \
  CUDASIM_ACCESS(unaligned_, bytes, kPieces)
CUDASIM_ACCESSES(1)
CUDASIM_ACCESSES(2)
CUDASIM_ACCESSES(4)
CUDASIM_ACCESSES(8)
CUDASIM_ACCESSES(16)
#undef CUDASIM_ACCESSES
#undef CUDASIM_ACCESS

namespace cudasim {

// Larger pieces, 16 bytes at a time, as the widest instruction of a GPU moves.
CUDASIM_ALWAYS_INLINE void on_range(const volatile void* p, size_t bytes, Kind kind, void* pc) {
  const auto* byte = static_cast<const volatile char*>(p);
  for (size_t done = 0; done < bytes; done += 16) {
    on_access(byte + done, bytes - done < 16 ? bytes - done : 16, kind, Form::kPieces, pc);
  }
}

// Not memcpy and memset: those are the functions below.
CUDASIM_ALWAYS_INLINE void copy_bytes(char* to, const char* from, size_t bytes, bool backwards) {
  if (backwards) {
    while (bytes--) {
      to[bytes] = from[bytes];
      asm volatile("" ::: "memory");  // or the compiler would see a memmove in this loop
    }
    return;
  }
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) {
    uint64_t word;
    __builtin_memcpy(&word, from, 8);
    __builtin_memcpy(to, &word, 8);
    asm volatile("" ::: "memory");
  }
  for (size_t i = 0; i < bytes; ++i) {
    to[i] = from[i];
    asm volatile("" ::: "memory");
  }
}

__attribute__((noinline)) void vector_copy(void* to, const void* from, size_t bytes) {
  on_access(from, bytes, Kind::kRead, Form::kVector, CUDASIM_CALLER);
  on_access(to, bytes, Kind::kWrite, Form::kVector, CUDASIM_CALLER);
  switch (bytes) {  // inlined
    case 2:
      __builtin_memcpy(to, from, 2);
      break;
    case 4:
      __builtin_memcpy(to, from, 4);
      break;
    case 8:
      __builtin_memcpy(to, from, 8);
      break;
    case 16:
      __builtin_memcpy(to, from, 16);
      break;
    default:
      copy_bytes(static_cast<char*>(to), static_cast<const char*>(from), bytes, false);
  }
}

}  // namespace cudasim

CUDASIM_CALLBACK void __tsan_read_range(void* p, size_t bytes) {
  cudasim::on_range(p, bytes, cudasim::Kind::kRead, CUDASIM_CALLER);
}
CUDASIM_CALLBACK void __tsan_write_range(void* p, size_t bytes) {
  cudasim::on_range(p, bytes, cudasim::Kind::kWrite, CUDASIM_CALLER);
}

// ---- functions that are not inlined: where a thread has come from
CUDASIM_CALLBACK void __tsan_func_entry(void* caller) {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const cudasim::RunningThread& r = cudasim::running_thread;
  if (frame - r.stack < r.stack_bytes) r.calls->enter(reinterpret_cast<uintptr_t>(caller), frame);
}
CUDASIM_CALLBACK void __tsan_func_exit() {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const cudasim::RunningThread& r = cudasim::running_thread;
  if (frame - r.stack < r.stack_bytes) r.calls->leave(frame);
}
CUDASIM_CALLBACK void __tsan_init() {}
CUDASIM_CALLBACK void __tsan_vptr_update(void**, void*) {}
CUDASIM_CALLBACK void __tsan_vptr_read(void**) {}

// ---- memcpy and its kin, which compilers call in place of a copy: under their own names, but in this library alone
#define CUDASIM_STRING_(x) #x
#define CUDASIM_STRING(x) CUDASIM_STRING_(x)
#define CUDASIM_NAMED(name) __asm__(CUDASIM_STRING(__USER_LABEL_PREFIX__) name)
#define CUDASIM_COPY(function, name, backwards)                                                                    \
  extern "C" __attribute__((visibility("hidden"))) void* function(void*, const void*, size_t) CUDASIM_NAMED(name); \
  CUDASIM_CALLBACK void* function(void* to, const void* from, size_t bytes) {                                      \
    cudasim::on_range(from, bytes, cudasim::Kind::kRead, CUDASIM_CALLER);                                          \
    cudasim::on_range(to, bytes, cudasim::Kind::kWrite, CUDASIM_CALLER);                                           \
    cudasim::copy_bytes(static_cast<char*>(to), static_cast<const char*>(from), bytes, backwards);                 \
    return to;                                                                                                     \
  }
#define CUDASIM_SET(function, name)                                                                        \
  extern "C" __attribute__((visibility("hidden"))) void* function(void*, int, size_t) CUDASIM_NAMED(name); \
  CUDASIM_CALLBACK void* function(void* to, int value, size_t bytes) {                                     \
    cudasim::on_range(to, bytes, cudasim::Kind::kWrite, CUDASIM_CALLER);                                   \
    cudasim::fill_bytes(static_cast<char*>(to), value, bytes);                                             \
    return to;                                                                                             \
  }
CUDASIM_COPY(cudasim_memcpy, "memcpy", false)
CUDASIM_COPY(cudasim_memmove, "memmove", to > from)
CUDASIM_SET(cudasim_memset, "memset")
CUDASIM_COPY(cudasim_tsan_memcpy, "__tsan_memcpy", false)
CUDASIM_COPY(cudasim_tsan_memmove, "__tsan_memmove", to > from)
CUDASIM_SET(cudasim_tsan_memset, "__tsan_memset")
#undef CUDASIM_COPY
#undef CUDASIM_SET

#include "cudasim/tsan_atomics.h"
#undef CUDASIM_CALLER
