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

// --8<-- [start:qk_norm_rope_cache_write]
// Each token's row of qkv holds its heads of Q, of K and of V, of 128 elements each. Heads
// of Q and K are normed and rotated by the token's position, in fp32 and rounded once. K
// goes to the token's slot of k_cache, V as it is to that of v_cache. To the kernel a cache
// is an array of slots: slot s is place s % block_size of block s / block_size. A slot that
// the cache does not have, such as -1, is not written. A position that cos_sin does not
// have gives NaN and writes nothing.
struct QkNormRopeCacheWrite {
  const void* qkv;           // [tokens, (num_heads + 2 * num_kv_heads) * 128]
  const void* q_weight;      // [128]
  const void* k_weight;      // [128]
  const float* cos_sin;      // [max_positions, 128]: 64 cosines, then 64 sines
  const void* positions;     // [tokens], int64_t or int32_t
  const void* slot_mapping;  // [tokens], int64_t or int32_t
  void* q;                   // [tokens, num_heads, 128]
  void* k;                   // [tokens, num_kv_heads, 128], or null: K is not returned
  void* k_cache;             // [num_slots, num_kv_heads, 128]
  void* v_cache;             // [num_slots, num_kv_heads, 128]
  int64_t tokens, num_slots, max_positions;
  int64_t qkv_stride, cos_sin_stride;  // elements from one row to the next
  int32_t num_heads, num_kv_heads;
  float eps;
  Dtype dtype;                      // kFloat16 or kBFloat16
  bool wide_positions, wide_slots;  // int64_t, not int32_t
};
// --8<-- [end:qk_norm_rope_cache_write]

}  // namespace qwen

QWEN_EXPORT void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream);
QWEN_EXPORT void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream);
