// w8a16_linear, head_argmax and w8a16_argmax on a CPU: a row of the weight is converted once, for all rows of x.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

constexpr int64_t kPartialSums = 16;  // independent, so that the compiler keeps them in vector registers

float dot(const float* a, const float* b, int64_t count) {
  float partial[kPartialSums] = {}, sum = 0;
  int64_t c = 0;
  for (; c + kPartialSums <= count; c += kPartialSums) {
    for (int64_t j = 0; j < kPartialSums; ++j) partial[j] += a[c + j] * b[c + j];
  }
  for (; c < count; ++c) sum += a[c] * b[c];
  for (const float part : partial) sum += part;
  return sum;
}

// Calls f(T{}) with the type of `dtype`.
template <class F>
void of_type(Dtype dtype, F f) {
  dispatch(dtype, false, [&](auto zero, auto) { f(zero); });
}

// x or its norm: [batch, k] in fp32.
std::vector<float> input_of(const HeadInput& in) {
  std::vector<float> x(static_cast<size_t>(in.batch * in.k));
  for (int64_t i = 0; i < in.batch; ++i) {
    float* row = x.data() + i * in.k;
    of_type(in.dtype, [&](auto zero) {
      const auto* from = static_cast<const decltype(zero)*>(in.x) + i * in.x_stride;
      for (int64_t c = 0; c < in.k; ++c) row[c] = static_cast<float>(from[c]);
    });
    if (in.norm_weight == nullptr) continue;
    const float factor = 1.0f / std::sqrt(dot(row, row, in.k) / static_cast<float>(in.k) + in.eps);
    of_type(in.norm_dtype, [&](auto zero) {
      const auto* gain = static_cast<const decltype(zero)*>(in.norm_weight);
      for (int64_t c = 0; c < in.k; ++c) row[c] = row[c] * factor * static_cast<float>(gain[c]);
    });
  }
  return x;
}

// Calls take(r, i, logit) for each row r in [first, last) of an int8 weight and each row i of x.
// --8<-- [start:rows]
template <class Take>
void int8_rows(const HeadInput& in, const W8Weight& weight, int64_t first, int64_t last, Take take) {
  const std::vector<float> x = input_of(in);
  std::vector<float> q(static_cast<size_t>(in.k));
  const int64_t groups = in.k / weight.group;
  for (int64_t r = first; r < last; ++r) {
    for (int64_t c = 0; c < in.k; ++c) q[c] = weight.qweight[r * in.k + c];
    for (int64_t i = 0; i < in.batch; ++i) {
      float sum = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g * weight.group;
        sum += dot(x.data() + i * in.k + at, q.data() + at, weight.group) * weight.scales[r * groups + g];
      }
      take(r, i, sum);
    }
  }
}
// --8<-- [end:rows]

// As the kernel's key: the largest is that of the largest logit, and of equal ones that of the lowest id.
uint64_t key_of(float logit, int64_t id) {
  const uint32_t bits = bits_of(logit + 0.0f), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(logit == logit ? ordered : 0xffffffffu) << 32 | ~static_cast<uint32_t>(id);
}

}  // namespace

void w8a16_linear(const W8A16Linear& args, int64_t first, int64_t last) {
  of_type(args.out_dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* out = static_cast<T*>(args.out);
    int8_rows(args.input, args.weight, first, last,
              [&](int64_t r, int64_t i, float logit) { out[i * args.weight.n + r] = T(logit); });
  });
}

int64_t id_of(uint64_t key) {
  constexpr uint32_t kLowest = 0x00800000u, kHighest = 0xff7fffffu;  // of finite logits, as key_of() orders them
  return static_cast<uint32_t>(key >> 32) - kLowest <= kHighest - kLowest ? static_cast<uint32_t>(~key) : int64_t(-1);
}

void head_argmax(const HeadArgmax& args, int64_t first, int64_t last, uint64_t* keys) {
  const HeadInput& in = args.input;
  const std::vector<float> x = input_of(in);
  std::vector<float> w(static_cast<size_t>(in.k));
  of_type(args.weight_dtype, [&](auto zero) {
    const auto* weight = static_cast<const decltype(zero)*>(args.weight);
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < in.k; ++c) w[c] = static_cast<float>(weight[r * in.k + c]);
      for (int64_t i = 0; i < in.batch; ++i) {
        keys[i] = std::max(keys[i], key_of(dot(x.data() + i * in.k, w.data(), in.k), r));
      }
    }
  });
}

void w8a16_argmax(const W8A16Argmax& args, int64_t first, int64_t last, uint64_t* keys) {
  int8_rows(args.input, args.weight, first, last,
            [&](int64_t r, int64_t i, float logit) { keys[i] = std::max(keys[i], key_of(logit, r)); });
}

}  // namespace qwen::cpu
