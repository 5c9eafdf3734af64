// __syncthreads, __syncwarp and the warp functions.
#pragma once

#include <cstring>
#include <type_traits>

#include "cudasim/arithmetic.h"
#include "cudasim/number_types.h"
#include "cudasim/running_block.h"

namespace cudasim {

// ---- shuffles
template <class T>
constexpr bool kIsShuffled =
    (std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8)) || std::is_same<T, __half>::value ||
    std::is_same<T, __half2>::value || std::is_same<T, __nv_bfloat16>::value || std::is_same<T, __nv_bfloat162>::value;

template <class T>
struct Shuffle {
  T in, out;
  int source;  // lane
};

template <class T>
void shuffle_lanes(void** lanes, unsigned mask) {
  for (unsigned m = mask; m; m &= m - 1) {
    auto* me = static_cast<Shuffle<T>*>(lanes[__builtin_ctz(m)]);
    if (mask >> me->source & 1) {
      me->out = static_cast<Shuffle<T>*>(lanes[me->source])->in;
    } else {  // that lane takes no part: what comes is undefined, so poison (NaN)
      std::memset(static_cast<void*>(&me->out), 0xff, sizeof(T));
    }
  }
}

template <class T>
T shuffle(const Place& at, unsigned mask, T value, int source) {
  static_assert(kIsShuffled<T>,
                "a shuffle moves an int, long, float or double, a half or bfloat16, or a pair of those two; "
                "convert smaller integers, and move larger values in parts");
  Shuffle<T> s{value, value, source};
  current->warp_function(at, mask, shuffle_lanes<T>, &s);
  return s.out;
}

inline void check_width(const Place& at, int width) {
  if (width < 1 || width > 32 || (width & (width - 1))) current->stop_at_width(at, width);
}

// ---- votes, reductions, matches: every lane brings a value, and each gets what is computed from all values
template <class In, class Out>
struct Brought {
  In in;
  Out out;
};

template <class F, class In, class Out>
void gather_lanes(void** lanes, unsigned mask) {
  In in[32] = {};
  for (unsigned m = mask; m; m &= m - 1)
    in[__builtin_ctz(m)] = static_cast<Brought<In, Out>*>(lanes[__builtin_ctz(m)])->in;
  for (unsigned m = mask; m; m &= m - 1) {
    const int lane = __builtin_ctz(m);
    static_cast<Brought<In, Out>*>(lanes[lane])->out = F::compute(in, mask, lane);
  }
}

template <class F, class Out, class In>
Out gather(const Place& at, unsigned mask, In value) {
  Brought<In, Out> b{value, {}};
  current->warp_function(at, mask, gather_lanes<F, In, Out>, &b);
  return b.out;
}

struct MatchAny {  // the lanes whose value is the same as this lane's
  template <class T>
  static unsigned compute(const T (&in)[32], unsigned mask, int lane) {
    unsigned same = 0;
    for (unsigned m = mask; m; m &= m - 1) {
      if (std::memcmp(&in[__builtin_ctz(m)], &in[lane], sizeof(T)) == 0) same |= m & -m;
    }
    return same;
  }
};

struct MatchAll {  // all lanes if they have the same value, else none
  template <class T>
  static unsigned compute(const T (&in)[32], unsigned mask, int lane) {
    return MatchAny::compute(in, mask, lane) == mask ? mask : 0;
  }
};

struct Ballot {
  static unsigned compute(const bool (&in)[32], unsigned mask, int) {
    unsigned votes = 0;
    for (unsigned m = mask; m; m &= m - 1) votes |= in[__builtin_ctz(m)] ? m & -m : 0;
    return votes;
  }
};

template <class Op>
struct Reduce {
  template <class T>
  static T compute(const T (&in)[32], unsigned mask, int) {
    T total = in[__builtin_ctz(mask)];
    for (unsigned m = mask & (mask - 1); m; m &= m - 1) total = Op::of(total, in[__builtin_ctz(m)]);
    return total;
  }
};

inline unsigned ballot(const Place& at, unsigned mask, bool vote) {
  return gather<Ballot, unsigned>(at, mask, vote);
}

}  // namespace cudasim

