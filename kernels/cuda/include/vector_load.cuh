// vector_load.cuh: 16 bytes a lane and an instruction, the widest load that a GPU has. A warp then asks for 512
// consecutive bytes at once: 16 sectors of 32 bytes, each used whole.
#pragma once

#include "number_types.cuh"

// 16 bytes of T: 8 bf16 or fp16, or 4 fp32.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T values[kSize];
};

// Whether every row of a matrix begins at a multiple of 16 bytes; `stride` counts elements between rows.
template <class T>
bool rows_are_aligned(const T* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % Pack<T>::kSize == 0;
}

// `from` must be a multiple of 16 bytes; so must `to`.
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Pack<T>*>(&raw);
}

// Number i of the 16 bytes of a pack that is kept as they are: as a Pack<T>, each number of 16 bits takes a register.
template <class T>
__device__ __forceinline__ float element(const uint4& raw, int i) {
  const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(&raw);
  return to_float(pack.values[i]);
}

// Number i of 16 bytes, as `element`. A bf16 is the upper half of an fp32: taken by a shift or a mask, two numbers stay
// in one register until they are needed, where the conversion of one splits the pair as soon as it is loaded.
template <class T>
__device__ __forceinline__ float number_of(const uint4& raw, int i) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const unsigned pair = i < 2 ? raw.x : i < 4 ? raw.y : i < 6 ? raw.z : raw.w;
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  } else {
    return element<T>(raw, i);
  }
}

template <class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&pack);
}

// The first `count` elements, one by one: for what is not aligned, and for the end of a row.
template <class T>
__device__ __forceinline__ Pack<T> load_elements(const T* from, int count) {
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) pack.values[k] = k < count ? from[k] : from_float<T>(0.0f);
  return pack;
}

template <class T>
__device__ __forceinline__ void store_elements(T* to, const Pack<T>& pack, int count) {
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) {
    if (k < count) to[k] = pack.values[k];
  }
}

// Pack q of a row of `size` elements: whole, or one by one where rows are not aligned or end inside a pack.
template <bool kAligned, class T>
__device__ __forceinline__ Pack<T> load_pack_of(const T* row, int q, int size) {
  if constexpr (kAligned) {
    return load_pack(row + q * Pack<T>::kSize);
  } else {
    return load_elements(row + q * Pack<T>::kSize, size - q * Pack<T>::kSize);
  }
}

template <bool kAligned, class T>
__device__ __forceinline__ void store_pack_of(T* row, int q, int size, const Pack<T>& pack) {
  if constexpr (kAligned) {
    store_pack(row + q * Pack<T>::kSize, pack);
  } else {
    store_elements(row + q * Pack<T>::kSize, pack, size - q * Pack<T>::kSize);
  }
}
