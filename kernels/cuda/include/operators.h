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
  bool hf_rounding;  // x * scale is rounded too, as in Hugging Face's order of operations
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
  bool hf_rounding;  // the sum is rounded before it is normed, and sum * scale is rounded too
};

// --8<-- [start:silu_mul]
// out[r, i] = silu(gate_up[r, i]) * gate_up[r, size + i], rounded once; silu(z) is
// z / (1 + exp(-z)).
struct SiluMul {
  const void* gate_up;                 // [rows, 2 * size]: gate, then up
  void* out;                           // [rows, size]
  int64_t rows, size;                  // size: the width of gate, of up and of out
  int64_t gate_up_stride, out_stride;  // elements from one row to the next
  Dtype dtype;
  bool hf_rounding;  // silu(gate) is rounded too
};
// --8<-- [end:silu_mul]

}  // namespace qwen

QWEN_EXPORT void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream);
