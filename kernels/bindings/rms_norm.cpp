// rms_norm and add_rms_norm: schemas, checks, outputs, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

// Rows that one CPU thread takes at a time: about 64 Ki elements, so that starting a thread is worth it.
int64_t grain(int64_t hidden) {
  return std::max<int64_t>(1, (1 << 16) / hidden);
}

// --8<-- [start:launch]
template <Backend B>
void launch_rms_norm(const Tensor& x, const Tensor& weight, double eps, bool hf_rounding, const Tensor& out) {
  const char* op = "rms_norm";
  qwen::check_device(B, op, "x", x);
  const qwen::Dtype dtype = qwen::dtype_of(op, "x", x);
  const qwen::Rows in = qwen::rows_of(op, "x", x), to = qwen::written_rows_of(op, "x", out);
  qwen::check_weight(op, weight, "x", x);
  qwen::check_eps(op, eps);
  if (out.is_same(x)) qwen::check_apart(op, "x", x, "weight", weight);
  if (in.rows == 0) return;
  const qwen::RmsNorm args{x.const_data_ptr(),
                           weight.const_data_ptr(),
                           out.mutable_data_ptr(),
                           in.rows,
                           in.hidden,
                           in.stride,
                           to.stride,
                           static_cast<float>(eps),
                           dtype,
                           hf_rounding};
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, in.rows, grain(in.hidden),
                     [&](int64_t first, int64_t last) { qwen::cpu::rms_norm(args, first, last); });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, op);
    known.add("x", args.x, qwen::span_bytes(x), out.is_same(x));
    known.add("weight", args.weight, qwen::span_bytes(weight), false);
    if (!out.is_same(x)) known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_rms_norm)>(qwen::find_launcher(B, op))(args, qwen::current_stream(x));
  }
}
// --8<-- [end:launch]

template <Backend B>
void launch_add_rms_norm(const Tensor& x,
                         const Tensor& residual,
                         const Tensor& weight,
                         double eps,
                         bool hf_rounding,
                         const Tensor& out,
                         const Tensor& residual_out) {
  const char* op = "add_rms_norm";
  qwen::check_device(B, op, "x", x);
  const qwen::Dtype dtype = qwen::dtype_of(op, "x", x);
  const qwen::Rows in = qwen::rows_of(op, "x", x), add = qwen::rows_of(op, "residual", residual);
  const qwen::Rows to = qwen::written_rows_of(op, "x", out);
  const qwen::Rows sum = qwen::written_rows_of(op, "residual", residual_out);
  TORCH_CHECK(x.sizes() == residual.sizes(), op, ": residual has shape ", residual.sizes(), " and x ", x.sizes(),
              "; they must have one shape.");
  qwen::check_same(op, "residual", residual, "x", x);
  qwen::check_weight(op, weight, "x", x);
  qwen::check_eps(op, eps);
  const bool in_place = out.is_same(x);
  if (in_place) {
    qwen::check_apart(op, "x", x, "residual", residual);
    qwen::check_apart(op, "x", x, "weight", weight);
    qwen::check_apart(op, "residual", residual, "weight", weight);
  }
  if (in.rows == 0) return;
  const qwen::AddRmsNorm args{x.const_data_ptr(),
                              residual.const_data_ptr(),
                              weight.const_data_ptr(),
                              out.mutable_data_ptr(),
                              residual_out.mutable_data_ptr(),
                              in.rows,
                              in.hidden,
                              in.stride,
                              add.stride,
                              to.stride,
                              sum.stride,
                              static_cast<float>(eps),
                              dtype,
                              hf_rounding};
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, in.rows, grain(in.hidden),
                     [&](int64_t first, int64_t last) { qwen::cpu::add_rms_norm(args, first, last); });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, op);
    known.add("x", args.x, qwen::span_bytes(x), in_place);
    known.add("residual", args.residual, qwen::span_bytes(residual), in_place);
    known.add("weight", args.weight, qwen::span_bytes(weight), false);
    if (!in_place) {
      known.add("out", args.out, qwen::span_bytes(out), true);
      known.add("residual_out", args.residual_out, qwen::span_bytes(residual_out), true);
    }
    reinterpret_cast<decltype(&qwen_add_rms_norm)>(qwen::find_launcher(B, op))(args, qwen::current_stream(x));
  }
}

template <Backend B>
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool hf_rounding) {
  qwen::rows_of("rms_norm", "x", x);  // before memory is taken for an output of its shape
  Tensor out = at::empty(x.sizes(), x.options());
  launch_rms_norm<B>(x, weight, eps, hf_rounding, out);
  return out;
}

template <Backend B>
void rms_norm_(Tensor& x, const Tensor& weight, double eps, bool hf_rounding) {
  launch_rms_norm<B>(x, weight, eps, hf_rounding, x);
}

template <Backend B>
std::tuple<Tensor, Tensor> add_rms_norm(
    const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, bool hf_rounding) {
  qwen::rows_of("add_rms_norm", "x", x);
  Tensor out = at::empty(x.sizes(), x.options()), residual_out = at::empty(x.sizes(), x.options());
  launch_add_rms_norm<B>(x, residual, weight, eps, hf_rounding, out, residual_out);
  return {out, residual_out};
}

template <Backend B>
void add_rms_norm_(Tensor& x, Tensor& residual, const Tensor& weight, double eps, bool hf_rounding) {
  launch_add_rms_norm<B>(x, residual, weight, eps, hf_rounding, x, residual);
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def("rms_norm(Tensor x, Tensor weight, float eps, *, bool hf_rounding=False) -> Tensor");
  m.def("rms_norm_(Tensor(a!) x, Tensor weight, float eps, *, bool hf_rounding=False) -> ()");
  m.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, *, bool hf_rounding=False)"
      " -> (Tensor, Tensor)");
  m.def(
      "add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, *, bool hf_rounding=False)"
      " -> ()");
  // --8<-- [end:schema]
}

template <Backend B>
void implement(torch::Library& m) {
  m.impl("rms_norm", &rms_norm<B>);
  m.impl("rms_norm_", &rms_norm_<B>);
  m.impl("add_rms_norm", &add_rms_norm<B>);
  m.impl("add_rms_norm_", &add_rms_norm_<B>);
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
