// A token drawn from a row of logits, as loops and a sort: the keys, thresholds and sums of the kernel without its
// histograms. Arithmetic is rounded operation by operation, so that tokens are the same.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLn2 = 0.6931471805599453;
constexpr uint64_t kOne = uint64_t{1} << 40;  // the mass of the most likely token

// Four random words. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
struct Philox {
  uint32_t word[4];

  Philox(uint64_t seed, uint64_t draw, uint32_t group) : word{group, 0, uint32_t(draw), uint32_t(draw >> 32)} {
    auto key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t first = uint64_t{0xd2511f53} * word[0], second = uint64_t{0xcd9e8d57} * word[2];
      word[0] = uint32_t(second >> 32) ^ word[1] ^ key0;
      word[1] = uint32_t(second);
      word[2] = uint32_t(first >> 32) ^ word[3] ^ key1;
      word[3] = uint32_t(first);
      key0 += 0x9e3779b9, key1 += 0xbb67ae85;
    }
  }
};

float log_of_ratio(float difference, float total) {
  const float z = difference / total, square = z * z;
  float series = square * float(1.0 / 9);
  for (const double divisor : {7.0, 5.0, 3.0}) series = (series + float(1.0 / divisor)) * square;
  return (z + z) * (series + 1.0f);
}

float natural_log(float y) {
  const auto bits = static_cast<int32_t>(bits_of(y));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float mantissa = float_of(static_cast<uint32_t>(bits - exponent * (1 << 23)));
  return float(exponent) * kLn2 + log_of_ratio(mantissa - 1.0f, mantissa + 1.0f);
}

float gumbel(uint32_t word) {
  constexpr float kScale = 1.0f / 4294967296.0f;
  const float v = (float(word) + 0.5f) * kScale, u = (float(~word) + 0.5f) * kScale;
  return -natural_log(-(word < 1u << 30 ? log_of_ratio(-v, 2.0f - v) : natural_log(u)));
}

// e^d * 2^40 for d at most 0.
uint64_t mass_of(float d) {
  const float power = std::max(d * float(1.4426950408889634), -63.0f);
  const float whole = std::nearbyint(power), rest = (power - whole) * kLn2;
  float series = rest * float(1.0 / 5040);
  for (const double divisor : {720.0, 120.0, 24.0, 6.0, 2.0, 1.0}) series = (series + float(1.0 / divisor)) * rest;
  return uint64_t((series + 1.0f) * 0x1p24f) << 16 >> -int(whole);
}

uint64_t share_of(float p, uint64_t total) {
  const auto places = uint64_t(std::max(p, 0.0f) * 0x1p24f);
  const uint64_t low = (1 << 24) - 1;
  return (total >> 24) * places + (((total & low) * places + low) >> 24);
}

// The smallest of the largest numbers that together reach the share p of the masses of all that are at least `least`.
float nucleus(const std::vector<float>& x, float largest, float least, float p) {
  std::vector<float> sorted;
  uint64_t total = 0, sum = 0;
  for (const float one : x) {
    if (one >= least) sorted.push_back(one), total += mass_of(one - largest);
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const uint64_t limit = std::max<uint64_t>(share_of(p, total), 1);
  for (const float one : sorted) {
    sum += mass_of(one - largest);
    if (sum >= limit) return one;
  }
  return least;
}

bool is_seen(const SampleTokens& a, int64_t row, int64_t token) {
  return uint32_t(a.seen[row * a.seen_words + token / 32]) >> token % 32 & 1;
}

int64_t drawn(const SampleTokens& a, int64_t row) {
  const float penalty = a.repetition_penalty[row], temperature = a.temperature[row];
  const bool greedy = !(temperature >= 1e-6f);
  std::vector<float> x(a.logits + row * a.vocab, a.logits + (row + 1) * a.vocab);
  for (int64_t i = 0; i < a.vocab; ++i) {
    if (penalty != 1.0f && is_seen(a, row, i)) x[i] = x[i] < 0.0f ? x[i] * penalty : x[i] / penalty;
    if (!greedy) x[i] /= temperature;
    if (x[i] != x[i]) return -1;
  }
  const auto first_largest = std::max_element(x.begin(), x.end());
  const float largest = *first_largest;
  if (!std::isfinite(largest)) return -1;
  if (greedy) return first_largest - x.begin();

  float least = -kInfinity;
  if (a.top_k[row] > 0 && a.top_k[row] < a.vocab) {
    std::vector<float> sorted = x;
    const auto kth = sorted.begin() + a.top_k[row] - 1;
    std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
    least = *kth;
  }
  if (a.top_p[row] < 1.0f) least = nucleus(x, largest, least, a.top_p[row]);
  const uint64_t min_mass = a.min_p[row] > 0.0f ? uint64_t(std::min(a.min_p[row], 1.0f) * float(kOne)) : 0;

  int64_t token = -1;
  float best = -kInfinity;
  for (int64_t first = 0; first < a.vocab; first += 4) {
    const Philox random(uint64_t(a.seeds[row]), uint64_t(a.draws[row]), uint32_t(first / 4));
    for (int64_t i = first; i < std::min(first + 4, a.vocab); ++i) {
      if (!(x[i] >= least) || mass_of(x[i] - largest) < min_mass) continue;
      const float sum = x[i] - largest + gumbel(random.word[i - first]);
      if (sum > best) best = sum, token = i;
    }
  }
  return token;
}

}  // namespace

void sample_tokens(const SampleTokens& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t token = drawn(a, row);
    a.token[row] = token;
    if (token < 0) continue;
    int32_t& word = a.seen[row * a.seen_words + token / 32];
    word = int32_t(uint32_t(word) | uint32_t{1} << token % 32);
  }
}

}  // namespace qwen::cpu
