// code_numbers.cuh: what codes and scales of a quantised cache say, as Tensor Cores and fp32 arithmetic take it.
#pragma once

#include "quantized_rows.cuh"

// A scale as it is stored → its number: shifted, its fields are those of an fp32 number that is `factor` times too
// small. The same few operations for each format, so that the lanes of all tokens go on without a branch. With kPowers
// the format is UE8M0, and known to the compiler.
// --8<-- [start:scale_reader]
template <bool kPowers>
struct ScaleReader {
  uint32_t shift, fields, least;
  float factor, nan;  // this magnitude stands for NaN
  bool wide;          // four bytes, not one

  __device__ __forceinline__ explicit ScaleReader(ScaleFormat format)
      : shift(1u << 23), fields(0x7f800000u), least(0x00400000u), factor(1.0f), nan(INFINITY), wide(false) {
    if (format == ScaleFormat::kE4M3) {
      shift = 1u << 20, fields = 0x87f00000u, least = 0, factor = 0x1p120f, nan = __uint_as_float(0x07f00000u);
    } else if (format == ScaleFormat::kFloat32) {
      shift = 1, fields = ~0u, least = 0, nan = __uint_as_float(0x7fffffffu), wide = true;
    }
  }
  // As it is stored. A byte is extended by its sign, for E4M3; UE8M0, whose 0 is 2^-127, has none in its fields.
  __device__ __forceinline__ uint32_t load(const uint8_t* from) const {
    if constexpr (kPowers) return *from;
    if (wide) return *reinterpret_cast<const uint32_t*>(from);
    return *reinterpret_cast<const int8_t*>(from);
  }
  __device__ __forceinline__ int width() const { return !kPowers && wide ? 4 : 1; }
  __device__ __forceinline__ float operator()(uint32_t code) const {
    if constexpr (kPowers) {
      const float power = __uint_as_float(max(code << 23, 0x00400000u));
      return fmaf(power, 0.0f, power);  // NaN, for what would be infinity
    }
    const float number = __uint_as_float(max(code * shift & fields, least));
    return fabsf(number) == nan ? __uint_as_float(0x7fffffffu) : number * factor;
  }
};
// --8<-- [end:scale_reader]

// Two E4M3 codes, of the lower or the upper half of a word, as halves: exactly.
__device__ __forceinline__ uint32_t halves(uint32_t word, int upper) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  if (upper) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }" : "=r"(pair) : "r"(word));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(pair) : "r"(word));
  }
  return pair;
#else
  const auto codes = static_cast<unsigned short>(word >> 16 * upper);
  // With the same fields a half is 2^8 times smaller. The product is exact, subnormals too. All fields set are NaN.
  const uint32_t apart = __byte_perm(codes, 0, 0x4140), magnitudes = apart & 0x007f007fu;
  const uint32_t fields = (apart & 0x00800080u) << 8 | magnitudes << 7;
  const uint32_t nans = (magnitudes + 0x00010001u & 0x00800080u) * (0x7e00u / 0x80u);
  const __half2 pair = __hmul2(*reinterpret_cast<const __half2*>(&fields), __floats2half2_rn(256.0f, 256.0f));
  return *reinterpret_cast<const uint32_t*>(&pair) | nans;
#endif
}

// What depends on the format of the numbers. A lane's codes are words; as seen from here each has four E4M3 codes.
template <ValueFormat kValues>
struct CodeWords {
  static constexpr bool kE4M3 = kValues == ValueFormat::kE4M3;
  static constexpr int kNumbers = kE4M3 ? 4 : 8;         // in a stored word
  static constexpr float kUnit = kE4M3 ? 1.0f : 0x1p6f;  // of what the words say

  // Read as E4M3 the fields of an E2M1 code stand for 2^-6 times its number, subnormals too: so the even and the odd
  // codes of a word become a word each.
  // --8<-- [start:e2m1]
  static __device__ __forceinline__ uint32_t word(const uint32_t* stored, int w) {
    if constexpr (kE4M3) return stored[w];
    const uint32_t codes = stored[w / 2];
    return w % 2 == 0 ? (codes << 4 & 0x80808080u) | (codes << 2 & 0x1c1c1c1cu)
                      : (codes & 0x80808080u) | (codes >> 2 & 0x1c1c1c1cu);
  }
  // --8<-- [end:e2m1]
  // The word that has one of the lane's numbers, and which of its codes that is.
  static __device__ __forceinline__ int word_of(int number) { return kE4M3 ? number / 4 : number / 8 * 2 + number % 2; }
  static __device__ __forceinline__ int code_of(int number) { return kE4M3 ? number % 4 : number % 8 / 2; }
};
