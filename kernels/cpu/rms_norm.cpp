// rms_norm and add_rms_norm on a CPU: three passes over a row that stays in the cache.
#include <cmath>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

// Independent partial sums: the compiler keeps them in vector registers, and rounding errors grow with hidden / 16.
constexpr int64_t kPartialSums = 16;

// --8<-- [start:row]
template <class T, bool kHf, class Value>
void norm_row(int64_t hidden, float eps, const T* weight, T* out, Value value) {
  float partial[kPartialSums] = {};
  int64_t i = 0;
  for (; i + kPartialSums <= hidden; i += kPartialSums) {
    for (int64_t j = 0; j < kPartialSums; ++j) partial[j] += value(i + j) * value(i + j);
  }
  float sum = 0;
  for (; i < hidden; ++i) sum += value(i) * value(i);
  for (const float part : partial) sum += part;
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
  for (i = 0; i < hidden; ++i) out[i] = T(intermediate<T, kHf>(value(i) * scale) * static_cast<float>(weight[i]));
}
// --8<-- [end:row]

template <class T, bool kHf>
void rms_norm_rows(const RmsNorm& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    norm_row<T, kHf>(a.hidden, a.eps, static_cast<const T*>(a.weight), out,
                     [x](int64_t i) { return static_cast<float>(x[i]); });
  }
}

template <class T, bool kHf>
void add_rms_norm_rows(const AddRmsNorm& a, int64_t first, int64_t last) {
  float* const sum = new float[static_cast<size_t>(a.hidden)];  // the norm sees more than the residual keeps
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    T* residual_out = static_cast<T*>(a.residual_out) + row * a.residual_out_stride;
    for (int64_t i = 0; i < a.hidden; ++i) {
      sum[i] = intermediate<T, kHf>(static_cast<float>(x[i]) + static_cast<float>(residual[i]));
      residual_out[i] = T(sum[i]);
    }
    norm_row<T, kHf>(a.hidden, a.eps, static_cast<const T*>(a.weight), out, [sum](int64_t i) { return sum[i]; });
  }
  delete[] sum;
}

}  // namespace

void rms_norm(const RmsNorm& args, int64_t first, int64_t last) {
  dispatch(args.dtype, args.hf_rounding,
           [&](auto zero, auto hf) { rms_norm_rows<decltype(zero), hf.value>(args, first, last); });
}

void add_rms_norm(const AddRmsNorm& args, int64_t first, int64_t last) {
  dispatch(args.dtype, args.hf_rounding,
           [&](auto zero, auto hf) { add_rms_norm_rows<decltype(zero), hf.value>(args, first, last); });
}

}  // namespace qwen::cpu
