// chunk_load.cuh: a few neighbouring elements for each lane, in words of 4, 8 or 16 bytes. For rows that are shared out
// among more lanes than have a pack of 16 bytes each; wider chunks go in several words.
#pragma once

#include "number_types.cuh"

template <class T, int kSize>
struct alignas(16) Chunk {
  T values[kSize];
};

template <int kBytes>
struct WordOf {
  static_assert(kBytes % 16 == 0, "a chunk has 4 or 8 bytes, or a multiple of 16");
  using Type = uint4;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};

// With kAligned `from` is a multiple of the chunk's bytes, or of 16 where it has more; so is `to`.
template <bool kAligned, int kSize, class T>
__device__ __forceinline__ Chunk<T, kSize> load_chunk(const T* from) {
  Chunk<T, kSize> chunk;
  if constexpr (kAligned) {
    using Word = typename WordOf<kSize* int(sizeof(T))>::Type;
#pragma unroll
    for (int i = 0; i < int(kSize * sizeof(T) / sizeof(Word)); ++i) {
      reinterpret_cast<Word*>(&chunk)[i] = reinterpret_cast<const Word*>(from)[i];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) chunk.values[k] = from[k];
  }
  return chunk;
}

template <bool kAligned, int kSize, class T>
__device__ __forceinline__ void store_chunk(T* to, const Chunk<T, kSize>& chunk) {
  if constexpr (kAligned) {
    using Word = typename WordOf<kSize* int(sizeof(T))>::Type;
#pragma unroll
    for (int i = 0; i < int(kSize * sizeof(T) / sizeof(Word)); ++i) {
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(&chunk)[i];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) to[k] = chunk.values[k];
  }
}
