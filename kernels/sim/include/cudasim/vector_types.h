// CUDA's vector types: plain structures with CUDA's sizes and alignments, and their make_ functions.
#pragma once

#include "cudasim/build.h"

// The checked variant gives these types copy operations, so that one 16-byte load is seen as one access.
#if CUDASIM_CHECKED
#include "cudasim/vector_copy.h"
#else
#define CUDASIM_VECTOR_COPY_2(Name, T)
#define CUDASIM_VECTOR_COPY_4(Name, T)
#endif

#define CUDASIM_VECTOR_1(T, Name, Align) \
  struct alignas(Align) Name##1 {        \
    T x;                                 \
  };                                     \
  inline Name##1 make_##Name##1(T x) {   \
    Name##1 v;                           \
    v.x = x;                             \
    return v;                            \
  }
#define CUDASIM_VECTOR_2(T, Name, Align)    \
  struct alignas(Align) Name##2 {           \
    T x, y;                                 \
    CUDASIM_VECTOR_COPY_2(Name##2, T)       \
  };                                        \
  inline Name##2 make_##Name##2(T x, T y) { \
    Name##2 v;                              \
    v.x = x, v.y = y;                       \
    return v;                               \
  }
#define CUDASIM_VECTOR_3(T, Name)                \
  struct Name##3 {                               \
    T x, y, z;                                   \
  };                                             \
  inline Name##3 make_##Name##3(T x, T y, T z) { \
    Name##3 v;                                   \
    v.x = x, v.y = y, v.z = z;                   \
    return v;                                    \
  }
#define CUDASIM_VECTOR_4(T, Name, Align)              \
  struct alignas(Align) Name##4 {                     \
    T x, y, z, w;                                     \
    CUDASIM_VECTOR_COPY_4(Name##4, T)                 \
  };                                                  \
  inline Name##4 make_##Name##4(T x, T y, T z, T w) { \
    Name##4 v;                                        \
    v.x = x, v.y = y, v.z = z, v.w = w;               \
    return v;                                         \
  }
#define CUDASIM_VECTORS(T, Name)           \
  CUDASIM_VECTOR_1(T, Name, sizeof(T))     \
  CUDASIM_VECTOR_2(T, Name, 2 * sizeof(T)) \
  CUDASIM_VECTOR_3(T, Name)                \
  CUDASIM_VECTOR_4(T, Name, 4 * sizeof(T))

CUDASIM_VECTORS(signed char, char)
CUDASIM_VECTORS(unsigned char, uchar)
CUDASIM_VECTORS(short, short)
CUDASIM_VECTORS(unsigned short, ushort)
CUDASIM_VECTORS(int, int)
CUDASIM_VECTORS(unsigned, uint)
CUDASIM_VECTORS(float, float)
// Of the 8-byte types only the pairs are as wide as the widest access, and aligned alike in all versions of CUDA.
CUDASIM_VECTOR_1(long long, longlong, 8)
CUDASIM_VECTOR_2(long long, longlong, 16)
CUDASIM_VECTOR_1(unsigned long long, ulonglong, 8)
CUDASIM_VECTOR_2(unsigned long long, ulonglong, 16)
CUDASIM_VECTOR_1(double, double, 8)
CUDASIM_VECTOR_2(double, double, 16)
