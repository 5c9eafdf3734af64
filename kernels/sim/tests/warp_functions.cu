// Shuffles, votes, reductions, matches and products of tiles.
#include <cmath>

#include "check.h"
#include "cudasim/tensor_cores.h"

namespace {

template <class T>
__global__ void shuffles(T* out, const T* in) {
  const int l = int(threadIdx.x);
  const T v = in[l];
  out[l] = __shfl_sync(kFullMask, v, 3);
  out[32 + l] = __shfl_sync(kFullMask, v, l + 9, 8);
  out[64 + l] = __shfl_xor_sync(kFullMask, v, 5);
  out[96 + l] = __shfl_xor_sync(kFullMask, v, 12, 8);
  out[128 + l] = __shfl_down_sync(kFullMask, v, 4);
  out[160 + l] = __shfl_down_sync(kFullMask, v, 3, 4);
  out[192 + l] = __shfl_up_sync(kFullMask, v, 1, 8);
  out[224 + l] = __shfl_up_sync(kFullMask, v, 30);
}

template <class T>
void expect_shuffles(T (*make)(int), int (*number)(T)) {
  T in[32], out[256];
  for (int l = 0; l < 32; ++l) in[l] = make(l);
  launch(shuffles<T>, dim3(1), dim3(32), 0, nullptr, out, in);
  for (int l = 0; l < 32; ++l) {
    EXPECT(number(out[l]) == 3);
    EXPECT(number(out[32 + l]) == l / 8 * 8 + (l + 9) % 8);
    EXPECT(number(out[64 + l]) == (l ^ 5));
    EXPECT(number(out[96 + l]) ==
           ((l ^ 12) < l / 8 * 8 + 8 ? (l ^ 12) : l));  // a lane of a later group: one's own value
    EXPECT(number(out[128 + l]) == (l + 4 < 32 ? l + 4 : l));
    EXPECT(number(out[160 + l]) == (l % 4 == 0 ? l + 3 : l));
    EXPECT(number(out[192 + l]) == (l % 8 ? l - 1 : l));
    EXPECT(number(out[224 + l]) == (l >= 30 ? l - 30 : l));
  }
}

template <class T>
void expect_shuffles_of_numbers() {
  expect_shuffles<T>([](int l) { return T(l); }, [](T v) { return int(v); });
}

__global__ void sums_of_diverged_halves(int* out) {
  const int l = int(threadIdx.x);
  int v = l;
  if (l < 16) {
    for (int d = 8; d; d >>= 1) v += __shfl_xor_sync(0x0000ffffu, v, d);
  } else {
    v = 1;
    for (int i = 0; i < 7; ++i) v += __shfl_sync(0xffff0000u, v, 16 + i);
  }
  out[l] = v;
}

__global__ void shuffle_after_lanes_returned(int* out) {
  const int l = int(threadIdx.x);
  if (l >= 8) return;  // the full mask still names them
  out[l] = __shfl_xor_sync(kFullMask, l, 1);
}

__global__ void shuffle_from_absent_lane(float* out) {
  const int l = int(threadIdx.x);
  if (l < 16) out[l] = __shfl_sync(0x0000ffffu, float(l), l + 8);
}

__global__ void votes(unsigned* out) {
  const int l = int(threadIdx.x);
  out[l] = __ballot_sync(kFullMask, l % 3 == 0);
  out[32 + l] = unsigned(__any_sync(kFullMask, l == 31)) << 1 | unsigned(__any_sync(kFullMask, l == 32));
  out[64 + l] = unsigned(__all_sync(kFullMask, l < 32)) << 1 | unsigned(__all_sync(kFullMask, l < 31));
  if (l >= 20) out[96 + l] = __ballot_sync(0xfff00000u, l % 2);
}

__global__ void reductions(unsigned* out, int* signed_out) {
  const int l = int(threadIdx.x);
  out[l] = __reduce_add_sync(kFullMask, unsigned(l));
  out[32 + l] = __reduce_and_sync(kFullMask, unsigned(l) | 0x40u);
  out[64 + l] = __reduce_or_sync(kFullMask, 1u << l);
  out[96 + l] = __reduce_xor_sync(kFullMask, unsigned(l));
  signed_out[l] = __reduce_min_sync(kFullMask, 5 - l);
  signed_out[32 + l] = __reduce_max_sync(kFullMask, 5 - l);
}

__global__ void matches(unsigned* out) {
  const int l = int(threadIdx.x);
  int all;
  out[l] = __match_any_sync(kFullMask, l % 4);
  out[32 + l] = __match_all_sync(kFullMask, 2.5, &all);
  out[64 + l] = unsigned(all);
  out[96 + l] = __match_all_sync(kFullMask, l / 31, &all);
  out[128 + l] = unsigned(all);
}

template <class T>
uint32_t pair_of(float low, float high) {
  std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162> pair;
  if constexpr (std::is_same_v<T, __half>) {
    pair = __floats2half2_rn(low, high);
  } else {
    pair = __floats2bfloat162_rn(low, high);
  }
  uint32_t word;
  std::memcpy(&word, &pair, sizeof word);
  return word;
}

// a[r][k] = r + 16 k, b[k][c] = k - 2 c, d starts with 1000 r + c.
template <class T>
__global__ void tiles(float* out) {
  const int l = int(threadIdx.x), g = l / 4, t = l % 4;
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    const int row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
    a[i] = pair_of<T>(float(row + 16 * column), float(row + 16 * (column + 1)));
  }
  for (int i = 0; i < 2; ++i) b[i] = pair_of<T>(float(2 * t + 8 * i - 2 * g), float(2 * t + 8 * i + 1 - 2 * g));
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = float(1000 * (g + i / 2 * 8) + 2 * t + i % 2);
  mma_m16n8k16<T>(d, a, b);
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

}  // namespace

