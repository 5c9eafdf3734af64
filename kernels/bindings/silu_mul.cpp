// silu_mul: schema, checks, output, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr int64_t kGrain = 1 << 14;  // elements that one CPU thread takes at a time

template <Backend B>
Tensor silu_mul(const Tensor& gate_up, bool hf_rounding) {
  const char* op = "silu_mul";
  qwen::check_device(B, op, "gate_up", gate_up);
  const qwen::Dtype dtype = qwen::dtype_of(op, "gate_up", gate_up);
  const qwen::Rows in = qwen::rows_of(op, "gate_up", gate_up);
  TORCH_CHECK(in.hidden % 2 == 0, op, ": gate_up has shape ", gate_up.sizes(),
              "; its last dimension must be even: gate in its first half, up in its second.");
  at::DimVector shape(gate_up.sizes());
  const int64_t size = shape.back() /= 2;
  Tensor out = at::empty(shape, gate_up.options());
  if (in.rows == 0) return out;
  const qwen::SiluMul args{
      gate_up.const_data_ptr(), out.mutable_data_ptr(), in.rows, size, in.stride, size, dtype, hf_rounding};
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, in.rows, std::max<int64_t>(1, kGrain / size),
                     [&](int64_t first, int64_t last) { qwen::cpu::silu_mul(args, first, last); });
  } else {
    const c10::DeviceGuard guard(gate_up.device());
    const qwen::KnownOperands known(B, op);
    known.add("gate_up", args.gate_up, qwen::span_bytes(gate_up), false);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_silu_mul)>(qwen::find_launcher(B, op))(args, qwen::current_stream(gate_up));
  }
  return out;
}

void define(torch::Library& m) {
  m.def("silu_mul(Tensor gate_up, *, bool hf_rounding=False) -> Tensor");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  m.impl("silu_mul", &silu_mul<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("silu_mul", &silu_mul<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("silu_mul", &silu_mul<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("silu_mul", &silu_mul<Backend::kSim>);
}
