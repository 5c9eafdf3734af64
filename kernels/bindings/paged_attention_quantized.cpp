// paged_attention_quantized: schema, checks, and the way to the kernels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "quantized_attention_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "paged_attention_quantized";

template <Backend B>
Tensor paged_attention_quantized(const Tensor& q,
                                 const Tensor& k_cache,
                                 const Tensor& v_cache,
                                 const Tensor& block_table,
                                 const Tensor& context_lens,
                                 double scale,
                                 int64_t kv_heads,
                                 std::string_view values,
                                 int64_t group,
                                 std::string_view scale_format,
                                 at::IntArrayRef cache_layout,
                                 int64_t partition_size,
                                 int64_t partitions,
                                 const Tensor& workspace,
                                 double hadamard_scale,
                                 c10::string_view merge) {
  const qwen::AttentionInputs in{q, k_cache, v_cache, block_table, context_lens, scale};
  qwen::check_device(B, kOp, "q", q);
  qwen::check_query(kOp, q);
  const qwen::CacheForm form{kv_heads, values, group, scale_format, cache_layout, hadamard_scale};
  const qwen::AttentionCut cut{partition_size, partitions, workspace, merge};
  qwen::PagedAttentionQuantized args = qwen::checked_quantized_attention(kOp, in, form, cut, "q");
  Tensor out = at::empty(q.sizes(), q.options());
  args.split.attention.out = out.mutable_data_ptr();
  if (q.size(0) == 0) return out;
  if constexpr (B == Backend::kCpu) {
    qwen::quantized_attention_on_cpu(args);
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, kOp);
    qwen::add_known(known, in);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    known.add("out", out.const_data_ptr(), qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_paged_attention_quantized)>(qwen::find_launcher(B, kOp))(args,
                                                                                             qwen::current_stream(q));
  }
  return out;
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "paged_attention_quantized(Tensor q, Tensor k_cache, Tensor v_cache,"
      " Tensor block_table, Tensor context_lens, float scale, int kv_heads,"
      " str values, int group, str scale_format, int[] cache_layout,"
      " int partition_size, int partitions, Tensor(a!) workspace, *,"
      " float hadamard_scale=0., str merge=\"auto\") -> Tensor");
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
  m.impl("paged_attention_quantized", &paged_attention_quantized<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("paged_attention_quantized", &paged_attention_quantized<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("paged_attention_quantized", &paged_attention_quantized<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("paged_attention_quantized", &paged_attention_quantized<Backend::kSim>);
}
