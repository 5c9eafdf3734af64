// fused_decode_attention: schema, checks, outputs, and the way to the kernels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cache_write_arguments.h"
#include "paged_attention_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "fused_decode_attention";

template <Backend B>
Tensor fused_decode_attention(const Tensor& qkv,
                              const Tensor& q_weight,
                              const Tensor& k_weight,
                              const Tensor& cos_sin,
                              const Tensor& positions,
                              const Tensor& slot_mapping,
                              Tensor& k_cache,
                              Tensor& v_cache,
                              const Tensor& block_table,
                              const Tensor& context_lens,
                              double eps,
                              double scale,
                              int64_t num_heads,
                              int64_t partition_size,
                              int64_t partitions,
                              const Tensor& workspace,
                              c10::string_view merge,
                              bool prefetch) {
  const qwen::CacheWriteInputs token{qkv,          q_weight, k_weight, cos_sin, positions,
                                     slot_mapping, k_cache,  v_cache,  eps,     num_heads};
  qwen::FusedDecodeAttention args{qwen::checked_cache_write(B, kOp, token), {}, prefetch};
  for (const auto& [name, tensor] : {std::pair("qkv", &qkv), std::pair("q_weight", &q_weight),
                                     std::pair("k_weight", &k_weight), std::pair("cos_sin", &cos_sin)}) {
    qwen::check_packs(kOp, name, *tensor);
  }
  // q lies in registers only; out has its shape.
  Tensor out = at::empty({args.token.tokens, num_heads, 128}, qkv.options());
  const qwen::AttentionInputs attention{out, k_cache, v_cache, block_table, context_lens, scale};
  args.split = qwen::checked_cut(kOp, qwen::checked_attention(B, kOp, attention), attention, partition_size, partitions,
                                 workspace, qwen::merge_of(kOp, merge));
  qwen::check_apart(kOp, "workspace", workspace, "qkv", qkv);
  if (args.token.tokens == 0) return out;
  args.split.attention.out = out.mutable_data_ptr();
  if constexpr (B == Backend::kCpu) {
    const Tensor q = at::empty(out.sizes(), out.options());
    args.token.q = q.mutable_data_ptr();
    args.split.attention.q = q.const_data_ptr();
    qwen::cache_write_on_cpu(args.token);
    const qwen::PagedAttention& a = args.split.attention;
    qwen::split_on_cpu(args.split);
    qwen::merge_on_cpu({args.split.partials, a.out, a.batch, a.query_heads, a.head_dim, a.dtype});
  } else {
    args.split.attention.q = nullptr;
    const c10::DeviceGuard guard(qkv.device());
    const qwen::KnownOperands known(B, kOp);
    qwen::add_known(known, token);
    known.add("block_table", block_table.const_data_ptr(), qwen::span_bytes(block_table), false);
    known.add("context_lens", context_lens.const_data_ptr(), qwen::span_bytes(context_lens), false);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    known.add("out", args.split.attention.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_fused_decode_attention)>(qwen::find_launcher(B, kOp))(args,
                                                                                          qwen::current_stream(qkv));
  }
  return out;
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "fused_decode_attention(Tensor qkv, Tensor q_weight, Tensor k_weight,"
      " Tensor cos_sin, Tensor positions, Tensor slot_mapping,"
      " Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_table, Tensor context_lens,"
      " float eps, float scale, int num_heads, int partition_size, int partitions,"
      " Tensor(c!) workspace, *, str merge=\"auto\", bool prefetch=False) -> Tensor");
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
  m.impl("fused_decode_attention", &fused_decode_attention<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("fused_decode_attention", &fused_decode_attention<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("fused_decode_attention", &fused_decode_attention<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("fused_decode_attention", &fused_decode_attention<Backend::kSim>);
}
