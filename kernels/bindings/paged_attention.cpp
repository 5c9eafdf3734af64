// Paged attention: schemas, checks, outputs, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "cpu_operators.h"
#include "paged_attention_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;
using Inputs = qwen::AttentionInputs;

Tensor new_output(const Tensor& q, qwen::PagedAttention& args) {
  Tensor out = at::empty(q.sizes(), q.options());
  args.out = out.mutable_data_ptr();
  return out;
}

template <Backend B>
Tensor paged_attention_grouped(const Tensor& q,
                               const Tensor& k_cache,
                               const Tensor& v_cache,
                               const Tensor& block_table,
                               const Tensor& context_lens,
                               double scale) {
  const char* op = "paged_attention_grouped";
  const Inputs in{q, k_cache, v_cache, block_table, context_lens, scale};
  qwen::PagedAttention args = qwen::checked_attention(B, op, in);
  Tensor out = new_output(q, args);
  if (args.batch == 0) return out;
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, args.batch * args.kv_heads, 1,
                     [&](int64_t first, int64_t last) { qwen::cpu::paged_attention(args, first, last); });
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    qwen::add_known(known, in);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_paged_attention_grouped)>(qwen::find_launcher(B, op))(args,
                                                                                          qwen::current_stream(q));
  }
  return out;
}

template <Backend B>
Tensor paged_attention_split(const Tensor& q,
                             const Tensor& k_cache,
                             const Tensor& v_cache,
                             const Tensor& block_table,
                             const Tensor& context_lens,
                             double scale,
                             int64_t partition_size,
                             int64_t partitions,
                             const Tensor& workspace,
                             c10::string_view merge) {
  const char* op = "paged_attention_split";
  const Inputs in{q, k_cache, v_cache, block_table, context_lens, scale};
  qwen::PagedAttentionSplit args = qwen::checked_cut(op, qwen::checked_attention(B, op, in), in, partition_size,
                                                     partitions, workspace, qwen::merge_of(op, merge));
  Tensor out = new_output(q, args.attention);
  const qwen::PagedAttention& a = args.attention;
  if (a.batch == 0) return out;
  if constexpr (B == Backend::kCpu) {
    qwen::split_on_cpu(args);
    qwen::merge_on_cpu({args.partials, a.out, a.batch, a.query_heads, a.head_dim, a.dtype});
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    qwen::add_known(known, in);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    known.add("out", a.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_paged_attention_split)>(qwen::find_launcher(B, op))(args, qwen::current_stream(q));
  }
  return out;
}

template <Backend B>
void paged_attention_partials(const Tensor& q,
                              const Tensor& k_cache,
                              const Tensor& v_cache,
                              const Tensor& block_table,
                              const Tensor& context_lens,
                              double scale,
                              int64_t partition_size,
                              int64_t partitions,
                              const Tensor& workspace) {
  const char* op = "paged_attention_partials";
  const Inputs in{q, k_cache, v_cache, block_table, context_lens, scale};
  const qwen::PagedAttentionSplit args = qwen::checked_cut(op, qwen::checked_attention(B, op, in), in, partition_size,
                                                           partitions, workspace, qwen::Merge::kLeavePartials);
  if (args.attention.batch == 0) return;
  if constexpr (B == Backend::kCpu) {
    qwen::split_on_cpu(args);
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    qwen::add_known(known, in);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    reinterpret_cast<decltype(&qwen_paged_attention_partials)>(qwen::find_launcher(B, op))(args,
                                                                                           qwen::current_stream(q));
  }
}

template <Backend B>
void merge_partitions(const Tensor& workspace, const Tensor& out, int64_t partitions) {
  const char* op = "merge_partitions";
  qwen::check_device(B, op, "out", out);
  const qwen::Dtype dtype = qwen::attention_dtype(op, "out", out);
  TORCH_CHECK(out.dim() == 3 && out.is_contiguous() && (out.size(2) == 64 || out.size(2) == 128), op,
              ": out has shape ", out.sizes(), " and strides ", out.strides(),
              "; it must be dense and [batch, query_heads, head_dim], head_dim 64 or 128.");
  TORCH_CHECK(out.size(0) <= qwen::kMostGrid, op, ": out has shape ", out.sizes(),
              "; at most 65535 sequences are supported.");
  TORCH_CHECK(workspace.device() == out.device(), op, ": workspace is on ", workspace.device(), " and out on ",
              out.device(), "; they must be on one device.");
  const auto partials = qwen::partials_in(op, workspace, out.size(0), out.size(1), 0, out.size(2), partitions);
  qwen::check_apart(op, "out", out, "workspace", workspace);
  const qwen::MergePartitions args{partials, out.mutable_data_ptr(), out.size(0), out.size(1), out.size(2), dtype};
  if (out.numel() == 0) return;
  if constexpr (B == Backend::kCpu) {
    qwen::merge_on_cpu(args);
  } else {
    const c10::DeviceGuard guard(out.device());
    const qwen::KnownOperands known(B, op);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), false);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_merge_partitions)>(qwen::find_launcher(B, op))(args, qwen::current_stream(out));
  }
}

#define QWEN_ATTENTION_INPUTS \
  "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor context_lens, float scale"
#define QWEN_SPLIT_INPUTS QWEN_ATTENTION_INPUTS ", int partition_size, int partitions, Tensor(a!) workspace"

void define(torch::Library& m) {
  m.def("paged_attention_grouped(" QWEN_ATTENTION_INPUTS ") -> Tensor");
  m.def("paged_attention_split(" QWEN_SPLIT_INPUTS ", *, str merge=\"auto\") -> Tensor");
  m.def("paged_attention_partials(" QWEN_SPLIT_INPUTS ") -> ()");
  m.def("merge_partitions(Tensor workspace, Tensor(a!) out, int partitions) -> ()");
}

template <Backend B>
void implement(torch::Library& m) {
  m.impl("paged_attention_grouped", &paged_attention_grouped<B>);
  m.impl("paged_attention_split", &paged_attention_split<B>);
  m.impl("paged_attention_partials", &paged_attention_partials<B>);
  m.impl("merge_partitions", &merge_partitions<B>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  implement<Backend::kCpu>(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  implement<Backend::kCuda>(m);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  implement<Backend::kSim>(m);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  implement<Backend::kSim>(m);
}
