// The output head: schemas, checks, outputs, and the way to the kernels of w8a16_linear, head_argmax and w8a16_argmax.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <optional>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr int64_t kMostBatch = 8, kMostColumns = 12288, kMostRows = INT32_MAX;
constexpr int64_t kWorkspace = kMostBatch + 1;  // a count, and a key for each row of x
constexpr int64_t kGrain = 1 << 18;             // elements of the weight that one CPU thread takes at a time

using OptionalTensor = std::optional<Tensor>;

bool is_dense(const Tensor& t) {
  return t.layout() == at::kStrided && t.is_contiguous();
}

void check_on_device_of_x(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  TORCH_CHECK(t.device() == x.device(), op, ": ", name, " is on ", t.device(), " and x on ", x.device(),
              "; they must be on one device.");
}

void check_dense(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(is_dense(t), op, ": ", name, " has gaps or another layout; pass ", name, ".contiguous().");
}

template <Backend B>
qwen::HeadInput checked_input(
    const char* op, const Tensor& x, const OptionalTensor& norm_weight, double eps, bool prefetch) {
  qwen::check_device(B, op, "x", x);
  const qwen::Dtype dtype = qwen::dtype_of(op, "x", x);
  TORCH_CHECK(x.dim() == 2, op, ": x has shape ", x.sizes(), "; it must be [batch, k].");
  const qwen::Rows rows = qwen::rows_of(op, "x", x);
  TORCH_CHECK(rows.rows <= kMostBatch, op, ": x has shape ", x.sizes(), "; at most 8 rows are supported.");
  TORCH_CHECK(rows.hidden <= kMostColumns, op, ": x has shape ", x.sizes(), "; at most ", kMostColumns,
              " columns are supported.");
  qwen::check_eps(op, eps);
  qwen::HeadInput in{x.const_data_ptr(), nullptr, rows.rows, rows.hidden, rows.stride,
                     float(eps),         dtype,   dtype,     prefetch};
  if (norm_weight) {
    TORCH_CHECK(norm_weight->dim() == 1 && norm_weight->size(0) == rows.hidden, op, ": norm_weight has shape ",
                norm_weight->sizes(), "; it must be [", rows.hidden, "], the last dimension of x.");
    check_dense(op, "norm_weight", *norm_weight);
    check_on_device_of_x(op, "norm_weight", *norm_weight, x);
    in.norm_weight = norm_weight->const_data_ptr();
    in.norm_dtype = qwen::dtype_of(op, "norm_weight", *norm_weight);
  }
  return in;
}

void check_matrix(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  TORCH_CHECK(t.dim() == 2 && t.size(0) >= 1 && t.size(0) <= kMostRows && t.size(1) == x.size(1), op, ": ", name,
              " has shape ", t.sizes(), "; it must be [n, ", x.size(1), "], n from 1 to ", kMostRows,
              ", with the columns of x.");
  check_dense(op, name, t);
  check_on_device_of_x(op, name, t, x);
}

qwen::W8Weight checked_weight(const char* op, const Tensor& qweight, const Tensor& scales, const Tensor& x) {
  TORCH_CHECK(qweight.scalar_type() == at::kChar, op, ": qweight has dtype ", qweight.scalar_type(),
              "; it must be int8.");
  check_matrix(op, "qweight", qweight, x);
  const int64_t n = qweight.size(0), k = qweight.size(1);
  TORCH_CHECK(scales.scalar_type() == at::kFloat, op, ": scales has dtype ", scales.scalar_type(),
              "; it must be float32.");
  TORCH_CHECK(scales.dim() == 2 && scales.size(0) == n && scales.size(1) >= 1 && k % scales.size(1) == 0, op,
              ": scales has shape ", scales.sizes(), "; it must be [", n, ", groups], where groups divides ", k, ".");
  const int64_t group = k / scales.size(1);
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == k, op, ": scales has shape ", scales.sizes(),
              ", a scale for each ", group, " of ", k, " columns; it must be one for 32, 64, 128 or all of them.");
  check_dense(op, "scales", scales);
  check_on_device_of_x(op, "scales", scales, x);
  return {static_cast<const int8_t*>(qweight.const_data_ptr()), static_cast<const float*>(scales.const_data_ptr()), n,
          group};
}

