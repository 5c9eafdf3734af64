// norm_rope_hadamard_quant_store: schema, checks, and the way to the kernels. What is legal beyond what memory demands
// is said by the argument objects of kernels/qwen_cuda/operators/kv_arguments.py.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpu_operators.h"
#include "quantized_arguments.h"

namespace {

using at::Tensor;
using qwen::Backend;
using Args = qwen::NormRopeHadamardQuantStore;
using Maybe = std::optional<Tensor>;

constexpr const char* kOp = "norm_rope_hadamard_quant_store";

// All tensors of a call, and which of them are written.
struct Operands {
  std::vector<std::pair<const char*, const Tensor*>> read, written;

  void check_apart() const {
    for (size_t i = 0; i < written.size(); ++i) {
      const auto against = [&](const auto& other) {
        qwen::check_apart(kOp, written[i].first, *written[i].second, other.first, *other.second);
      };
      for (size_t j = i + 1; j < written.size(); ++j) against(written[j]);
      for (const auto& one : read) against(one);
    }
  }
};

void take_x(Args& a, const Tensor& x) {
  a.dtype = qwen::dtype_of(kOp, "x", x);
  TORCH_CHECK(x.layout() == at::kStrided && x.dim() == 3 && (x.size(2) == 128 || x.size(2) == 512), kOp,
              ": x has shape ", x.sizes(), "; it must be [tokens, heads, head_dim] with a head_dim of 128 or 512.");
  TORCH_CHECK(x.size(1) >= 1 && x.size(0) * x.size(1) < (int64_t(1) << 31) - 4, kOp, ": x has shape ", x.sizes(),
              "; it must have from 1 to 2147483643 heads, over all tokens.");
  TORCH_CHECK(x.stride(2) == 1 && x.stride(0) % 4 == 0 && x.stride(1) % 4 == 0, kOp, ": x has strides ", x.strides(),
              "; the elements of a head must lie side by side, and heads at distances that are multiples of 4: pass "
              "x.contiguous().");
  qwen::check_aligned(kOp, "x", x.const_data_ptr(), 4 * x.element_size());
  a.x = x.const_data_ptr();
  a.tokens = x.size(0), a.heads = int32_t(x.size(1)), a.head_dim = int32_t(x.size(2));
  a.token_stride = x.stride(0), a.head_stride = x.stride(1), a.num_keys = a.heads;
}

const void* checked_weight(const Args& a, const Tensor& x, const char* name, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == a.head_dim && weight.is_contiguous(), kOp, ": ", name,
              " has shape ", weight.sizes(), " and strides ", weight.strides(), "; it must be [", a.head_dim,
              "], the size of a head, without gaps.");
  qwen::check_same(kOp, name, weight, "x", x);
  qwen::check_aligned(kOp, name, weight.const_data_ptr(), 4 * weight.element_size());
  return weight.const_data_ptr();
}

void take_norm(Args& a, const Tensor& x, const Tensor& weight, double eps) {
  a.norm_weight = checked_weight(a, x, "norm_weight", weight);
  qwen::check_eps(kOp, eps);
  a.eps = float(eps);
}

// The first heads of x are queries, as many as query_out has room for.
void take_queries(Args& a, const Tensor& x, const Maybe& weight, const Tensor& out) {
  TORCH_CHECK(weight.has_value() == (a.norm_weight != nullptr), kOp,
              ": query_weight and norm_weight go together; one of them is missing.");
  if (weight.has_value()) a.query_weight = checked_weight(a, x, "query_weight", *weight);
  TORCH_CHECK(out.dim() == 3 && out.size(0) == a.tokens && 1 <= out.size(1) && out.size(1) < a.heads &&
                  out.size(2) == a.head_dim && out.is_contiguous(),
              kOp, ": query_out has shape ", out.sizes(), " and strides ", out.strides(), "; it must be contiguous [",
              a.tokens, ", queries, ", a.head_dim, "], for fewer queries than x has heads, ", a.heads, ".");
  qwen::check_same(kOp, "query_out", out, "x", x);
  qwen::check_aligned(kOp, "query_out", out.const_data_ptr(), 4 * out.element_size());
  a.query_out = out.mutable_data_ptr(), a.num_queries = int32_t(out.size(1));
}

