// Atomic operations of instrumented code (the __atomic builtins, std::atomic), which -fsanitize=thread turns into
// calls. All are done as strongly as can be: a CPU's weak orders are not what a kernel is checked for.
#pragma once

#include "cudasim/tsan_callbacks.h"

#define CUDASIM_SEEN(kind) \
  cudasim::on_access(p, sizeof(*p), cudasim::Kind::kind, cudasim::Form::kScalar, __builtin_return_address(0))

#define CUDASIM_FETCH(bits, T, name, builtin)                                \
  CUDASIM_CALLBACK T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { \
    CUDASIM_SEEN(kAtomic);                                                   \
    return builtin(p, v, __ATOMIC_SEQ_CST);                                  \
  }
#define CUDASIM_EXCHANGE(bits, T, strength, weak)                                                                     \
  CUDASIM_CALLBACK int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* expected, T v, int, int) { \
    CUDASIM_SEEN(kAtomic);                                                                                            \
    return __atomic_compare_exchange_n(p, expected, v, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }
#define CUDASIM_ATOMICS(bits, T)                                                                            \
  CUDASIM_CALLBACK T __tsan_atomic##bits##_load(const volatile T* p, int) {                                 \
    CUDASIM_SEEN(kAtomic);                                                                                  \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                         \
  CUDASIM_CALLBACK void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                              \
    CUDASIM_SEEN(kAtomic);                                                                                  \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                               \
  }                                                                                                         \
  CUDASIM_FETCH(bits, T, exchange, __atomic_exchange_n)                                                     \
  CUDASIM_FETCH(bits, T, fetch_add, __atomic_fetch_add)                                                     \
  CUDASIM_FETCH(bits, T, fetch_sub, __atomic_fetch_sub)                                                     \
  CUDASIM_FETCH(bits, T, fetch_and, __atomic_fetch_and)                                                     \
  CUDASIM_FETCH(bits, T, fetch_or, __atomic_fetch_or)                                                       \
  CUDASIM_FETCH(bits, T, fetch_xor, __atomic_fetch_xor)                                                     \
  CUDASIM_FETCH(bits, T, fetch_nand, __atomic_fetch_nand)                                                   \
  CUDASIM_EXCHANGE(bits, T, strong, false)                                                                  \
  CUDASIM_EXCHANGE(bits, T, weak, true)                                                                     \
  CUDASIM_CALLBACK T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T v, int, int) { \
    CUDASIM_SEEN(kAtomic);                                                                                  \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
    return expected;                                                                                        \
  }
CUDASIM_ATOMICS(8, unsigned char)
CUDASIM_ATOMICS(16, unsigned short)
CUDASIM_ATOMICS(32, unsigned)
CUDASIM_ATOMICS(64, unsigned long)
#undef CUDASIM_ATOMICS
#undef CUDASIM_FETCH
#undef CUDASIM_EXCHANGE
#undef CUDASIM_SEEN

CUDASIM_CALLBACK void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
CUDASIM_CALLBACK void __tsan_atomic_signal_fence(int) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
