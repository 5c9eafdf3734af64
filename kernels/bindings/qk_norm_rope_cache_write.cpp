// qk_norm_rope_cache_write: schema, checks, outputs, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <limits>
#include <tuple>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "qk_norm_rope_cache_write";
constexpr int64_t kHeadDim = 128, kMostHeads = 65535;
constexpr int64_t kGrain = 8;  // tokens that one CPU thread takes at a time

void check_norm_weight(const char* name, const Tensor& weight, const Tensor& qkv) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == kHeadDim, kOp, ": ", name, " has shape ", weight.sizes(),
              "; it must be [128], the size of a head.");
  TORCH_CHECK(weight.is_contiguous(), kOp, ": ", name, " has gaps between its elements; pass ", name, ".contiguous().");
  qwen::check_same(kOp, name, weight, "qkv", qkv);
}

// Returns whether the indices are int64_t.
bool check_indices(const char* name, const Tensor& indices, const Tensor& qkv) {
  const bool wide = indices.scalar_type() == at::kLong;
  TORCH_CHECK(wide || indices.scalar_type() == at::kInt, kOp, ": ", name, " has dtype ", indices.scalar_type(),
              "; it must be int64 or int32.");
  TORCH_CHECK(indices.dim() == 1 && indices.size(0) == qkv.size(0), kOp, ": ", name, " has shape ", indices.sizes(),
              "; it must be [", qkv.size(0), "], one for each row of qkv.");
  TORCH_CHECK(indices.is_contiguous(), kOp, ": ", name, " has gaps between its elements; pass ", name,
              ".contiguous().");
  TORCH_CHECK(indices.device() == qkv.device(), kOp, ": ", name, " is on ", indices.device(), " and qkv on ",
              qkv.device(), "; they must be on one device.");
  return wide;
}

