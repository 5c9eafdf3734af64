// The conversions of bfloat16 and half as C functions, for a test that holds every number against PyTorch's.
#include <cstdint>

#include "cuda_platform.cuh"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void half_to_float(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = __half2float(__ushort_as_half(from[i]));
}
EXPORT void float_to_half(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = __half_as_ushort(__float2half_rn(from[i]));
}
EXPORT void bfloat16_to_float(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = __bfloat162float(__ushort_as_bfloat16(from[i]));
}
EXPORT void float_to_bfloat16(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(from[i]));
}
