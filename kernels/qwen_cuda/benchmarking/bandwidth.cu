// bandwidth.cu: what a card's memory gives to a kernel that does nothing else: a read, a copy; and an empty kernel.
//
// Mapping   Tiles of kThreads * kInFlight packs of 16 bytes go to the blocks in turn. A thread takes a pack in each of
//           kInFlight stretches of its tile, so that a warp asks for 512 consecutive bytes at a time, and every load of
//           a tile is asked for before the first value is used.
// Contract  Addresses are multiples of 16 bytes. sums[block] is the sum of all 32-bit words that the block read, modulo
//           2^32: it keeps the loads alive, and shows that nothing was left out.
#include <cstdint>
#include <exception>
#include <string>

#include "cuda_platform.cuh"

#define BANDWIDTH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kThreads = 512;

// A thread's packs of the tile that begins at pack `first`; zeros beyond the end. In a whole tile no load waits for a
// comparison.
template <int kInFlight>
__device__ __forceinline__ void load_tile(const uint4* from, int64_t first, int64_t packs, uint4 (&tile)[kInFlight]) {
  from += first + threadIdx.x;
  const int64_t left = packs - first - threadIdx.x;
  if (left > (kInFlight - 1) * kThreads) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) tile[j] = from[j * kThreads];
  } else {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) tile[j] = j * kThreads < left ? from[j * kThreads] : uint4{0, 0, 0, 0};
  }
}

template <int kInFlight>
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* __restrict__ from, int64_t packs, uint32_t* sums) {
  __shared__ uint32_t partial[kThreads];
  constexpr int kTile = kThreads * kInFlight;
  uint32_t sum = 0;
  for (int64_t first = int64_t(blockIdx.x) * kTile; first < packs; first += int64_t(gridDim.x) * kTile) {
    uint4 tile[kInFlight];
    load_tile(from, first, packs, tile);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) sum += tile[j].x + tile[j].y + tile[j].z + tile[j].w;
  }
  partial[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

template <int kInFlight>
__global__ void __launch_bounds__(kThreads) copy_kernel(const uint4* __restrict__ from, int64_t packs, uint4* to) {
  constexpr int kTile = kThreads * kInFlight;
  for (int64_t first = int64_t(blockIdx.x) * kTile; first < packs; first += int64_t(gridDim.x) * kTile) {
    uint4 tile[kInFlight];
    load_tile(from, first, packs, tile);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t i = first + j * kThreads + threadIdx.x;
      if (i < packs) to[i] = tile[j];
    }
  }
}

__global__ void empty_kernel() {}

// What `enqueue` throws, as text: the caller is Python, and no exception may pass through ctypes. Null: it went well.
template <class Enqueue>
const char* reported(Enqueue enqueue) {
  static thread_local std::string text;
  try {
    enqueue();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
}

}  // namespace

// `bytes` must be a multiple of 16. `in_flight` is 4 or 8; anything else is taken for 4.
BANDWIDTH_EXPORT const char* bandwidth_read(
    const void* from, int64_t bytes, uint32_t* sums, int blocks, int in_flight, cudaStream_t stream) {
  return reported([&] {
    launch(in_flight == 8 ? read_kernel<8> : read_kernel<4>, dim3(unsigned(blocks)), dim3(kThreads), 0, stream,
           static_cast<const uint4*>(from), bytes / 16, sums);
  });
}

BANDWIDTH_EXPORT const char* bandwidth_copy(
    const void* from, int64_t bytes, void* to, int blocks, int in_flight, cudaStream_t stream) {
  return reported([&] {
    launch(in_flight == 8 ? copy_kernel<8> : copy_kernel<4>, dim3(unsigned(blocks)), dim3(kThreads), 0, stream,
           static_cast<const uint4*>(from), bytes / 16, static_cast<uint4*>(to));
  });
}

BANDWIDTH_EXPORT const char* bandwidth_empty(cudaStream_t stream) {
  return reported([&] { launch(empty_kernel, dim3(1), dim3(32), 0, stream); });
}
