// qk_norm_rope_cache_write: schema, checks, outputs, and the way to the kernels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "cache_write_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "qk_norm_rope_cache_write";

template <Backend B>
std::tuple<Tensor, Tensor> qk_norm_rope_cache_write(const Tensor& qkv,
                                                    const Tensor& q_weight,
                                                    const Tensor& k_weight,
                                                    const Tensor& cos_sin,
                                                    const Tensor& positions,
                                                    const Tensor& slot_mapping,
                                                    Tensor& k_cache,
                                                    Tensor& v_cache,
                                                    double eps,
                                                    int64_t num_heads,
                                                    bool return_k) {
  const qwen::CacheWriteInputs in{qkv,          q_weight, k_weight, cos_sin, positions,
                                  slot_mapping, k_cache,  v_cache,  eps,     num_heads};
  qwen::QkNormRopeCacheWrite args = qwen::checked_cache_write(B, kOp, in);
  Tensor q = at::empty({args.tokens, num_heads, 128}, qkv.options());
  Tensor k = at::empty({return_k ? args.tokens : 0, k_cache.size(2), 128}, qkv.options());
  if (args.tokens == 0) return {q, k};
  args.q = q.mutable_data_ptr();
  if (return_k) args.k = k.mutable_data_ptr();
  if constexpr (B == Backend::kCpu) {
    qwen::cache_write_on_cpu(args);
  } else {
    const c10::DeviceGuard guard(qkv.device());
    const qwen::KnownOperands known(B, kOp);
    qwen::add_known(known, in);
    known.add("q", args.q, qwen::span_bytes(q), true);
    if (return_k) known.add("k", args.k, qwen::span_bytes(k), true);
    reinterpret_cast<decltype(&qwen_qk_norm_rope_cache_write)>(qwen::find_launcher(B, kOp))(args,
                                                                                            qwen::current_stream(qkv));
  }
  return {q, k};
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "qk_norm_rope_cache_write(Tensor qkv, Tensor q_weight, Tensor k_weight,"
      " Tensor cos_sin, Tensor positions, Tensor slot_mapping,"
      " Tensor(a!) k_cache, Tensor(b!) v_cache, float eps, int num_heads,"
      " *, bool return_k=False) -> (Tensor q, Tensor k)");
  // --8<-- [end:schema]
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  m.impl("qk_norm_rope_cache_write", &qk_norm_rope_cache_write<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("qk_norm_rope_cache_write", &qk_norm_rope_cache_write<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("qk_norm_rope_cache_write", &qk_norm_rope_cache_write<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("qk_norm_rope_cache_write", &qk_norm_rope_cache_write<Backend::kSim>);
}
