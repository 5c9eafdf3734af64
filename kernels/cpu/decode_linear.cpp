// decode_linear on a CPU: a row of the weights is widened once and multiplied by each row of x.
#include <cmath>
#include <vector>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

constexpr int64_t kSums = 16;  // that run side by side, so that the compiler can keep them in vector registers

// The sum of a[i] * b[i]. Its order depends on k alone.
float dot(const float* a, const float* b, int64_t k) {
  float sums[kSums] = {}, total = 0.0f;
  int64_t i = 0;
  for (; i + kSums <= k; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < k; ++i) sums[i % kSums] += a[i] * b[i];
  for (const float sum : sums) total += sum;
  return total;
}

float silu(float z) {
  const float power = std::exp(-std::fabs(z));  // as in decode_linear.cu
  return (z < 0.0f ? z * power : z) / (1.0f + power);
}

// The rows of x as the weights meet them: widened, and times the gain of the norm where there is one.
struct Input {
  std::vector<float> values, scale;  // [batch, k], [batch]
};

template <class W, class X>
Input input_of(const DecodeLinear& a) {
  Input in{std::vector<float>(a.batch * a.k), std::vector<float>(a.batch, 1.0f)};
  const W* gain = static_cast<const W*>(a.norm_weight);
  for (int64_t r = 0; r < a.batch; ++r) {
    const X* x = static_cast<const X*>(a.x) + r * a.x_stride;
    float* values = in.values.data() + r * a.k;
    for (int64_t i = 0; i < a.k; ++i) values[i] = static_cast<float>(x[i]);
    if (gain == nullptr) continue;
    in.scale[r] = 1.0f / std::sqrt(dot(values, values, a.k) / static_cast<float>(a.k) + a.eps);
    for (int64_t i = 0; i < a.k; ++i) values[i] *= static_cast<float>(gain[i]);
  }
  return in;
}

template <class W, class X, class Out>
void columns(const DecodeLinear& a, int64_t first, int64_t last) {
  const Input in = input_of<W, X>(a);
  const int64_t width = a.silu_mul ? a.n / 2 : a.n;
  std::vector<float> row(a.k), up(a.silu_mul ? a.k : 0);
  const auto widen = [&](int64_t n, std::vector<float>& to) {
    const W* weights = static_cast<const W*>(a.weight) + n * a.k;
    for (int64_t i = 0; i < a.k; ++i) to[i] = static_cast<float>(weights[i]);
  };
  for (int64_t n = first; n < last; ++n) {
    widen(n, row);
    if (a.silu_mul) widen(width + n, up);
    for (int64_t r = 0; r < a.batch; ++r) {
      const float* x = in.values.data() + r * a.k;
      float value = dot(row.data(), x, a.k) * in.scale[r];
      if (a.silu_mul) value = silu(value) * (dot(up.data(), x, a.k) * in.scale[r]);
      if (a.residual != nullptr) {
        value += static_cast<float>(static_cast<const Out*>(a.residual)[r * a.residual_stride + n]);
      }
      static_cast<Out*>(a.out)[r * width + n] = Out(value);
    }
  }
}

template <class W>
void columns_of(const DecodeLinear& a, int64_t first, int64_t last) {
  const bool wide_x = a.x_dtype == Dtype::kFloat32, wide_out = a.out_dtype == Dtype::kFloat32;
  if (wide_x && wide_out) return columns<W, float, float>(a, first, last);
  if (wide_x) return columns<W, float, W>(a, first, last);
  if (wide_out) return columns<W, W, float>(a, first, last);
  columns<W, W, W>(a, first, last);
}

}  // namespace

void decode_linear(const DecodeLinear& args, int64_t first, int64_t last) {
  if (args.dtype == Dtype::kFloat16) return columns_of<Float16>(args, first, last);
  columns_of<BFloat16>(args, first, last);
}

}  // namespace qwen::cpu
