// Copies of CUDA's vector types in a checked build: each is seen as one access of 8 or 16 bytes, as on the GPU. Left to
// itself a compiler may split the copy of a float4 into four scalar ones.
#pragma once

#include <cstddef>

namespace cudasim {
void vector_copy(void* to, const void* from, size_t bytes);  // runtime/cudasim/tsan_callbacks.h
}

// The constructor takes the place of aggregate initialisation: float4{a, b, c, d}, float4{a}.
#define CUDASIM_VECTOR_COPY_2(Name, T) \
  Name() = default;                    \
  Name(T a, T b = {}) : x(a), y(b) {}  \
  CUDASIM_VECTOR_COPY(Name)
#define CUDASIM_VECTOR_COPY_4(Name, T)                                \
  Name() = default;                                                   \
  Name(T a, T b = {}, T c = {}, T d = {}) : x(a), y(b), z(c), w(d) {} \
  CUDASIM_VECTOR_COPY(Name)
#define CUDASIM_VECTOR_COPY(Name)                                    \
  __attribute__((always_inline)) Name(const Name& from) {            \
    cudasim::vector_copy(this, &from, sizeof(Name));                 \
  }                                                                  \
  __attribute__((always_inline)) Name& operator=(const Name& from) { \
    cudasim::vector_copy(this, &from, sizeof(Name));                 \
    return *this;                                                    \
  }
