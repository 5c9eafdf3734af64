#include "checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

namespace qwen {

void check_device(Backend backend, const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK(backend != Backend::kSim || t.is_cpu(), op, ": ", name, " is on ", t.device(),
              "; the simulator runs on the CPU: pass ", name, ".cpu(), or call torch.ops.qwen_cuda.");
}

Dtype dtype_of(const char* op, const char* name, const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBFloat16;
    default:
      TORCH_CHECK(false, op, ": ", name, " has dtype ", t.scalar_type(), "; it must be float32, float16 or bfloat16.");
  }
}

Rows rows_of(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " has layout ", t.layout(), "; it must be a dense tensor.");
  TORCH_CHECK(t.dim() >= 1, op, ": ", name, " has no dimension; it must have shape [..., hidden].");
  const int64_t hidden = t.size(-1);
  TORCH_CHECK(hidden >= 1, op, ": ", name, " has shape ", t.sizes(), "; its last dimension must not be empty.");
  TORCH_CHECK(hidden == 1 || t.stride(-1) == 1, op, ": ", name, " has strides ", t.strides(),
              "; the elements of a row must lie side by side: pass ", name, ".contiguous().");
  Rows out{t.numel() / hidden, hidden, hidden};
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TORCH_CHECK(out.rows <= kMost && hidden <= kMost, op, ": ", name, " has shape ", t.sizes(),
              "; at most 2147483647 rows of at most as many elements are supported.");
  bool first = true;
  int64_t next = 0;  // the stride that the next outer dimension must have for the rows to keep one distance
  for (int64_t d = t.dim() - 2; d >= 0 && out.rows > 0; --d) {
    if (t.size(d) == 1) continue;
    if (first) out.stride = t.stride(d);
    TORCH_CHECK(first || t.stride(d) == next, op, ": ", name, " has shape ", t.sizes(), " and strides ", t.strides(),
                "; its rows must lie at one distance: pass ", name, ".contiguous().");
    next = t.stride(d) * t.size(d);
    first = false;
  }
  return out;
}

Rows written_rows_of(const char* op, const char* name, const at::Tensor& t) {
  const Rows rows = rows_of(op, name, t);
  TORCH_CHECK(rows.rows <= 1 || rows.stride >= rows.hidden, op, ": ", name, " has strides ", t.strides(),
              "; it is written, so its rows must not overlap: pass ", name, ".contiguous().");
  return rows;
}

void check_same(const char* op, const char* name, const at::Tensor& t, const char* like_name, const at::Tensor& like) {
  TORCH_CHECK(t.device() == like.device(), op, ": ", name, " is on ", t.device(), " and ", like_name, " on ",
              like.device(), "; they must be on one device.");
  TORCH_CHECK(t.scalar_type() == like.scalar_type(), op, ": ", name, " has dtype ", t.scalar_type(), " and ", like_name,
              " ", like.scalar_type(), "; they must have one dtype.");
}

void check_weight(const char* op, const at::Tensor& weight, const char* like_name, const at::Tensor& like) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == like.size(-1), op, ": weight has shape ", weight.sizes(),
              "; it must be [", like.size(-1), "], the last dimension of ", like_name, ".");
  TORCH_CHECK(weight.layout() == at::kStrided && (weight.size(0) == 1 || weight.stride(0) == 1), op,
              ": weight has gaps between its elements; pass weight.contiguous().");
  check_same(op, "weight", weight, like_name, like);
}

void check_eps(const char* op, double eps) {
  TORCH_CHECK(std::isfinite(eps) && eps >= 0, op, ": eps is ", eps, "; it must be a finite number, 0 or more.");
}

bool check_indices(
    const char* op, const char* name, const at::Tensor& indices, const char* like_name, const at::Tensor& like) {
  const bool wide = indices.scalar_type() == at::kLong;
  TORCH_CHECK(wide || indices.scalar_type() == at::kInt, op, ": ", name, " has dtype ", indices.scalar_type(),
              "; it must be int64 or int32.");
  TORCH_CHECK(indices.dim() == 1 && indices.size(0) == like.size(0), op, ": ", name, " has shape ", indices.sizes(),
              "; it must be [", like.size(0), "], one for each row of ", like_name, ".");
  TORCH_CHECK(indices.is_contiguous(), op, ": ", name, " has gaps between its elements; pass ", name, ".contiguous().");
  TORCH_CHECK(indices.device() == like.device(), op, ": ", name, " is on ", indices.device(), " and ", like_name,
              " on ", like.device(), "; they must be on one device.");
  return wide;
}

void check_apart(const char* op, const char* a_name, const at::Tensor& a, const char* b_name, const at::Tensor& b) {
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  TORCH_CHECK(first + span_bytes(a) <= second || second + span_bytes(b) <= first, op, ": ", a_name, " and ", b_name,
              " share memory; ", a_name, " is written, so they must be apart.");
}

std::size_t span_bytes(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return static_cast<std::size_t>(last + 1) * t.element_size();
}

cudaStream_t current_stream(const at::Tensor& t) {
  if (!t.is_cuda()) return nullptr;
  const c10::impl::VirtualGuardImpl device(t.device().type());
  return static_cast<cudaStream_t>(device.getStream(t.device()).native_handle());
}

}  // namespace qwen