CHECK(shuffle_int) {
  expect_shuffles_of_numbers<int>();
}
CHECK(shuffle_unsigned) {
  expect_shuffles_of_numbers<unsigned>();
}
CHECK(shuffle_long_long) {
  expect_shuffles_of_numbers<long long>();
}
CHECK(shuffle_unsigned_long_long) {
  expect_shuffles_of_numbers<unsigned long long>();
}
CHECK(shuffle_float) {
  expect_shuffles_of_numbers<float>();
}
CHECK(shuffle_double) {
  expect_shuffles_of_numbers<double>();
}
CHECK(shuffle_half) {
  expect_shuffles<__half>([](int l) { return __float2half(float(l)); }, [](__half v) { return int(__half2float(v)); });
}
CHECK(shuffle_bfloat16) {
  expect_shuffles<__nv_bfloat16>([](int l) { return __float2bfloat16(float(l)); },
                                 [](__nv_bfloat16 v) { return int(__bfloat162float(v)); });
}
CHECK(shuffle_half2) {
  expect_shuffles<__half2>([](int l) { return __floats2half2_rn(0, float(l)); },
                           [](__half2 v) { return int(__high2float(v)); });
}
CHECK(shuffle_bfloat162) {
  expect_shuffles<__nv_bfloat162>([](int l) { return __floats2bfloat162_rn(0, float(l)); },
                                  [](__nv_bfloat162 v) { return int(__high2float(v)); });
}

CHECK(shuffle_in_diverged_halves) {
  int out[32];
  launch(sums_of_diverged_halves, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 32; ++l) EXPECT(out[l] == (l < 16 ? 120 : 128));
}

CHECK(shuffle_ignores_lanes_that_returned) {
  int out[8];
  launch(shuffle_after_lanes_returned, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 8; ++l) EXPECT(out[l] == (l ^ 1));
}

CHECK(shuffle_from_a_lane_that_takes_no_part_is_poison) {
  float out[16];
  launch(shuffle_from_absent_lane, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 16; ++l) EXPECT(l < 8 ? out[l] == float(l + 8) : std::isnan(out[l]));
}

CHECK(votes_of_a_warp) {
  unsigned out[128];
  launch(votes, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 32; ++l) {
    EXPECT(out[l] == 0x49249249u);
    EXPECT(out[32 + l] == 2);
    EXPECT(out[64 + l] == 2);
    if (l >= 20) EXPECT(out[96 + l] == 0xaaa00000u);
  }
}

CHECK(reductions_of_a_warp) {
  unsigned out[128];
  int signed_out[64];
  launch(reductions, dim3(1), dim3(32), 0, nullptr, out, signed_out);
  for (int l = 0; l < 32; ++l) {
    EXPECT(out[l] == 496 && out[32 + l] == 0x40 && out[64 + l] == kFullMask && out[96 + l] == 0);
    EXPECT(signed_out[l] == -26 && signed_out[32 + l] == 5);
  }
}

CHECK(matches_in_a_warp) {
  unsigned out[160];
  launch(matches, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 32; ++l) {
    EXPECT(out[l] == 0x11111111u << (l % 4));
    EXPECT(out[32 + l] == kFullMask && out[64 + l] == 1);
    EXPECT(out[96 + l] == 0 && out[128 + l] == 0);
  }
}

template <class T>
void expect_product_of_tiles() {
  float out[128];
  launch(tiles<T>, dim3(1), dim3(32), 0, nullptr, out);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      int sum = 1000 * r + c;
      for (int k = 0; k < 16; ++k) sum += (r + 16 * k) * (k - 2 * c);
      EXPECT(out[8 * r + c] == float(sum));
    }
  }
}

CHECK(product_of_tiles_of_halves) {
  expect_product_of_tiles<__half>();
}
CHECK(product_of_tiles_of_bfloat16) {
  expect_product_of_tiles<__nv_bfloat16>();
}
