// decode_linear: schema, checks, output, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "decode_linear";
constexpr int64_t kMostRows = 8;        // of x
constexpr int64_t kMostSize = 1 << 30;  // n and k: places in a row are counted in 32 bits
constexpr int64_t kGrain = 1 << 18;     // products that one CPU thread takes at a time
constexpr int64_t kLeastColumns = 16;   // and columns, since each thread norms x for itself

struct Inputs {
  const Tensor &x, &weight;
  const std::optional<Tensor>&norm_weight, &residual;
  double eps;
  bool silu_mul, prefetch;
  std::optional<at::ScalarType> out_dtype;
};

template <Backend B>
qwen::Dtype check_weights(const Inputs& in) {
  qwen::check_device(B, kOp, "weight", in.weight);
  const auto type = in.weight.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kHalf, kOp, ": weight has dtype ", type,
              "; it must be bfloat16 or float16.");
  TORCH_CHECK(in.weight.layout() == at::kStrided && in.weight.dim() == 2 && in.weight.numel() > 0, kOp,
              ": weight has shape ", in.weight.sizes(), "; it must be a dense tensor [n, k], and not empty.");
  const int64_t n = in.weight.size(0), k = in.weight.size(1);
  TORCH_CHECK(n <= kMostSize && k <= kMostSize, kOp, ": weight has shape ", in.weight.sizes(), "; at most ", kMostSize,
              " rows of at most as many elements are supported.");
  TORCH_CHECK(in.weight.is_contiguous(), kOp, ": weight has strides ", in.weight.strides(),
              "; its rows must lie one behind the other: pass weight.contiguous().");
  TORCH_CHECK(!in.silu_mul || n % 2 == 0, kOp, ": weight has shape ", in.weight.sizes(),
              "; with silu_mul its rows must be even in number: those of gate, then those of up.");
  if (in.norm_weight) {
    const Tensor& norm = *in.norm_weight;
    TORCH_CHECK(norm.layout() == at::kStrided && norm.dim() == 1 && norm.size(0) == k, kOp, ": norm_weight has shape ",
                norm.sizes(), "; it must be [", k, "], the last dimension of weight.");
    TORCH_CHECK(k == 1 || norm.stride(0) == 1, kOp,
                ": norm_weight has gaps between its elements; pass norm_weight.contiguous().");
    qwen::check_same(kOp, "norm_weight", norm, "weight", in.weight);
  }
  return qwen::dtype_of(kOp, "weight", in.weight);
}

// x or residual: rows of `width` elements.
qwen::Rows check_rows(const char* name, const Tensor& t, const Inputs& in, int64_t width, const char* which) {
  TORCH_CHECK(t.dim() == 2 && t.size(1) == width, kOp, ": ", name, " has shape ", t.sizes(), "; it must be ", which,
              ".");
  TORCH_CHECK(t.device() == in.weight.device(), kOp, ": ", name, " is on ", t.device(), " and weight on ",
              in.weight.device(), "; they must be on one device.");
  return qwen::rows_of(kOp, name, t);
}