void take_rotation(Args& a, const Tensor& x, const Tensor& cos_sin, const Maybe& positions) {
  TORCH_CHECK(positions.has_value(), kOp, ": positions is missing; with cos_sin each token needs one.");
  TORCH_CHECK(cos_sin.scalar_type() == at::kFloat, kOp, ": cos_sin has dtype ", cos_sin.scalar_type(),
              "; it must be float32.");
  TORCH_CHECK(cos_sin.dim() == 2 && cos_sin.size(0) >= 1 && cos_sin.size(1) >= 8 && cos_sin.size(1) % 8 == 0 &&
                  cos_sin.size(1) <= a.head_dim,
              kOp, ": cos_sin has shape ", cos_sin.sizes(),
              "; it must be [max_positions, rotary_dim] with at least one ", "row, rotary_dim a multiple of 8 up to ",
              a.head_dim, ", the size of a head.");
  TORCH_CHECK(cos_sin.device() == x.device(), kOp, ": cos_sin is on ", cos_sin.device(), " and x on ", x.device(),
              "; they must be on one device.");
  const qwen::Rows rows = qwen::rows_of(kOp, "cos_sin", cos_sin);
  TORCH_CHECK(rows.stride % 4 == 0, kOp, ": cos_sin has strides ", cos_sin.strides(),
              "; its rows must lie a multiple of 4 elements apart: pass cos_sin.contiguous().");
  qwen::check_aligned(kOp, "cos_sin", cos_sin.const_data_ptr(), 16);
  a.wide_positions = qwen::check_indices(kOp, "positions", *positions, "x", x);
  a.cos_sin = cos_sin.const_data_ptr<float>(), a.positions = positions->const_data_ptr();
  a.max_positions = rows.rows, a.cos_sin_stride = rows.stride, a.rotary_dim = int32_t(cos_sin.size(1));
}

void take_out(Args& a, const Tensor& x, const Tensor& out) {
  TORCH_CHECK(a.stage != qwen::Stage::kNone, kOp, ": out is given and stage is \"\"; it says what out is to hold.");
  TORCH_CHECK(a.stage != qwen::Stage::kCastBack || a.layout.values != qwen::ValueFormat::kNone, kOp,
              ": stage is \"cast_back\" and values is \"\"; without codes there is nothing to cast back.");
  TORCH_CHECK(out.sizes() == x.sizes() && out.is_contiguous(), kOp, ": out has shape ", out.sizes(), " and strides ",
              out.strides(), "; it must be contiguous, of the shape of x, ", x.sizes(), ".");
  qwen::check_same(kOp, "out", out, "x", x);
  qwen::check_aligned(kOp, "out", out.const_data_ptr(), 4 * out.element_size());
  a.out = out.mutable_data_ptr();
}

// Codes and scales as tensors of their own: a slot for each token, and blocks of one.
void take_rows(Args& a, const Tensor& x, const Tensor& data, const Maybe& scales) {
  TORCH_CHECK(scales.has_value(), kOp, ": scales is missing; codes without them say nothing.");
  const auto check = [&](const char* name, const Tensor& t, int64_t bytes, int64_t alignment) {
    qwen::check_bytes(kOp, name, t, "x", x);
    TORCH_CHECK(
        t.dim() == 3 && t.size(0) == a.tokens && t.size(1) == a.heads && t.size(2) == bytes && t.is_contiguous(), kOp,
        ": ", name, " has shape ", t.sizes(), " and strides ", t.strides(), "; it must be contiguous [", a.tokens, ", ",
        a.heads, ", ", bytes, "].");
    qwen::check_aligned(kOp, name, t.const_data_ptr(), alignment);
  };
  check("data", data, qwen::value_bytes(a.layout, a.head_dim), 4);
  check("scales", *scales, qwen::scale_bytes(a.layout, a.head_dim), 4);
  qwen::QuantizedLayout& to = a.layout;
  to.data_row_stride = qwen::value_bytes(a.layout, a.head_dim),
  to.scale_row_stride = qwen::scale_bytes(a.layout, a.head_dim);
  to.data_block_stride = a.heads * to.data_row_stride, to.scale_block_stride = a.heads * to.scale_row_stride;
  to.heads = a.heads, to.block_shift = 0, a.num_slots = a.tokens;
  a.k = {data.mutable_data_ptr<uint8_t>(), scales->mutable_data_ptr<uint8_t>()};
}

