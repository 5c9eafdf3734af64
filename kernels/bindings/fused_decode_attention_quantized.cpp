// fused_decode_attention_quantized: schema, checks, outputs, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cache_write_arguments.h"
#include "cpu_operators.h"
#include "quantized_attention_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;
using Args = qwen::FusedDecodeAttentionQuantized;

constexpr const char* kOp = "fused_decode_attention_quantized";

// A writer of FP4 has no other formats; the strides of a cache do not say which it is of.
void check_formats(const qwen::QuantizedLayout& layout, std::string_view scale_format) {
  const bool nvfp4 = layout.group == 16 && layout.scale_format == qwen::ScaleFormat::kE4M3;
  const bool mxfp4 = layout.group == 32 && layout.scale_format == qwen::ScaleFormat::kUE8M0;
  TORCH_CHECK(layout.values == qwen::ValueFormat::kE4M3 || nvfp4 || mxfp4, kOp, ": values is \"e2m1\" with group ",
              layout.group, " and scale_format \"", std::string(scale_format),
              "\"; FP4 is either NVFP4, group 16 with \"e4m3\", or MXFP4, group 32 with \"ue8m0\".");
}

// The rows of a cache that is written.
qwen::QuantizedRows written(const Tensor& cache, const qwen::QuantizedRows& as_read) {
  auto* first = cache.mutable_data_ptr<uint8_t>();
  return {first, first + (as_read.scales - as_read.data)};
}

// The two operators that it joins, one after the other; q is what goes from one to the other.
void in_turn_on_cpu(Args& args, const Tensor& q) {
  const qwen::QkNormRopeCacheWrite& t = args.token;
  qwen::PagedAttentionQuantized& over = args.attention;
  qwen::NormRopeHadamardQuantStore store = {};
  store.x = t.qkv, store.token_stride = t.qkv_stride, store.head_stride = store.head_dim = 128;
  store.query_weight = t.q_weight, store.norm_weight = t.k_weight, store.eps = t.eps;
  store.cos_sin = t.cos_sin, store.cos_sin_stride = t.cos_sin_stride, store.rotary_dim = 128;
  store.positions = t.positions, store.wide_positions = t.wide_positions, store.max_positions = t.max_positions;
  store.slot_mapping = t.slot_mapping, store.wide_slots = t.wide_slots, store.num_slots = t.num_slots;
  store.query_out = q.mutable_data_ptr(), store.k = over.k, store.v = over.v, store.layout = over.layout;
  store.tokens = t.tokens, store.heads = t.num_heads + 2 * t.num_kv_heads;
  store.num_queries = t.num_heads, store.num_keys = t.num_kv_heads;
  store.hadamard_scale = over.hadamard_scale, store.dtype = t.dtype;
  over.split.attention.q = q.const_data_ptr();
  at::parallel_for(0, t.tokens, 8,
                   [&](int64_t first, int64_t last) { qwen::cpu::norm_rope_hadamard_quant_store(store, first, last); });
  qwen::quantized_attention_on_cpu(over);
}

template <Backend B>
Tensor fused_decode_attention_quantized(const Tensor& qkv,
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
                                        int64_t kv_heads,
                                        std::string_view values,
                                        int64_t group,
                                        std::string_view scale_format,
                                        at::IntArrayRef cache_layout,
                                        int64_t partition_size,
                                        int64_t partitions,
                                        const Tensor& workspace,
                                        double hadamard_scale,
                                        c10::string_view merge,
                                        bool prefetch) {
  const qwen::CacheWriteInputs token{qkv,          q_weight, k_weight, cos_sin, positions,
                                     slot_mapping, k_cache,  v_cache,  eps,     num_heads};
  qwen::check_qkv(B, kOp, qkv);
  Args args{qwen::checked_token(kOp, token, kv_heads, 0), {}, prefetch};
  for (const auto& [name, tensor] : {std::pair("qkv", &qkv), std::pair("q_weight", &q_weight),
                                     std::pair("k_weight", &k_weight), std::pair("cos_sin", &cos_sin)}) {
    qwen::check_packs(kOp, name, *tensor);
  }
  // q lies in registers only; out has its shape.
  Tensor out = at::empty({args.token.tokens, num_heads, 128}, qkv.options());
  qwen::check_query(kOp, out);
  const qwen::AttentionInputs in{out, k_cache, v_cache, block_table, context_lens, scale};
  const qwen::CacheForm form{kv_heads, values, group, scale_format, cache_layout, hadamard_scale};
  const qwen::AttentionCut cut{partition_size, partitions, workspace, merge};
  args.attention = qwen::checked_quantized_attention(kOp, in, form, cut, "qkv");
  check_formats(args.attention.layout, scale_format);
  qwen::check_apart(kOp, "workspace", workspace, "qkv", qkv);
  args.token.num_slots = k_cache.size(0) * cache_layout[0];
  if (args.token.tokens == 0) return out;
  args.attention.k = written(k_cache, args.attention.k), args.attention.v = written(v_cache, args.attention.v);
  args.attention.split.attention.out = out.mutable_data_ptr();
  if constexpr (B == Backend::kCpu) {
    in_turn_on_cpu(args, at::empty(out.sizes(), out.options()));
  } else {
    args.attention.split.attention.q = nullptr;
    const c10::DeviceGuard guard(qkv.device());
    const qwen::KnownOperands known(B, kOp);
    qwen::add_known(known, token);
    known.add("block_table", block_table.const_data_ptr(), qwen::span_bytes(block_table), false);
    known.add("context_lens", context_lens.const_data_ptr(), qwen::span_bytes(context_lens), false);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    known.add("out", args.attention.split.attention.out, qwen::span_bytes(out), true);
    const auto launch = reinterpret_cast<decltype(&qwen_fused_decode_attention_quantized)>(qwen::find_launcher(B, kOp));
    launch(args, qwen::current_stream(qkv));
  }
  return out;
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "fused_decode_attention_quantized(Tensor qkv, Tensor q_weight, Tensor k_weight,"
      " Tensor cos_sin, Tensor positions, Tensor slot_mapping,"
      " Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_table, Tensor context_lens,"
      " float eps, float scale, int num_heads, int kv_heads,"
      " str values, int group, str scale_format, int[] cache_layout,"
      " int partition_size, int partitions, Tensor(c!) workspace, *,"
      " float hadamard_scale=0., str merge=\"auto\", bool prefetch=False) -> Tensor");
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
  m.impl("fused_decode_attention_quantized", &fused_decode_attention_quantized<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("fused_decode_attention_quantized", &fused_decode_attention_quantized<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("fused_decode_attention_quantized", &fused_decode_attention_quantized<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("fused_decode_attention_quantized", &fused_decode_attention_quantized<Backend::kSim>);
}
