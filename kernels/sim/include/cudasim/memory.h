// Loads and stores that carry a hint for the caches.
#pragma once

#include "cudasim/atomics.h"

#define CUDASIM_LOAD(name)    \
  template <class T>          \
  inline T name(const T* p) { \
    return *p;                \
  }
#define CUDASIM_STORE(name)                                       \
  template <class T>                                              \
  inline void name(T* p, typename cudasim::Same<T>::type value) { \
    *p = value;                                                   \
  }
CUDASIM_LOAD(__ldg)
CUDASIM_LOAD(__ldca)
CUDASIM_LOAD(__ldcg)
CUDASIM_LOAD(__ldcs)
CUDASIM_LOAD(__ldlu)
CUDASIM_LOAD(__ldcv)
CUDASIM_STORE(__stwb)
CUDASIM_STORE(__stcg)
CUDASIM_STORE(__stcs)
CUDASIM_STORE(__stwt)
#undef CUDASIM_LOAD
#undef CUDASIM_STORE
