// Paged attention: schemas, checks, outputs, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "checks.h"
#include "cpu_operators.h"
#include "partitions.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr int64_t kMostTokens = 1 << 30;  // of a sequence, and of partitions * partition_size: counted in 32 bits
constexpr int64_t kMostGrid = 65535;      // of the second and third dimension of a grid

bool is_dense(const Tensor& t) {
  return t.layout() == at::kStrided && t.is_contiguous();
}

void check_alignment(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, op, ": ", name,
              " does not begin at a multiple of 16 bytes; pass ", name, ".clone().");
}

qwen::Dtype attention_dtype(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf, op, ": ", name, " has dtype ",
              t.scalar_type(), "; it must be bfloat16 or float16.");
  return qwen::dtype_of(op, name, t);
}

void check_query(const char* op, const Tensor& q) {
  TORCH_CHECK(q.layout() == at::kStrided && q.dim() == 3, op, ": q has shape ", q.sizes(),
              "; it must be a dense tensor [batch, query_heads, head_dim].");
  TORCH_CHECK(q.size(2) == 64 || q.size(2) == 128, op, ": q has shape ", q.sizes(), "; head_dim must be 64 or 128.");
  TORCH_CHECK(q.size(0) <= kMostGrid, op, ": q has shape ", q.sizes(), "; at most 65535 sequences are supported.");
  TORCH_CHECK(q.size(1) >= 1, op, ": q has shape ", q.sizes(), "; it must have a head.");
  const bool rows = q.stride(2) == 1 && (q.size(1) == 1 || q.stride(1) == q.size(2));
  TORCH_CHECK(rows && (q.size(0) <= 1 || q.stride(0) % 8 == 0), op, ": q has strides ", q.strides(),
              "; the heads of a sequence must lie side by side, and sequences at a multiple of 8 elements: pass "
              "q.contiguous().");
  check_alignment(op, "q", q);
}

void check_caches(const char* op, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache) {
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.size(3) == q.size(2), op, ": k_cache has shape ", k_cache.sizes(),
              "; it must be [num_blocks, block_size, kv_heads, ", q.size(2), "], with the head_dim of q.");
  TORCH_CHECK(v_cache.sizes() == k_cache.sizes(), op, ": v_cache has shape ", v_cache.sizes(), " and k_cache ",
              k_cache.sizes(), "; they must have one shape.");
  const int64_t blocks = k_cache.size(0), size = k_cache.size(1), heads = k_cache.size(2);
  TORCH_CHECK(size >= 8 && size <= 256 && (size & (size - 1)) == 0, op, ": k_cache has shape ", k_cache.sizes(),
              "; block_size must be a power of two from 8 to 256.");
  TORCH_CHECK(blocks <= INT32_MAX, op, ": k_cache has shape ", k_cache.sizes(),
              "; at most 2147483647 blocks are supported.");
  TORCH_CHECK(heads >= 1 && q.size(1) % heads == 0 && q.size(1) / heads <= 8 && heads <= kMostGrid, op, ": q has ",
              q.size(1), " heads and k_cache ", heads, "; each KV head must serve 1 to 8 query heads.");
  for (const auto& [name, cache] : {std::pair("k_cache", k_cache), std::pair("v_cache", v_cache)}) {
    qwen::check_same(op, name, cache, "q", q);
    TORCH_CHECK(is_dense(cache), op, ": ", name, " has gaps; pass ", name, ".contiguous().");
    check_alignment(op, name, cache);
  }
}

void check_table(
    const char* op, const Tensor& q, const Tensor& k_cache, const Tensor& block_table, const Tensor& context_lens) {
  for (const auto& [name, t] : {std::pair("block_table", block_table), std::pair("context_lens", context_lens)}) {
    TORCH_CHECK(t.scalar_type() == at::kInt, op, ": ", name, " has dtype ", t.scalar_type(), "; it must be int32.");
    TORCH_CHECK(t.device() == q.device(), op, ": ", name, " is on ", t.device(), " and q on ", q.device(),
                "; they must be on one device.");
  }
  TORCH_CHECK(block_table.layout() == at::kStrided && block_table.dim() == 2 && block_table.size(0) == q.size(0), op,
              ": block_table has shape ", block_table.sizes(), "; it must be [", q.size(0), ", max_blocks].");
  TORCH_CHECK(block_table.size(1) <= 1 || block_table.stride(1) == 1, op, ": block_table has strides ",
              block_table.strides(), "; the entries of a row must lie side by side: pass block_table.contiguous().");
  TORCH_CHECK(block_table.size(1) <= kMostTokens / k_cache.size(1), op, ": block_table has shape ", block_table.sizes(),
              "; a row may stand for at most ", kMostTokens, " tokens.");
  TORCH_CHECK(is_dense(context_lens) && context_lens.dim() == 1 && context_lens.size(0) == q.size(0), op,
              ": context_lens has shape ", context_lens.sizes(), "; it must be dense and [", q.size(0), "].");
}