Tensor new_ids(const Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(at::kLong));
}

qwen::Argmax checked_result(const char* op, const Tensor& workspace, const Tensor& ids, const Tensor& x) {
  TORCH_CHECK(workspace.scalar_type() == at::kLong && workspace.dim() == 1 && workspace.numel() >= kWorkspace, op,
              ": workspace has dtype ", workspace.scalar_type(), " and shape ", workspace.sizes(),
              "; it must be int64 and [9]: qwen_cuda.operators.argmax_workspace makes one.");
  check_dense(op, "workspace", workspace);
  check_on_device_of_x(op, "workspace", workspace, x);
  qwen::check_apart(op, "workspace", workspace, "x", x);
  return {static_cast<int64_t*>(ids.mutable_data_ptr()), static_cast<uint64_t*>(workspace.mutable_data_ptr())};
}

void add_known(const qwen::KnownOperands& known, const Tensor& x, const OptionalTensor& norm_weight) {
  known.add("x", x.const_data_ptr(), qwen::span_bytes(x), false);
  if (norm_weight) known.add("norm_weight", norm_weight->const_data_ptr(), qwen::span_bytes(*norm_weight), false);
}

void add_known(const qwen::KnownOperands& known, const Tensor& qweight, const Tensor& scales) {
  known.add("qweight", qweight.const_data_ptr(), qwen::span_bytes(qweight), false);
  known.add("scales", scales.const_data_ptr(), qwen::span_bytes(scales), false);
}

void add_known(const qwen::KnownOperands& known, const Tensor& workspace, const Tensor& ids, const qwen::Argmax&) {
  known.add("workspace", workspace.const_data_ptr(), qwen::span_bytes(workspace), true);
  known.add("ids", ids.const_data_ptr(), qwen::span_bytes(ids), true);
}

int64_t grain(int64_t k) {
  return std::max<int64_t>(1, kGrain / k);
}

// Each thread finds the largest key of its rows of the weight; the largest of those is that of all.
template <class Keys>
void argmax_on_cpu(const qwen::HeadInput& in, int64_t n, const qwen::Argmax& result, Keys keys_of) {
  std::array<uint64_t, kMostBatch> best{};
  std::mutex lock;
  at::parallel_for(0, n, grain(in.k), [&](int64_t first, int64_t last) {
    std::array<uint64_t, kMostBatch> mine{};
    keys_of(first, last, mine.data());
    const std::lock_guard<std::mutex> guard(lock);
    for (int64_t i = 0; i < kMostBatch; ++i) best[i] = std::max(best[i], mine[i]);
  });
  for (int64_t i = 0; i < in.batch; ++i) result.ids[i] = qwen::cpu::id_of(best[i]);
}

template <Backend B>
Tensor w8a16_linear(const Tensor& x,
                    const Tensor& qweight,
                    const Tensor& scales,
                    const OptionalTensor& norm_weight,
                    double eps,
                    std::optional<at::ScalarType> out_dtype,
                    bool prefetch) {
  const char* op = "w8a16_linear";
  const qwen::HeadInput in = checked_input<B>(op, x, norm_weight, eps, prefetch);
  const qwen::W8Weight weight = checked_weight(op, qweight, scales, x);
  const at::ScalarType type = out_dtype.value_or(x.scalar_type());
  TORCH_CHECK(type == at::kFloat || type == x.scalar_type(), op, ": out_dtype is ", type,
              "; it must be float32 or that of x, ", x.scalar_type(), ".");
  Tensor out = at::empty({in.batch, weight.n}, x.options().dtype(type));
  if (in.batch == 0) return out;
  const qwen::W8A16Linear args{in, weight, out.mutable_data_ptr(), qwen::dtype_of(op, "out", out)};
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, weight.n, grain(in.k),
                     [&](int64_t first, int64_t last) { qwen::cpu::w8a16_linear(args, first, last); });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, x, norm_weight);
    add_known(known, qweight, scales);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_w8a16_linear)>(qwen::find_launcher(B, op))(args, qwen::current_stream(x));
  }
  return out;
}