template <Backend B>
qwen::DecodeLinear checked(const Inputs& in) {
  qwen::check_device(B, kOp, "x", in.x);
  const qwen::Dtype dtype = check_weights<B>(in);
  const at::ScalarType type = in.weight.scalar_type(), out_type = in.out_dtype.value_or(type);
  const int64_t n = in.weight.size(0), k = in.weight.size(1);
  const std::string x_shape = "[rows, " + std::to_string(k) + "], with the last dimension of weight";
  const qwen::Rows x = check_rows("x", in.x, in, k, x_shape.c_str());
  TORCH_CHECK(x.rows >= 1 && x.rows <= kMostRows, kOp, ": x has shape ", in.x.sizes(), "; it must have 1 to ",
              kMostRows, " rows: more of them are the work of torch.nn.functional.linear.");
  TORCH_CHECK(in.x.scalar_type() == type || in.x.scalar_type() == at::kFloat, kOp, ": x has dtype ", in.x.scalar_type(),
              "; it must be that of weight, ", type, ", or float32.");
  TORCH_CHECK(out_type == type || out_type == at::kFloat, kOp, ": out_dtype is ", out_type,
              "; it must be the dtype of weight, ", type, ", or float32.");
  qwen::check_eps(kOp, in.eps);
  qwen::DecodeLinear args{in.x.const_data_ptr(),
                          in.weight.const_data_ptr(),
                          in.norm_weight ? in.norm_weight->const_data_ptr() : nullptr,
                          nullptr,
                          nullptr,
                          x.rows,
                          n,
                          k,
                          x.stride,
                          0,
                          static_cast<float>(in.eps),
                          dtype,
                          in.x.scalar_type() == at::kFloat ? qwen::Dtype::kFloat32 : dtype,
                          out_type == at::kFloat ? qwen::Dtype::kFloat32 : dtype,
                          in.silu_mul,
                          in.prefetch};
  if (in.residual) {
    TORCH_CHECK(!in.silu_mul, kOp,
                ": silu_mul and residual are both given; SiLU's product has no residual, the "
                "product after it has.");
    const std::string shape = "[" + std::to_string(x.rows) + ", " + std::to_string(n) + "], the shape of the result";
    const qwen::Rows residual = check_rows("residual", *in.residual, in, n, shape.c_str());
    TORCH_CHECK(residual.rows == x.rows, kOp, ": residual has shape ", in.residual->sizes(), "; it must be ", shape,
                ".");
    TORCH_CHECK(in.residual->scalar_type() == out_type, kOp, ": residual has dtype ", in.residual->scalar_type(),
                "; it must be that of the result, ", out_type, ".");
    args.residual = in.residual->const_data_ptr();
    args.residual_stride = residual.stride;
  }
  return args;
}

template <Backend B>
Tensor decode_linear(const Tensor& x,
                     const Tensor& weight,
                     const std::optional<Tensor>& norm_weight,
                     double eps,
                     const std::optional<Tensor>& residual,
                     bool silu_mul,
                     std::optional<at::ScalarType> out_dtype,
                     bool prefetch) {
  const Inputs in{x, weight, norm_weight, residual, eps, silu_mul, prefetch, out_dtype};
  qwen::DecodeLinear args = checked<B>(in);
  const int64_t width = silu_mul ? args.n / 2 : args.n;
  Tensor out = at::empty({args.batch, width}, weight.options().dtype(out_dtype.value_or(weight.scalar_type())));
  args.out = out.mutable_data_ptr();
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, width, std::max(kLeastColumns, kGrain / (args.batch * args.k)),
                     [&](int64_t first, int64_t last) { qwen::cpu::decode_linear(args, first, last); });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, kOp);
    known.add("x", args.x, qwen::span_bytes(x), false);
    known.add("weight", args.weight, qwen::span_bytes(weight), false);
    if (norm_weight) known.add("norm_weight", args.norm_weight, qwen::span_bytes(*norm_weight), false);
    if (residual) known.add("residual", args.residual, qwen::span_bytes(*residual), false);
    known.add("out", args.out, qwen::span_bytes(out), true);
    reinterpret_cast<decltype(&qwen_decode_linear)>(qwen::find_launcher(B, kOp))(args, qwen::current_stream(x));
  }
  return out;
}

void define(torch::Library& m) {
  m.def(
      "decode_linear(Tensor x, Tensor weight, *, Tensor? norm_weight=None, float eps=1e-06, Tensor? residual=None,"
      " bool silu_mul=False, ScalarType? out_dtype=None, bool prefetch=False) -> Tensor");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  m.impl("decode_linear", &decode_linear<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("decode_linear", &decode_linear<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("decode_linear", &decode_linear<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("decode_linear", &decode_linear<Backend::kSim>);
}
