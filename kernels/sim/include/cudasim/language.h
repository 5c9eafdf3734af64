// CUDA's keywords and built-in variables, as plain C++.
#pragma once

#include "cudasim/build.h"
#include "cudasim/shared_symbols.h"
#include "cudasim/vector_types.h"

// Internal, because AddressSanitizer guards no comdat variable, and the shared arrays of a kernel template would be
// such.
#define __global__ __attribute__((unused)) static
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// The tag becomes a part of the symbol's name, by which the simulator finds the shared variables of a library.
#if CUDASIM_CHECKED
#define __shared__ CUDASIM_CHECKED_SHARED
#elif CUDASIM_ASAN
#define __shared__ static __attribute__((abi_tag(CUDASIM_SHARED_TAG)))
#else
#define __shared__ static thread_local __attribute__((abi_tag(CUDASIM_SHARED_TAG)))
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

using cudaStream_t = struct CUstream_st*;