struct Inputs {
  const Tensor &q, &k_cache, &v_cache, &block_table, &context_lens;
  double scale;
};

template <Backend B>
qwen::PagedAttention checked(const char* op, const Inputs& in) {
  qwen::check_device(B, op, "q", in.q);
  const qwen::Dtype dtype = attention_dtype(op, "q", in.q);
  check_query(op, in.q);
  check_caches(op, in.q, in.k_cache, in.v_cache);
  check_table(op, in.q, in.k_cache, in.block_table, in.context_lens);
  TORCH_CHECK(std::isfinite(in.scale), op, ": scale is ", in.scale, "; it must be a finite number.");
  return {in.q.const_data_ptr(),
          in.k_cache.const_data_ptr(),
          in.v_cache.const_data_ptr(),
          static_cast<const int32_t*>(in.block_table.const_data_ptr()),
          static_cast<const int32_t*>(in.context_lens.const_data_ptr()),
          nullptr,
          in.q.size(0),
          in.q.size(1),
          in.k_cache.size(2),
          in.q.size(2),
          in.k_cache.size(0),
          in.k_cache.size(1),
          in.block_table.size(1),
          in.q.stride(0),
          in.block_table.stride(0),
          static_cast<float>(in.scale),
          dtype};
}

Tensor new_output(const Tensor& q, qwen::PagedAttention& args) {
  Tensor out = at::empty(q.sizes(), q.options());
  args.out = out.mutable_data_ptr();
  return out;
}

void add_known(const qwen::KnownOperands& known, const Inputs& in) {
  known.add("q", in.q.const_data_ptr(), qwen::span_bytes(in.q), false);
  known.add("k_cache", in.k_cache.const_data_ptr(), qwen::span_bytes(in.k_cache), false);
  known.add("v_cache", in.v_cache.const_data_ptr(), qwen::span_bytes(in.v_cache), false);
  known.add("block_table", in.block_table.const_data_ptr(), qwen::span_bytes(in.block_table), false);
  known.add("context_lens", in.context_lens.const_data_ptr(), qwen::span_bytes(in.context_lens), false);
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
  qwen::PagedAttention args = checked<B>(op, in);
  Tensor out = new_output(q, args);
  if (args.batch == 0) return out;
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, args.batch * args.kv_heads, 1,
                     [&](int64_t first, int64_t last) { qwen::cpu::paged_attention(args, first, last); });
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, in);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_paged_attention_grouped)>(qwen::find_launcher(B, op))(args,
                                                                                          qwen::current_stream(q));
  }
  return out;
}

// The parts of a workspace: o, m, l, and a counter for each KV head where the kernel needs them (kv_heads > 0).
qwen::Partials partials_in(const char* op,
                           const Tensor& workspace,
                           int64_t batch,
                           int64_t query_heads,
                           int64_t kv_heads,
                           int64_t head_dim,
                           int64_t partitions) {
  TORCH_CHECK(partitions >= 1 && partitions <= kMostGrid, op, ": partitions is ", partitions,
              "; it must be 1 to 65535.");
  TORCH_CHECK(workspace.scalar_type() == at::kFloat && is_dense(workspace), op, ": workspace has dtype ",
              workspace.scalar_type(), " and strides ", workspace.strides(), "; it must be float32 and dense.");
  check_alignment(op, "workspace", workspace);
  const int64_t rows = batch * query_heads * partitions, needed = rows * (head_dim + 2) + batch * kv_heads;
  TORCH_CHECK(workspace.numel() >= needed, op, ": workspace has ", workspace.numel(), " elements; it must have ",
              needed, ": qwen_cuda.operators.attention_workspace makes one.");
  auto* o = static_cast<float*>(workspace.mutable_data_ptr());
  float* m = o + rows * head_dim;
  return {o, m, m + rows, reinterpret_cast<uint32_t*>(m + 2 * rows), partitions};
}

