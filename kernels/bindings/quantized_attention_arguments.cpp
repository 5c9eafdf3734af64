// What the operators of attention over a quantised cache check alike, and their CPU path.
#include "quantized_attention_arguments.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "cpu_operators.h"

namespace qwen {
namespace {

using at::Tensor;

// The widest load of codes takes 16 bytes. take_layout has seen that both caches have the same strides.
void check_loads(const char* op, const QuantizedLayout& layout, const Tensor& k_cache, const Tensor& v_cache) {
  TORCH_CHECK(layout.data_row_stride % 16 == 0 && layout.data_block_stride % 16 == 0, op, ": rows of codes lie ",
              layout.data_row_stride, " bytes apart and blocks ", layout.data_block_stride,
              "; both must be multiples of 16, for loads of 16 bytes: take a KVCacheFormat with an alignment of 16 or "
              "more.");
  check_alignment(op, "k_cache", k_cache);
  check_alignment(op, "v_cache", v_cache);
}

}  // namespace

PagedAttentionQuantized checked_quantized_attention(
    const char* op, const AttentionInputs& in, const CacheForm& form, const AttentionCut& cut, const char* like_name) {
  PagedAttentionQuantized args = {};
  TORCH_CHECK(in.q.size(2) == 128, op, ": q has shape ", in.q.sizes(), "; head_dim must be 128.");
  check_heads(op, in.q, form.kv_heads);
  args.layout.values = named<ValueFormat>(op, "values", form.values, {"e4m3", "e2m1"}, 1);
  args.layout.scale_format = named<ScaleFormat>(op, "scale_format", form.scale_format, {"ue8m0", "e4m3", "float32"});
  check_group(op, form.group);
  args.layout.group = int32_t(form.group);
  const int64_t scales_at =
      take_layout(op, args.layout, {in.k_cache, &in.v_cache, form.layout, form.kv_heads, 128}, like_name, in.q);
  check_loads(op, args.layout, in.k_cache, in.v_cache);
  TORCH_CHECK(std::isfinite(form.hadamard_scale), op, ": hadamard_scale is ", form.hadamard_scale,
              "; it must be finite.");
  args.hadamard_scale = float(form.hadamard_scale);
  const PagedAttention a = attention_over(op, in, {in.k_cache.size(0), form.layout[0], form.kv_heads});
  args.split = checked_cut(op, a, in, cut.partition_size, cut.partitions, cut.workspace, merge_of(op, cut.merge));
  const auto rows_of = [&](const Tensor& cache) {
    auto* first = static_cast<uint8_t*>(const_cast<void*>(cache.const_data_ptr()));  // read only
    return QuantizedRows{first, first + scales_at};
  };
  args.k = rows_of(in.k_cache), args.v = rows_of(in.v_cache);
  return args;
}

void quantized_attention_on_cpu(const PagedAttentionQuantized& args) {
  const PagedAttention& a = args.split.attention;
  at::parallel_for(0, a.batch * a.kv_heads * args.split.partials.partitions, 1,
                   [&](int64_t first, int64_t last) { cpu::paged_attention_quantized(args, first, last); });
  merge_on_cpu({args.split.partials, a.out, a.batch, a.query_heads, a.head_dim, a.dtype});
}

}  // namespace qwen