// Paged caches. `where` is KVCacheFormat.strides.
void take_caches(Args& a, const Tensor& x, const Tensor& k_cache, const Maybe& v_cache, at::IntArrayRef where) {
  const int32_t stored = a.heads - a.num_queries;
  TORCH_CHECK(!v_cache.has_value() || stored % 2 == 0, kOp, ": x has ", stored,
              " heads; with v_cache it must have as many of K as of V.");
  a.num_keys = v_cache.has_value() ? stored / 2 : stored;
  const Tensor* v = v_cache.has_value() ? &*v_cache : nullptr;
  const int64_t scales_at = qwen::take_layout(kOp, a.layout, {k_cache, v, where, a.num_keys, a.head_dim}, "x", x);
  a.num_slots = k_cache.size(0) * where[0];
  const auto rows_of = [&](const Tensor& cache) {
    auto* first = cache.mutable_data_ptr<uint8_t>();
    return qwen::QuantizedRows{first, first + scales_at};
  };
  a.k = rows_of(k_cache);
  if (v_cache.has_value()) a.v = rows_of(*v_cache);
}

template <Backend B>
void norm_rope_hadamard_quant_store(const Tensor& x,
                                    const Maybe& norm_weight,
                                    double eps,
                                    const Maybe& cos_sin,
                                    const Maybe& positions,
                                    bool interleaved,
                                    bool conjugate,
                                    double hadamard_scale,
                                    std::string_view values,
                                    int64_t group,
                                    std::string_view scale_format,
                                    const Maybe& out,
                                    std::string_view stage,
                                    const Maybe& data,
                                    const Maybe& scales,
                                    const Maybe& k_cache,
                                    const Maybe& v_cache,
                                    const Maybe& slot_mapping,
                                    at::IntArrayRef cache_layout,
                                    const Maybe& query_weight,
                                    const Maybe& query_out) {
  Args a = {};
  qwen::check_device(B, kOp, "x", x);
  take_x(a, x);
  a.layout.values = qwen::named<qwen::ValueFormat>(kOp, "values", values, {"", "e4m3", "e2m1"});
  a.layout.scale_format =
      qwen::named<qwen::ScaleFormat>(kOp, "scale_format", scale_format, {"ue8m0", "e4m3", "float32"});
  a.stage = qwen::named<qwen::Stage>(kOp, "stage", stage, {"", "norm", "transform", "cast_back"});
  a.interleaved = interleaved, a.conjugate = conjugate;
  if (norm_weight.has_value()) take_norm(a, x, *norm_weight, eps);
  if (cos_sin.has_value()) take_rotation(a, x, *cos_sin, positions);
  TORCH_CHECK(std::isfinite(hadamard_scale) && (hadamard_scale == 0 || a.head_dim == 128), kOp, ": hadamard_scale is ",
              hadamard_scale, " and head_dim ", a.head_dim, "; it must be finite, and 0 for heads of other than 128.");
  a.hadamard_scale = float(hadamard_scale);
  if (out.has_value()) take_out(a, x, *out);
  TORCH_CHECK(query_out.has_value() || !query_weight.has_value(), kOp, ": query_weight is given without query_out.");
  TORCH_CHECK(!query_out.has_value() || (k_cache.has_value() && !out.has_value()), kOp, ": query_out is given ",
              out.has_value() ? "with out" : "without k_cache",
              "; queries stand beside keys that go to a cache, and to nothing else.");
  if (query_out.has_value()) take_queries(a, x, query_weight, *query_out);
  TORCH_CHECK(out.has_value() || a.stage == qwen::Stage::kNone, kOp, ": stage is \"", std::string(stage),
              "\" and out is missing; it is where that goes.");

  const bool casts = a.layout.values != qwen::ValueFormat::kNone;
  if (casts) qwen::check_group(kOp, group);
  a.layout.group = int32_t(group);
  TORCH_CHECK(!(data.has_value() && k_cache.has_value()), kOp,
              ": data and k_cache are given; codes go to one of them.");
  TORCH_CHECK(casts || !(data.has_value() || k_cache.has_value()), kOp,
              ": values is \"\", and codes are to be stored; ", "it must be \"e4m3\" or \"e2m1\".");
  TORCH_CHECK(data.has_value() || !scales.has_value(), kOp, ": scales is given without data.");
  TORCH_CHECK(k_cache.has_value() || !(v_cache.has_value() || slot_mapping.has_value()), kOp,
              ": v_cache or slot_mapping is given without k_cache.");
  TORCH_CHECK(slot_mapping.has_value() || !k_cache.has_value(), kOp, ": slot_mapping is missing; with k_cache each ",
              "token needs a slot.");
  TORCH_CHECK(out.has_value() || data.has_value() || k_cache.has_value(), kOp,
              ": out, data and k_cache are missing; the result has nowhere to go.");
  if (data.has_value()) take_rows(a, x, *data, scales);
  if (k_cache.has_value()) {
    take_caches(a, x, *k_cache, v_cache, cache_layout);
    a.wide_slots = qwen::check_indices(kOp, "slot_mapping", *slot_mapping, "x", x);
    a.slot_mapping = slot_mapping->const_data_ptr();
  }

  Operands operands{{{"x", &x}}, {}};
  const auto add = [](auto& list, const char* name, const Maybe& t) {
    if (t.has_value()) list.emplace_back(name, &*t);
  };
  add(operands.read, "norm_weight", norm_weight), add(operands.read, "cos_sin", cos_sin);
  if (a.positions != nullptr) add(operands.read, "positions", positions);
  add(operands.read, "slot_mapping", slot_mapping), add(operands.read, "query_weight", query_weight);
  add(operands.written, "query_out", query_out);
  add(operands.written, "out", out), add(operands.written, "data", data), add(operands.written, "scales", scales);
  add(operands.written, "k_cache", k_cache), add(operands.written, "v_cache", v_cache);
  operands.check_apart();
  if (a.tokens == 0) return;
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, a.tokens, 8,
                     [&](int64_t first, int64_t last) { qwen::cpu::norm_rope_hadamard_quant_store(a, first, last); });
  } else {
    const c10::DeviceGuard guard(x.device());
    const qwen::KnownOperands known(B, kOp);
    for (const auto& [name, t] : operands.read) known.add(name, t->const_data_ptr(), qwen::span_bytes(*t), false);
    for (const auto& [name, t] : operands.written) known.add(name, t->const_data_ptr(), qwen::span_bytes(*t), true);
    reinterpret_cast<decltype(&qwen_norm_rope_hadamard_quant_store)>(qwen::find_launcher(B, kOp))(
        a, qwen::current_stream(x));
  }
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "norm_rope_hadamard_quant_store(Tensor x, *, Tensor? norm_weight=None,"
      " float eps=0., Tensor? cos_sin=None, Tensor? positions=None,"
      " bool interleaved=False, bool conjugate=False, float hadamard_scale=0.,"
      " str values='', int group=0, str scale_format='ue8m0',"
      " Tensor(a!)? out=None, str stage='', Tensor(b!)? data=None,"
      " Tensor(c!)? scales=None, Tensor(d!)? k_cache=None,"
      " Tensor(e!)? v_cache=None, Tensor? slot_mapping=None,"
      " int[] cache_layout=[], Tensor? query_weight=None,"
      " Tensor(f!)? query_out=None) -> ()");
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
  m.impl("norm_rope_hadamard_quant_store", &norm_rope_hadamard_quant_store<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("norm_rope_hadamard_quant_store", &norm_rope_hadamard_quant_store<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("norm_rope_hadamard_quant_store", &norm_rope_hadamard_quant_store<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("norm_rope_hadamard_quant_store", &norm_rope_hadamard_quant_store<Backend::kSim>);
}
