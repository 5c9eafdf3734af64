// What the operators that write a new token into the paged cache check alike, and their CPU path.
#include "cache_write_arguments.h"

#include <ATen/Parallel.h>

#include "cpu_operators.h"
#include "paged_attention_arguments.h"

namespace qwen {
namespace {

using at::Tensor;

constexpr int64_t kHeadDim = 128, kMostHeads = 65535;

void check_norm_weight(const char* op, const char* name, const Tensor& weight, const Tensor& qkv) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == kHeadDim, op, ": ", name, " has shape ", weight.sizes(),
              "; it must be [128], the size of a head.");
  TORCH_CHECK(weight.is_contiguous(), op, ": ", name, " has gaps between its elements; pass ", name, ".contiguous().");
  check_same(op, name, weight, "qkv", qkv);
}

void check_cache(const char* op, const char* name, const Tensor& cache, const Tensor& qkv) {
  TORCH_CHECK(cache.dim() == 4 && cache.size(2) >= 1 && cache.size(3) == kHeadDim, op, ": ", name, " has shape ",
              cache.sizes(), "; it must be [num_blocks, block_size, num_kv_heads, 128].");
  const int64_t size = cache.size(1);
  TORCH_CHECK(8 <= size && size <= 256 && (size & (size - 1)) == 0, op, ": ", name, " has blocks of ", size,
              " tokens; block_size must be a power of two from 8 to 256.");
  TORCH_CHECK(cache.layout() == at::kStrided && cache.is_contiguous(), op, ": ", name, " has strides ", cache.strides(),
              "; a cache must be contiguous, and is written in place, so a copy will not do.");
  check_same(op, name, cache, "qkv", qkv);
}

}  // namespace

void check_qkv(Backend backend, const char* op, const Tensor& qkv) {
  check_device(backend, op, "qkv", qkv);
  TORCH_CHECK(qkv.scalar_type() == at::kHalf || qkv.scalar_type() == at::kBFloat16, op, ": qkv has dtype ",
              qkv.scalar_type(), "; it must be float16 or bfloat16.");
  TORCH_CHECK(qkv.dim() == 2, op, ": qkv has shape ", qkv.sizes(),
              "; it must be [tokens, (num_heads + 2 * num_kv_heads) * 128].");
  rows_of(op, "qkv", qkv);
}

void check_packs(const char* op, const char* name, const Tensor& t) {
  const int64_t pack = 16 / t.element_size();
  check_alignment(op, name, t);
  TORCH_CHECK(t.dim() < 2 || t.size(0) <= 1 || t.stride(0) % pack == 0, op, ": ", name, " has strides ", t.strides(),
              "; its rows must begin at a multiple of 16 bytes: pass ", name, ".contiguous().");
}

QkNormRopeCacheWrite checked_token(const char* op,
                                   const CacheWriteInputs& in,
                                   int64_t num_kv_heads,
                                   int64_t num_slots) {
  const auto& [qkv, q_weight, k_weight, cos_sin, positions, slot_mapping, k_cache, v_cache, eps, num_heads] = in;
  const Rows rows = rows_of(op, "qkv", qkv);
  TORCH_CHECK(1 <= num_heads && num_heads <= kMostHeads && num_kv_heads <= kMostHeads &&
                  num_heads + 2 * num_kv_heads <= kMostHeads,
              op, ": num_heads is ", num_heads, " and k_cache has ", num_kv_heads,
              " heads; at least one of each and at most 65535 heads of Q, K and V together are supported.");
  TORCH_CHECK(qkv.size(1) == (num_heads + 2 * num_kv_heads) * kHeadDim, op, ": qkv has shape ", qkv.sizes(), "; with ",
              num_heads, " heads of Q and, as in k_cache, ", num_kv_heads, " of K and of V, each of 128, it must have ",
              (num_heads + 2 * num_kv_heads) * kHeadDim, " columns.");
  check_norm_weight(op, "q_weight", q_weight, qkv);
  check_norm_weight(op, "k_weight", k_weight, qkv);
  TORCH_CHECK(cos_sin.scalar_type() == at::kFloat, op, ": cos_sin has dtype ", cos_sin.scalar_type(),
              "; it must be float32.");
  TORCH_CHECK(cos_sin.dim() == 2 && cos_sin.size(0) >= 1 && cos_sin.size(1) == kHeadDim, op, ": cos_sin has shape ",
              cos_sin.sizes(), "; it must be [max_positions, 128]: 64 cosines, then 64 sines, for each position.");
  TORCH_CHECK(cos_sin.device() == qkv.device(), op, ": cos_sin is on ", cos_sin.device(), " and qkv on ", qkv.device(),
              "; they must be on one device.");
  const Rows turns = rows_of(op, "cos_sin", cos_sin);
  const bool wide_positions = check_indices(op, "positions", positions, "qkv", qkv);
  const bool wide_slots = check_indices(op, "slot_mapping", slot_mapping, "qkv", qkv);
  check_eps(op, eps);
  check_apart(op, "k_cache", k_cache, "v_cache", v_cache);
  for (const auto& [name, tensor] : in.read()) {
    check_apart(op, "k_cache", k_cache, name, *tensor);
    check_apart(op, "v_cache", v_cache, name, *tensor);
  }

  return {qkv.const_data_ptr(),
          q_weight.const_data_ptr(),
          k_weight.const_data_ptr(),
          cos_sin.const_data_ptr<float>(),
          positions.const_data_ptr(),
          slot_mapping.const_data_ptr(),
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          rows.rows,
          num_slots,
          turns.rows,
          rows.stride,
          turns.stride,
          static_cast<int32_t>(num_heads),
          static_cast<int32_t>(num_kv_heads),
          static_cast<float>(eps),
          dtype_of(op, "qkv", qkv),
          wide_positions,
          wide_slots};
}

QkNormRopeCacheWrite checked_cache_write(Backend backend, const char* op, const CacheWriteInputs& in) {
  const Tensor &k_cache = in.k_cache, &v_cache = in.v_cache;
  check_qkv(backend, op, in.qkv);
  check_cache(op, "k_cache", k_cache, in.qkv);
  check_cache(op, "v_cache", v_cache, in.qkv);
  TORCH_CHECK(k_cache.sizes() == v_cache.sizes(), op, ": v_cache has shape ", v_cache.sizes(), " and k_cache ",
              k_cache.sizes(), "; they must have one shape.");
  QkNormRopeCacheWrite args = checked_token(op, in, k_cache.size(2), k_cache.size(0) * k_cache.size(1));
  args.k_cache = k_cache.mutable_data_ptr(), args.v_cache = v_cache.mutable_data_ptr();
  return args;
}

void add_known(const KnownOperands& known, const CacheWriteInputs& in) {
  for (const auto& [name, tensor] : in.read()) known.add(name, tensor->const_data_ptr(), span_bytes(*tensor), false);
  known.add("k_cache", in.k_cache.const_data_ptr(), span_bytes(in.k_cache), true);
  known.add("v_cache", in.v_cache.const_data_ptr(), span_bytes(in.v_cache), true);
}

void cache_write_on_cpu(const QkNormRopeCacheWrite& args) {
  constexpr int64_t kGrain = 8;  // tokens that one CPU thread takes at a time
  at::parallel_for(0, args.tokens, kGrain,
                   [&](int64_t first, int64_t last) { cpu::qk_norm_rope_cache_write(args, first, last); });
}

}  // namespace qwen
