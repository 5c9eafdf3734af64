// number_types.cuh: float, __half and __nv_bfloat16 under one name for kernels that are templates over the dtype.
#pragma once

#include <type_traits>

#include "cuda_platform.cuh"
#include "operators.h"

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// To nearest, ties to even: the one rounding of an operator.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// A result on the way to the output: kept in fp32, or, in Hugging Face's order of operations, rounded to T.
template <class T, bool kHf>
__device__ __forceinline__ float intermediate(float value) {
  if constexpr (kHf) {
    return to_float(from_float<T>(value));
  } else {
    return value;
  }
}

// Calls f with std::true_type or std::false_type, so that f can launch the kernel of that switch.
template <class F>
void dispatch_switch(bool on, F f) {
  if (on) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

// Calls f(T{}) with the type that `dtype` names, so that f can launch the kernel of that type.
template <class F>
void dispatch_dtype(qwen::Dtype dtype, F f) {
  switch (dtype) {
    case qwen::Dtype::kFloat32:
      f(float{});
      break;
    case qwen::Dtype::kFloat16:
      f(__half{});
      break;
    case qwen::Dtype::kBFloat16:
      f(__nv_bfloat16{});
      break;
  }
}
