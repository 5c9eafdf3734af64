// tensor_cores.cuh: the product of two small matrices that the lanes of a warp hold together, by one instruction.
//
//   d (16 x 8, fp32) += a (16 x 16, T) * b (16 x 8, T)        T: fp16 or bf16
//
// Lane 4 g + t holds of a the rows g and g + 8, of b the column g, of d the rows g and g + 8. In PTX: mma.m16n8k16.
//
//   a[0] row g,     a[1] row g + 8: columns 2 t, 2 t + 1       b[0] rows 2 t, 2 t + 1
//   a[2] row g,     a[3] row g + 8: columns 2 t + 8, 2 t + 9   b[1] rows 2 t + 8, 2 t + 9
//   d[0], d[1] row g; d[2], d[3] row g + 8: columns 2 t, 2 t + 1
//
// Products are exact and are added in fp32, in an order that is the same each time but not ours to choose.
#pragma once

#include "number_types.cuh"
#include "warp_reduce.cuh"

// Turing has tiles of halves alone. This is the product of bf16 there, word after word: right, and slow.
__device__ __forceinline__ void mma_of_bf16_by_shuffles(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 1  // unrolled it takes all registers
    for (int from = 0; from < 4; ++from) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t x = __shfl_sync(kAllLanes, a[2 * half + i / 2], 4 * g + from);
        const uint32_t y = __shfl_sync(kAllLanes, b[half], 4 * (2 * t + i % 2) + from);
        d[i] = fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), d[i]);
        d[i] = fmaf(__uint_as_float(x & ~0xffffu), __uint_as_float(y & ~0xffffu), d[i]);
      }
    }
  }
}

#ifdef __CUDACC__

// All lanes of the warp call it, hence volatile: it must not move into a branch. Two numbers share a word, the first in
// the lower half.
// --8<-- [start:mma]
template <class T = __half>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // Turing's instruction takes half of the columns of a
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
  } else {
    mma_of_bf16_by_shuffles(d, a, b);
  }
#endif
}
// --8<-- [end:mma]

#else
#include "cudasim/tensor_cores.h"
#endif