template <Backend B>
Tensor head_argmax(const Tensor& x,
                   const Tensor& weight,
                   const OptionalTensor& norm_weight,
                   double eps,
                   const Tensor& workspace,
                   bool prefetch) {
  const char* op = "head_argmax";
  const qwen::HeadInput in = checked_input<B>(op, x, norm_weight, eps, prefetch);
  TORCH_CHECK(weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf, op, ": weight has dtype ",
              weight.scalar_type(), "; it must be bfloat16 or float16.");
  check_matrix(op, "weight", weight, x);
  Tensor ids = new_ids(x);
  const qwen::HeadArgmax args{in, weight.const_data_ptr(), weight.size(0), qwen::dtype_of(op, "weight", weight),
                              checked_result(op, workspace, ids, x)};
  if (in.batch == 0) return ids;
  if constexpr (B == Backend::kCpu) {
    argmax_on_cpu(in, args.n, args.result, [&](int64_t first, int64_t last, uint64_t* keys) {
      qwen::cpu::head_argmax(args, first, last, keys);
    });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, x, norm_weight);
    known.add("weight", args.weight, qwen::span_bytes(weight), false);
    add_known(known, workspace, ids, args.result);
    reinterpret_cast<decltype(&qwen_head_argmax)>(qwen::find_launcher(B, op))(args, qwen::current_stream(x));
  }
  return ids;
}

template <Backend B>
Tensor w8a16_argmax(const Tensor& x,
                    const Tensor& qweight,
                    const Tensor& scales,
                    const OptionalTensor& norm_weight,
                    double eps,
                    const Tensor& workspace,
                    bool prefetch) {
  const char* op = "w8a16_argmax";
  const qwen::HeadInput in = checked_input<B>(op, x, norm_weight, eps, prefetch);
  const qwen::W8Weight weight = checked_weight(op, qweight, scales, x);
  Tensor ids = new_ids(x);
  const qwen::W8A16Argmax args{in, weight, checked_result(op, workspace, ids, x)};
  if (in.batch == 0) return ids;
  if constexpr (B == Backend::kCpu) {
    argmax_on_cpu(in, weight.n, args.result, [&](int64_t first, int64_t last, uint64_t* keys) {
      qwen::cpu::w8a16_argmax(args, first, last, keys);
    });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, op);
    add_known(known, x, norm_weight);
    add_known(known, qweight, scales);
    add_known(known, workspace, ids, args.result);
    reinterpret_cast<decltype(&qwen_w8a16_argmax)>(qwen::find_launcher(B, op))(args, qwen::current_stream(x));
  }
  return ids;
}

#define QWEN_HEAD_OPTIONS "*, Tensor? norm_weight=None, float eps=1e-06, "

void define(torch::Library& m) {
  m.def("w8a16_linear(Tensor x, Tensor qweight, Tensor scales, " QWEN_HEAD_OPTIONS
        "ScalarType? out_dtype=None, bool prefetch=False) -> Tensor");
  m.def("head_argmax(Tensor x, Tensor weight, " QWEN_HEAD_OPTIONS
        "Tensor(a!) workspace, bool prefetch=False) -> Tensor");
  m.def("w8a16_argmax(Tensor x, Tensor qweight, Tensor scales, " QWEN_HEAD_OPTIONS
        "Tensor(a!) workspace, bool prefetch=False) -> Tensor");
}

template <Backend B>
void implement(torch::Library& m) {
  m.impl("w8a16_linear", &w8a16_linear<B>);
  m.impl("head_argmax", &head_argmax<B>);
  m.impl("w8a16_argmax", &w8a16_argmax<B>);
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
