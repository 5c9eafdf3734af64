// A helper in a header of its own, and not inlined: reports name the kernel's line that calls it.
#pragma once

#include "cuda_platform.cuh"

__device__ __attribute__((noinline)) static void store_at(float* data, int index, float value) {
  data[index] = value;  // @helper
}