template <Backend B>
qwen::PagedAttentionSplit checked_split(
    const char* op, const Inputs& in, int64_t partition_size, int64_t partitions, const Tensor& workspace) {
  const qwen::PagedAttention a = checked<B>(op, in);
  TORCH_CHECK(partition_size >= qwen::kPartitionGrain && partition_size % qwen::kPartitionGrain == 0, op,
              ": partition_size is ", partition_size, "; it must be a multiple of ", qwen::kPartitionGrain, ".");
  TORCH_CHECK(workspace.device() == in.q.device(), op, ": workspace is on ", workspace.device(), " and q on ",
              in.q.device(), "; they must be on one device.");
  const auto partials = partials_in(op, workspace, a.batch, a.query_heads, a.kv_heads, a.head_dim, partitions);
  TORCH_CHECK(partition_size <= kMostTokens / partitions, op, ": partition_size is ", partition_size,
              " and partitions ", partitions, "; their product must be at most ", kMostTokens, ".");
  qwen::check_apart(op, "workspace", workspace, "q", in.q);
  qwen::check_apart(op, "workspace", workspace, "k_cache", in.k_cache);
  qwen::check_apart(op, "workspace", workspace, "v_cache", in.v_cache);
  return {a, partials, partition_size};
}

void split_on_cpu(const qwen::PagedAttentionSplit& args) {
  const int64_t rows = args.attention.batch * args.attention.kv_heads * args.partials.partitions;
  at::parallel_for(0, rows, 1,
                   [&](int64_t first, int64_t last) { qwen::cpu::paged_attention_partials(args, first, last); });
}

void merge_on_cpu(const qwen::MergePartitions& args) {
  at::parallel_for(0, args.batch * args.query_heads, 8,
                   [&](int64_t first, int64_t last) { qwen::cpu::merge_partitions(args, first, last); });
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
                             const Tensor& workspace) {
  const char* op = "paged_attention_split";
  const Inputs in{q, k_cache, v_cache, block_table, context_lens, scale};
  qwen::PagedAttentionSplit args = checked_split<B>(op, in, partition_size, partitions, workspace);
  Tensor out = new_output(q, args.attention);
  const qwen::PagedAttention& a = args.attention;
  if (a.batch == 0) return out;
  if constexpr (B == Backend::kCpu) {
    split_on_cpu(args);
    merge_on_cpu({args.partials, a.out, a.batch, a.query_heads, a.head_dim, a.dtype});
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, in);
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
  const qwen::PagedAttentionSplit args = checked_split<B>(op, in, partition_size, partitions, workspace);
  if (args.attention.batch == 0) return;
  if constexpr (B == Backend::kCpu) {
    split_on_cpu(args);
  } else {
    const c10::DeviceGuard guard(q.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, in);
    known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
    reinterpret_cast<decltype(&qwen_paged_attention_partials)>(qwen::find_launcher(B, op))(args,
                                                                                           qwen::current_stream(q));
  }
}

template <Backend B>
void merge_partitions(const Tensor& workspace, const Tensor& out, int64_t partitions) {
  const char* op = "merge_partitions";
  qwen::check_device(B, op, "out", out);
  const qwen::Dtype dtype = attention_dtype(op, "out", out);
  TORCH_CHECK(out.dim() == 3 && is_dense(out) && (out.size(2) == 64 || out.size(2) == 128), op, ": out has shape ",
              out.sizes(), " and strides ", out.strides(),
              "; it must be dense and [batch, query_heads, head_dim], head_dim 64 or 128.");
  TORCH_CHECK(out.size(0) <= kMostGrid, op, ": out has shape ", out.sizes(),
              "; at most 65535 sequences are supported.");
  TORCH_CHECK(workspace.device() == out.device(), op, ": workspace is on ", workspace.device(), " and out on ",
              out.device(), "; they must be on one device.");
  const auto partials = partials_in(op, workspace, out.size(0), out.size(1), 0, out.size(2), partitions);
  qwen::check_apart(op, "out", out, "workspace", workspace);
  const qwen::MergePartitions args{partials, out.mutable_data_ptr(), out.size(0), out.size(1), out.size(2), dtype};
  if (out.numel() == 0) return;
  if constexpr (B == Backend::kCpu) {
    merge_on_cpu(args);
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
  m.def("paged_attention_split(" QWEN_SPLIT_INPUTS ") -> Tensor");
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
