// silu_mul on a CPU: one pass over gate and up, in code that the compiler turns into vector instructions.
#include <cmath>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

// e^x within 2 ulp, without branches or calls: x = n ln 2 + r with |r| <= ln(2)/2, a polynomial for e^r, and 2^n in two
// factors, which reach the subnormal numbers and infinity.
inline float exp_of(float x) {
  constexpr float kTaylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  constexpr float kShift = 0x1.8p23f;  // added and subtracted, it rounds to an integer, and its last bits hold it
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // written so that NaN stays
  const float shifted = x * 0x1.715476p+0f + kShift, n = shifted - kShift;
  const float r = x - n * 0x1.62e400p-1f - n * 0x1.7f7d1cp-20f;
  float sum = 1.0f / 5040;
  for (const float coefficient : kTaylor) sum = sum * r + coefficient;
  const int32_t power = static_cast<int32_t>(bits_of(shifted) - bits_of(kShift)), half = power / 2;
  const auto two_to = [](int32_t e) { return float_of(static_cast<uint32_t>(127 + e) << 23); };
  return sum * two_to(half) * two_to(power - half);
}

// --8<-- [start:rows]
template <class T, bool kHf>
void silu_mul_rows(const SiluMul& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* gate = static_cast<const T*>(a.gate_up) + row * a.gate_up_stride;
    const T* up = gate + a.size;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    for (int64_t i = 0; i < a.size; ++i) {
      const float z = static_cast<float>(gate[i]);
      const float power = exp_of(kHf ? -z : -std::fabs(z));
      const float silu = (!kHf && z < 0.0f ? z * power : z) / (1.0f + power);  // as in silu_mul.cu
      out[i] = T(intermediate<T, kHf>(silu) * static_cast<float>(up[i]));
    }
  }
}
// --8<-- [end:rows]

}  // namespace

void silu_mul(const SiluMul& args, int64_t first, int64_t last) {
  dispatch(args.dtype, args.hf_rounding,
           [&](auto zero, auto hf) { silu_mul_rows<decltype(zero), hf.value>(args, first, last); });
}

}  // namespace qwen::cpu
