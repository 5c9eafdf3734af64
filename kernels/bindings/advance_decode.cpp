// advance_decode: schema, checks, and the way to the kernels.
#include <torch/library.h>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "advance_decode";
constexpr int64_t kMostRows = 65535;

struct Inputs {
  const Tensor &ids, &embedding, &block_table, &context_lens, &positions, &slot_mapping, &draws, &history, &h;
  int64_t num_blocks, block_size;
};

// A tensor of `dtype` [rows], or [rows, columns] if columns is not -1 (0: any number of them), on the device of ids.
// `is_near`: it may also lie in pinned memory of the host. Returns the elements from one row to the next.
int64_t check(const char* name,
              const Tensor& t,
              const Inputs& in,
              at::ScalarType dtype,
              int64_t columns = -1,
              bool is_near = true) {
  const int64_t rows = in.ids.size(0);
  TORCH_CHECK(t.scalar_type() == dtype, kOp, ": ", name, " has dtype ", t.scalar_type(), "; it must be ", dtype, ".");
  const bool fits = columns < 0 ? t.dim() == 1 : t.dim() == 2 && (columns == 0 || t.size(1) == columns);
  TORCH_CHECK(t.layout() == at::kStrided && fits && t.size(0) == rows && t.numel() > 0, kOp, ": ", name, " has shape ",
              t.sizes(), "; it must have ", columns < 0 ? "one dimension" : "two dimensions", " and ", rows,
              " rows, as ids", columns > 0 ? ", each of " + std::to_string(columns) : std::string(), ".");
  const bool side_by_side = columns < 0 ? rows == 1 || t.stride(0) == 1 : t.size(1) == 1 || t.stride(1) == 1;
  TORCH_CHECK(side_by_side, kOp, ": ", name, " has strides ", t.strides(), "; its elements must lie side by side.");
  const bool pinned = !is_near && t.device().is_cpu() && t.is_pinned();
  TORCH_CHECK(t.device() == in.ids.device() || pinned, kOp, ": ", name, " is on ", t.device(), " and ids on ",
              in.ids.device(), "; ", is_near ? "they must be on one device." : "it must be there or in pinned memory.");
  TORCH_CHECK(columns < 0 || rows == 1 || t.stride(0) >= t.size(1), kOp, ": ", name, " has strides ", t.strides(),
              "; its rows must not overlap.");
  return columns < 0 ? 1 : t.stride(0);
}

template <Backend B>
qwen::AdvanceDecode checked(const Inputs& in) {
  qwen::check_device(B, kOp, "ids", in.ids);
  TORCH_CHECK(in.ids.dim() == 1 && in.ids.size(0) <= kMostRows, kOp, ": ids has shape ", in.ids.sizes(),
              "; it must be [rows], at most ", kMostRows, ".");
  check("ids", in.ids, in, at::kLong);
  const Tensor& embedding = in.embedding;
  const auto type = embedding.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kHalf, kOp, ": embedding has dtype ", type,
              "; it must be bfloat16 or float16.");
  TORCH_CHECK(embedding.dim() == 2 && embedding.numel() > 0 && embedding.is_contiguous(), kOp, ": embedding has shape ",
              embedding.sizes(), "; it must be a dense tensor [vocab, hidden].");
  TORCH_CHECK(embedding.device() == in.ids.device(), kOp, ": embedding is on ", embedding.device(), " and ids on ",
              in.ids.device(), "; they must be on one device.");
  TORCH_CHECK(in.block_size >= 1 && in.num_blocks >= 1 && in.num_blocks <= INT32_MAX / in.block_size, kOp,
              ": num_blocks is ", in.num_blocks, " and block_size ", in.block_size,
              "; both must be at least 1, and slots numbers of int32.");
  const int64_t table_stride = check("block_table", in.block_table, in, at::kInt, 0);
  check("context_lens", in.context_lens, in, at::kInt);
  check("positions", in.positions, in, at::kInt);
  check("slot_mapping", in.slot_mapping, in, at::kInt);
  check("draws", in.draws, in, at::kLong);
  const int64_t history_stride = check("history", in.history, in, at::kLong, 0, false);
  check("h", in.h, in, at::kFloat, embedding.size(1));
  TORCH_CHECK(in.h.is_contiguous(), kOp, ": h has gaps between its rows; its rows must lie one behind the other.");
  return {in.ids.const_data_ptr<int64_t>(),
          embedding.const_data_ptr(),
          in.block_table.const_data_ptr<int32_t>(),
          in.context_lens.mutable_data_ptr<int32_t>(),
          in.positions.mutable_data_ptr<int32_t>(),
          in.slot_mapping.mutable_data_ptr<int32_t>(),
          in.draws.mutable_data_ptr<int64_t>(),
          in.history.mutable_data_ptr<int64_t>(),
          in.h.mutable_data_ptr<float>(),
          in.ids.size(0),
          embedding.size(0),
          embedding.size(1),
          in.num_blocks,
          in.block_size,
          in.block_table.size(1),
          in.history.size(1),
          table_stride,
          history_stride,
          type == at::kHalf ? qwen::Dtype::kFloat16 : qwen::Dtype::kBFloat16};
}

template <Backend B>
void advance_decode(const Tensor& ids,
                    const Tensor& embedding,
                    const Tensor& block_table,
                    const Tensor& context_lens,
                    const Tensor& positions,
                    const Tensor& slot_mapping,
                    const Tensor& draws,
                    const Tensor& history,
                    const Tensor& h,
                    int64_t num_blocks,
                    int64_t block_size) {
  const Inputs in{ids,   embedding, block_table, context_lens, positions, slot_mapping,
                  draws, history,   h,           num_blocks,   block_size};
  const qwen::AdvanceDecode args = checked<B>(in);
  if constexpr (B == Backend::kCpu) {
    qwen::cpu::advance_decode(args, 0, args.batch);
  } else {
    const c10::DeviceGuard guard(ids.device());
    const qwen::KnownOperands known(B, kOp);
    known.add("ids", args.ids, qwen::span_bytes(ids), false);
    known.add("embedding", args.embedding, qwen::span_bytes(embedding), false);
    known.add("block_table", args.block_table, qwen::span_bytes(block_table), false);
    known.add("context_lens", args.context_lens, qwen::span_bytes(context_lens), true);
    known.add("positions", args.positions, qwen::span_bytes(positions), true);
    known.add("slot_mapping", args.slot_mapping, qwen::span_bytes(slot_mapping), true);
    known.add("draws", args.draws, qwen::span_bytes(draws), true);
    known.add("history", args.history, qwen::span_bytes(history), true);
    known.add("h", args.h, qwen::span_bytes(h), true);
    reinterpret_cast<decltype(&qwen_advance_decode)>(qwen::find_launcher(B, kOp))(args, qwen::current_stream(ids));
  }
}

void define(torch::Library& m) {
  m.def(
      "advance_decode(Tensor ids, Tensor embedding, Tensor block_table, Tensor(a!) context_lens, Tensor(b!) positions,"
      " Tensor(c!) slot_mapping, Tensor(d!) draws, Tensor(e!) history, Tensor(f!) h, int num_blocks, int block_size)"
      " -> ()");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  m.impl("advance_decode", &advance_decode<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("advance_decode", &advance_decode<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("advance_decode", &advance_decode<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("advance_decode", &advance_decode<Backend::kSim>);
}