inline void __syncthreads(CUDASIM_HERE) {
  cudasim::current->barrier(CUDASIM_PLACE("__syncthreads"));
}
inline int __syncthreads_count(int predicate, CUDASIM_HERE) {
  return cudasim::current->barrier(CUDASIM_PLACE("__syncthreads_count"), predicate).count;
}
inline int __syncthreads_and(int predicate, CUDASIM_HERE) {
  return cudasim::current->barrier(CUDASIM_PLACE("__syncthreads_and"), predicate).all;
}
inline int __syncthreads_or(int predicate, CUDASIM_HERE) {
  return cudasim::current->barrier(CUDASIM_PLACE("__syncthreads_or"), predicate).count != 0;
}
inline void __syncwarp(unsigned mask = ~0u, CUDASIM_HERE) {
  cudasim::current->warp_function(CUDASIM_PLACE("__syncwarp"), mask, nullptr, nullptr);
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDASIM_HERE) {
  const cudasim::Place at = CUDASIM_PLACE("__shfl_sync");
  cudasim::check_width(at, width);
  return cudasim::shuffle(at, mask, value, (cudasim::current->lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDASIM_HERE) {
  const cudasim::Place at = CUDASIM_PLACE("__shfl_xor_sync");
  cudasim::check_width(at, width);
  const int lane = cudasim::current->lane(), source = (lane ^ bits) & 31;
  return cudasim::shuffle(at, mask, value, source < (lane & ~(width - 1)) + width ? source : lane);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_HERE) {
  const cudasim::Place at = CUDASIM_PLACE("__shfl_down_sync");
  cudasim::check_width(at, width);
  const unsigned lane = unsigned(cudasim::current->lane()), in_group = lane & unsigned(width - 1);
  return cudasim::shuffle(at, mask, value, int(delta < unsigned(width) - in_group ? lane + delta : lane));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_HERE) {
  const cudasim::Place at = CUDASIM_PLACE("__shfl_up_sync");
  cudasim::check_width(at, width);
  const unsigned lane = unsigned(cudasim::current->lane()), in_group = lane & unsigned(width - 1);
  return cudasim::shuffle(at, mask, value, int(delta <= in_group ? lane - delta : lane));
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_HERE) {
  return cudasim::ballot(CUDASIM_PLACE("__ballot_sync"), mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate, CUDASIM_HERE) {
  return cudasim::ballot(CUDASIM_PLACE("__any_sync"), mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDASIM_HERE) {
  return cudasim::ballot(CUDASIM_PLACE("__all_sync"), mask, predicate == 0) == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, CUDASIM_HERE) {
  return cudasim::gather<cudasim::MatchAny, unsigned>(CUDASIM_PLACE("__match_any_sync"), mask, value);
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* all, CUDASIM_HERE) {
  const unsigned same = cudasim::gather<cudasim::MatchAll, unsigned>(CUDASIM_PLACE("__match_all_sync"), mask, value);
  *all = same != 0;
  return same;
}
template <class T = void>
unsigned __activemask() {
  static_assert(
      !std::is_void<T>::value,
      "__activemask() says which lanes happen to run together, which CUDA leaves open: give the mask that the "
      "algorithm needs, or compute it with __ballot_sync");
  return 0;
}

#define CUDASIM_REDUCE(name, Op, T)                                                             \
  inline T name(unsigned mask, T value, CUDASIM_HERE) {                                         \
    return cudasim::gather<cudasim::Reduce<cudasim::Op>, T>(CUDASIM_PLACE(#name), mask, value); \
  }
CUDASIM_REDUCE(__reduce_add_sync, Add, unsigned)
CUDASIM_REDUCE(__reduce_add_sync, Add, int)
CUDASIM_REDUCE(__reduce_min_sync, Min, unsigned)
CUDASIM_REDUCE(__reduce_min_sync, Min, int)
CUDASIM_REDUCE(__reduce_max_sync, Max, unsigned)
CUDASIM_REDUCE(__reduce_max_sync, Max, int)
CUDASIM_REDUCE(__reduce_and_sync, And, unsigned)
CUDASIM_REDUCE(__reduce_or_sync, Or, unsigned)
CUDASIM_REDUCE(__reduce_xor_sync, Xor, unsigned)
#undef CUDASIM_REDUCE
