// The operations of reductions and atomics, as types. Integers wrap around, as they do on a GPU.
#pragma once

#include <type_traits>

namespace cudasim {

#define CUDASIM_OPERATION(Name, of_integers, of_others) \
  struct Name {                                         \
    template <class T>                                  \
    static T of(T a, T b) {                             \
      if constexpr (std::is_integral<T>::value) {       \
        using U = std::make_unsigned_t<T>;              \
        [[maybe_unused]] const U ua = U(a), ub = U(b);  \
        return T(of_integers);                          \
      } else {                                          \
        return of_others;                               \
      }                                                 \
    }                                                   \
  };
CUDASIM_OPERATION(Add, ua + ub, a + b)
CUDASIM_OPERATION(Subtract, ua - ub, a - b)
CUDASIM_OPERATION(Min, b < a ? b : a, b < a ? b : a)
CUDASIM_OPERATION(Max, a < b ? b : a, a < b ? b : a)
CUDASIM_OPERATION(And, ua& ub, a)
CUDASIM_OPERATION(Or, ua | ub, a)
CUDASIM_OPERATION(Xor, ua ^ ub, a)
CUDASIM_OPERATION(Exchange, ub, b)
CUDASIM_OPERATION(Increment, ua >= ub ? 0 : ua + 1, a)
CUDASIM_OPERATION(Decrement, ua == 0 || ua > ub ? ub : ua - 1, a)
#undef CUDASIM_OPERATION

}  // namespace cudasim
