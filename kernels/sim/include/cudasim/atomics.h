// Atomic functions, relaxed as in CUDA, and fences.
#pragma once

#include <atomic>
#include <cstddef>

#include "cudasim/arithmetic.h"
#include "cudasim/running_block.h"

namespace cudasim {

#if CUDASIM_CHECKED
void checker_atomic(const void* address, size_t bytes, const void* return_address);  // the runtime's
#else
inline void checker_atomic(const void*, size_t, const void*) {}
#endif

template <class T>
struct Same {  // a parameter of this type follows the others: atomicAdd(&an_unsigned, 1)
  using type = T;
};

// *p = Op(*p, v) as one step. Returns the old value.
template <class Op, class T>
CUDASIM_ATOMIC T atomic_update(T* p, T v) {
  T seen, wanted;
  __atomic_load(p, &seen, __ATOMIC_RELAXED);
  do wanted = Op::of(seen, v);
  while (!__atomic_compare_exchange(p, &seen, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return seen;
}

}  // namespace cudasim

#define CUDASIM_ATOMIC_FUNCTION(name, Op)                               \
  template <class T>                                                    \
  CUDASIM_ATOMIC T name(T* p, typename cudasim::Same<T>::type v) {      \
    cudasim::checker_atomic(p, sizeof(T), __builtin_return_address(0)); \
    return cudasim::atomic_update<cudasim::Op>(p, v);                   \
  }
// _block and _system narrow or widen who sees the step as one; here everybody does.
#define CUDASIM_ATOMIC_FUNCTIONS(name, Op)  \
  CUDASIM_ATOMIC_FUNCTION(name, Op)         \
  CUDASIM_ATOMIC_FUNCTION(name##_block, Op) \
  CUDASIM_ATOMIC_FUNCTION(name##_system, Op)
CUDASIM_ATOMIC_FUNCTIONS(atomicAdd, Add)
CUDASIM_ATOMIC_FUNCTIONS(atomicSub, Subtract)
CUDASIM_ATOMIC_FUNCTIONS(atomicMin, Min)
CUDASIM_ATOMIC_FUNCTIONS(atomicMax, Max)
CUDASIM_ATOMIC_FUNCTIONS(atomicAnd, And)
CUDASIM_ATOMIC_FUNCTIONS(atomicOr, Or)
CUDASIM_ATOMIC_FUNCTIONS(atomicXor, Xor)
CUDASIM_ATOMIC_FUNCTIONS(atomicExch, Exchange)
CUDASIM_ATOMIC_FUNCTIONS(atomicInc, Increment)
CUDASIM_ATOMIC_FUNCTIONS(atomicDec, Decrement)
#undef CUDASIM_ATOMIC_FUNCTIONS
#undef CUDASIM_ATOMIC_FUNCTION

#define CUDASIM_ATOMIC_CAS(name)                                                                             \
  template <class T>                                                                                         \
  CUDASIM_ATOMIC T name(T* p, typename cudasim::Same<T>::type expected, typename cudasim::Same<T>::type v) { \
    cudasim::checker_atomic(p, sizeof(T), __builtin_return_address(0));                                      \
    __atomic_compare_exchange(p, &expected, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                  \
    return expected;                                                                                         \
  }
CUDASIM_ATOMIC_CAS(atomicCAS)
CUDASIM_ATOMIC_CAS(atomicCAS_block)
CUDASIM_ATOMIC_CAS(atomicCAS_system)
#undef CUDASIM_ATOMIC_CAS

inline void __threadfence() {
#if CUDASIM_TSAN  // which knows atomic variables, but no fences
  static std::atomic<int> everybody{0};
  everybody.fetch_add(1);
#elif !CUDASIM_CHECKED  // where one OS thread runs all blocks
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
inline void __threadfence_block() {
  __threadfence();
}
inline void __threadfence_system() {
  __threadfence();
}

inline void __trap() {
  cudasim::current->stop_at_trap();
}

// A loop that waits for another thread should call it: the others then go on at once.
inline void __nanosleep(unsigned, CUDASIM_HERE) {
  cudasim::current->yield(CUDASIM_PLACE("__nanosleep"));
}