void check_cache(const char* name, const Tensor& cache, const Tensor& qkv) {
  TORCH_CHECK(cache.dim() == 4 && cache.size(2) >= 1 && cache.size(3) == kHeadDim, kOp, ": ", name, " has shape ",
              cache.sizes(), "; it must be [num_blocks, block_size, num_kv_heads, 128].");
  const int64_t size = cache.size(1);
  TORCH_CHECK(8 <= size && size <= 256 && (size & (size - 1)) == 0, kOp, ": ", name, " has blocks of ", size,
              " tokens; block_size must be a power of two from 8 to 256.");
  TORCH_CHECK(cache.layout() == at::kStrided && cache.is_contiguous(), kOp, ": ", name, " has strides ",
              cache.strides(), "; a cache must be contiguous, and is written in place, so a copy will not do.");
  qwen::check_same(kOp, name, cache, "qkv", qkv);
}

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
  qwen::check_device(B, kOp, "qkv", qkv);
  TORCH_CHECK(qkv.scalar_type() == at::kHalf || qkv.scalar_type() == at::kBFloat16, kOp, ": qkv has dtype ",
              qkv.scalar_type(), "; it must be float16 or bfloat16.");
  TORCH_CHECK(qkv.dim() == 2, kOp, ": qkv has shape ", qkv.sizes(),
              "; it must be [tokens, (num_heads + 2 * num_kv_heads) * 128].");
  const qwen::Rows in = qwen::rows_of(kOp, "qkv", qkv);
  check_cache("k_cache", k_cache, qkv);
  check_cache("v_cache", v_cache, qkv);
  TORCH_CHECK(k_cache.sizes() == v_cache.sizes(), kOp, ": v_cache has shape ", v_cache.sizes(), " and k_cache ",
              k_cache.sizes(), "; they must have one shape.");
  const int64_t num_kv_heads = k_cache.size(2), num_slots = k_cache.size(0) * k_cache.size(1);
  TORCH_CHECK(1 <= num_heads && num_heads <= kMostHeads && num_kv_heads <= kMostHeads &&
                  num_heads + 2 * num_kv_heads <= kMostHeads,
              kOp, ": num_heads is ", num_heads, " and k_cache has ", num_kv_heads,
              " heads; at least one of each and at most 65535 heads of Q, K and V together are supported.");
  TORCH_CHECK(qkv.size(1) == (num_heads + 2 * num_kv_heads) * kHeadDim, kOp, ": qkv has shape ", qkv.sizes(), "; with ",
              num_heads, " heads of Q and, as in k_cache, ", num_kv_heads, " of K and of V, each of 128, it must have ",
              (num_heads + 2 * num_kv_heads) * kHeadDim, " columns.");
  check_norm_weight("q_weight", q_weight, qkv);
  check_norm_weight("k_weight", k_weight, qkv);
  TORCH_CHECK(cos_sin.scalar_type() == at::kFloat, kOp, ": cos_sin has dtype ", cos_sin.scalar_type(),
              "; it must be float32.");
  TORCH_CHECK(cos_sin.dim() == 2 && cos_sin.size(0) >= 1 && cos_sin.size(1) == kHeadDim, kOp, ": cos_sin has shape ",
              cos_sin.sizes(), "; it must be [max_positions, 128]: 64 cosines, then 64 sines, for each position.");
  TORCH_CHECK(cos_sin.device() == qkv.device(), kOp, ": cos_sin is on ", cos_sin.device(), " and qkv on ", qkv.device(),
              "; they must be on one device.");
  const qwen::Rows turns = qwen::rows_of(kOp, "cos_sin", cos_sin);
  const bool wide_positions = check_indices("positions", positions, qkv);
  const bool wide_slots = check_indices("slot_mapping", slot_mapping, qkv);
  qwen::check_eps(kOp, eps);
  qwen::check_apart(kOp, "k_cache", k_cache, "v_cache", v_cache);
  const std::pair<const char*, const Tensor*> read[] = {
      {"qkv", &qkv},         {"q_weight", &q_weight},   {"k_weight", &k_weight},
      {"cos_sin", &cos_sin}, {"positions", &positions}, {"slot_mapping", &slot_mapping}};
  for (const auto& [name, tensor] : read) {
    qwen::check_apart(kOp, "k_cache", k_cache, name, *tensor);
    qwen::check_apart(kOp, "v_cache", v_cache, name, *tensor);
  }

  Tensor q = at::empty({in.rows, num_heads, kHeadDim}, qkv.options());
  Tensor k = at::empty({return_k ? in.rows : 0, num_kv_heads, kHeadDim}, qkv.options());
  if (in.rows == 0) return {q, k};
  const qwen::QkNormRopeCacheWrite args{qkv.const_data_ptr(),
                                        q_weight.const_data_ptr(),
                                        k_weight.const_data_ptr(),
                                        cos_sin.const_data_ptr<float>(),
                                        positions.const_data_ptr(),
                                        slot_mapping.const_data_ptr(),
                                        q.mutable_data_ptr(),
                                        return_k ? k.mutable_data_ptr() : nullptr,
                                        k_cache.mutable_data_ptr(),
                                        v_cache.mutable_data_ptr(),
                                        in.rows,
                                        num_slots,
                                        turns.rows,
                                        in.stride,
                                        turns.stride,
                                        static_cast<int32_t>(num_heads),
                                        static_cast<int32_t>(num_kv_heads),
                                        static_cast<float>(eps),
                                        qwen::dtype_of(kOp, "qkv", qkv),
                                        wide_positions,
                                        wide_slots};
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, in.rows, kGrain,
                     [&](int64_t first, int64_t last) { qwen::cpu::qk_norm_rope_cache_write(args, first, last); });
  } else {
    const c10::DeviceGuard guard(qkv.device());
    const qwen::KnownOperands known(B, kOp);
    for (const auto& [name, tensor] : read) known.add(name, tensor->const_data_ptr(), qwen::span_bytes(*tensor), false);
    known.add("q", args.q, qwen::span_bytes(q), true);
    if (return_k) known.add("k", args.k, qwen::span_bytes(k), true);
    known.add("k_cache", args.k_cache, qwen::span_bytes(k_cache), true);
    known.add("v_cache", args.v_cache, qwen::span_bytes(v_cache), true);
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
