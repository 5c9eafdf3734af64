// operators.h: what a kernel file gives to the bindings, as plain C++: neither CUDA's headers nor PyTorch's.
//
// A launcher gets raw pointers that the bindings have checked, enqueues its kernels on `stream` and returns. It
// allocates nothing and never waits. It throws a std::exception whose text is a sentence.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;

#define QWEN_EXPORT extern "C" __attribute__((visibility("default")))

namespace qwen {

enum class Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// --8<-- [start:rms_norm]
// out[r, :] = weight * x[r, :] / sqrt(mean(x[r, :]^2) + eps), rounded once.
struct RmsNorm {
  const void* x;       // [rows, hidden]
  const void* weight;  // [hidden]
  void* out;           // [rows, hidden]; may be x itself
  int64_t rows, hidden;
  int64_t x_stride, out_stride;  // elements from one row to the next
  float eps;
  Dtype dtype;
};
// --8<-- [end:rms_norm]

// sum = x + residual in fp32; out = the norm of sum, rounded once; residual_out = sum, rounded once.
struct AddRmsNorm {
  const void* x;         // [rows, hidden]
  const void* residual;  // [rows, hidden]
  const void* weight;    // [hidden]
  void* out;             // [rows, hidden]; may be x itself
  void* residual_out;    // [rows, hidden]; may be residual itself
  int64_t rows, hidden;
  int64_t x_stride, residual_stride, out_stride, residual_out_stride;
  float eps;
  Dtype dtype;
};

}  // namespace qwen

QWEN_EXPORT void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream);
