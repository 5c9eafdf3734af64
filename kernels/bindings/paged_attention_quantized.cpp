// paged_attention_quantized: schema, checks, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "cpu_operators.h"
#include "paged_attention_arguments.h"
#include "quantized_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "paged_attention_quantized";

// The widest load of codes takes 16 bytes. take_layout has seen that both caches have the same strides.
void check_loads(const qwen::QuantizedLayout& layout, const Tensor& k_cache, const Tensor& v_cache) {
  TORCH_CHECK(layout.data_row_stride % 16 == 0 && layout.data_block_stride % 16 == 0, kOp, ": rows of codes lie ",
              layout.data_row_stride, " bytes apart and blocks ", layout.data_block_stride,
              "; both must be multiples of 16, for loads of 16 bytes: take a KVCacheFormat with an alignment of 16 or "
              "more.");
  qwen::check_alignment(kOp, "k_cache", k_cache);
  qwen::check_alignment(kOp, "v_cache", v_cache);
}

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
  qwen::PagedAttentionQuantized args = {};
  qwen::check_device(B, kOp, "q", q);
  qwen::check_query(kOp, q);
  TORCH_CHECK(q.size(2) == 128, kOp, ": q has shape ", q.sizes(), "; head_dim must be 128.");
  qwen::check_heads(kOp, q, kv_heads);
  args.layout.values = qwen::named<qwen::ValueFormat>(kOp, "values", values, {"e4m3", "e2m1"}, 1);
  args.layout.scale_format =
      qwen::named<qwen::ScaleFormat>(kOp, "scale_format", scale_format, {"ue8m0", "e4m3", "float32"});
  qwen::check_group(kOp, group);
  args.layout.group = int32_t(group);
  const int64_t scales_at =
      qwen::take_layout(kOp, args.layout, {k_cache, &v_cache, cache_layout, kv_heads, 128}, "q", q);
  check_loads(args.layout, k_cache, v_cache);
  TORCH_CHECK(std::isfinite(hadamard_scale), kOp, ": hadamard_scale is ", hadamard_scale, "; it must be finite.");
  args.hadamard_scale = float(hadamard_scale);
  const qwen::PagedAttention a = qwen::attention_over(kOp, in, {k_cache.size(0), cache_layout[0], kv_heads});
  args.split = qwen::checked_cut(kOp, a, in, partition_size, partitions, workspace, qwen::merge_of(kOp, merge));
  const auto rows_of = [&](const Tensor& cache) {
    auto* first = static_cast<uint8_t*>(const_cast<void*>(cache.const_data_ptr()));  // read only
    return qwen::QuantizedRows{first, first + scales_at};
  };
  args.k = rows_of(k_cache), args.v = rows_of(v_cache);
  Tensor out = at::empty(q.sizes(), q.options());
  args.split.attention.out = out.mutable_data_ptr();
  if (a.batch == 0) return out;
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, a.batch * a.kv_heads * partitions, 1,
                     [&](int64_t first, int64_t last) { qwen::cpu::paged_attention_quantized(args, first, last); });
    qwen::merge_on_cpu({args.split.partials, out.mutable_data_ptr(), a.batch, a.query_heads, a.head_dim, a.dtype});
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
