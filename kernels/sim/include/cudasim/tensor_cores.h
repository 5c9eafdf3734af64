// mma_m16n8k16 of tensor_cores.cuh: all lanes of a warp bring their parts of two matrices.
#pragma once

#include "cudasim/warp.h"

namespace cudasim {

struct TileProduct {
  const uint32_t* a;
  const uint32_t* b;
  float* d;
};

// The two numbers of a word, each a __half or a __nv_bfloat16.
template <class T>
void unpack_pair(uint32_t word, float& low, float& high) {
  std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162> pair;
  std::memcpy(static_cast<void*>(&pair), &word, sizeof pair);
  low = __low2float(pair), high = __high2float(pair);
}

// Each sum is rounded once: products of 16-bit numbers are exact in double, and so are nearly all of their sums.
template <class T>
void multiply_tiles(void** lanes, unsigned) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<TileProduct*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      const int k = 2 * t + 8 * half;
      unpack_pair<T>(mine.a[2 * half], a[g][k], a[g][k + 1]);
      unpack_pair<T>(mine.a[2 * half + 1], a[g + 8][k], a[g + 8][k + 1]);
      unpack_pair<T>(mine.b[half], b[k][g], b[k + 1][g]);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = *static_cast<TileProduct*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = mine.d[i];
      for (int k = 0; k < 16; ++k) sum += double(a[row][k]) * b[k][column];
      mine.d[i] = float(sum);
    }
  }
}

}  // namespace cudasim

template <class T = __half>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDASIM_HERE) {
  cudasim::TileProduct product{a, b, d};
  cudasim::current->warp_function(CUDASIM_PLACE("mma_m16n8k16"), ~0u, cudasim::multiply_tiles<T>, &product);
}
