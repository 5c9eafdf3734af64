// Paged attention on a CPU: a KV head's keys and values are converted once for all query heads of its group.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu_operators.h"
#include "head_stages.h"
#include "narrow_floats.h"
#include "number_formats.h"
#include "partitions.h"

namespace qwen::cpu {
namespace {

constexpr float kLog2OfE = 1.4426950408889634f;
constexpr int kTurn = 32;  // tokens between two rescalings
constexpr int kWidest = 128, kMostGroup = 8, kLanes = 16;

struct State {
  float m = -INFINITY, l = 0.0f;
  float o[kWidest] = {};

  // Makes room for scores up to `largest`; kLanes-wise loops become vector instructions.
  void raise(float largest, int dim) {
    const float higher = std::max(m, largest);
    if (higher == m) return;
    const float factor = std::exp2(m - higher);  // 0 from -inf
    m = higher;
    l *= factor;
    for (int i = 0; i < dim; ++i) o[i] *= factor;
  }
};

float dot(const float* a, const float* b, int dim) {
  float lanes[kLanes] = {}, sum = 0.0f;
  for (int i = 0; i < dim; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (const float lane : lanes) sum += lane;
  return sum;
}

// The rows of a cache in 16 bits, as fp32 numbers.
template <class T>
struct PlainRows {
  const PagedAttention& a;

  void read(const void* cache, int64_t block, int64_t place, int64_t kv_head, float* row) const {
    const T* from = static_cast<const T*>(cache) + ((block * a.block_size + place) * a.kv_heads + kv_head) * a.head_dim;
    for (int i = 0; i < a.head_dim; ++i) row[i] = static_cast<float>(from[i]);
  }
  void key(int64_t block, int64_t place, int64_t kv_head, float* row) const {
    read(a.k_cache, block, place, kv_head, row);
  }
  void value(int64_t block, int64_t place, int64_t kv_head, float* row) const {
    read(a.v_cache, block, place, kv_head, row);
  }
  void query(float*) const {}
};

// Those of a cache of codes: code times scale. Queries are transformed where the keys are.
struct CodedRows {
  const PagedAttentionQuantized& args;

  float scale(const uint8_t* scales, int64_t group) const {
    if (args.layout.scale_format == ScaleFormat::kUE8M0) return from_ue8m0(scales[group]);
    if (args.layout.scale_format == ScaleFormat::kE4M3) return from_e4m3(scales[group]);
    float value;
    std::memcpy(&value, scales + 4 * group, 4);
    return value;
  }
  void read(const QuantizedRows& rows, int64_t block, int64_t place, int64_t kv_head, float* row) const {
    const QuantizedLayout& at = args.layout;
    const int64_t index = place * at.heads + kv_head;
    const uint8_t* data = rows.data + block * at.data_block_stride + index * at.data_row_stride;
    const uint8_t* scales = rows.scales + block * at.scale_block_stride + index * at.scale_row_stride;
    for (int64_t i = 0; i < args.split.attention.head_dim; ++i) {
      const bool e4m3 = at.values == ValueFormat::kE4M3;
      row[i] = e4m3 ? from_e4m3(data[i]) : from_e2m1(data[i / 2] >> 4 * (i % 2) & 15u);
      row[i] *= scale(scales, i / at.group);
    }
  }
  void key(int64_t block, int64_t place, int64_t kv_head, float* row) const {
    read(args.k, block, place, kv_head, row);
  }
  void value(int64_t block, int64_t place, int64_t kv_head, float* row) const {
    read(args.v, block, place, kv_head, row);
  }
  void query(float* head) const {
    if (args.hadamard_scale != 0) hadamard(head, args.hadamard_scale);
  }
};

// --8<-- [start:attend]
// What tokens [begin, end) of a sequence give each query head of KV head `kv_head`.
template <class T, class Rows>
void attend(const PagedAttention& a,
            const Rows& rows,
            int64_t sequence,
            int64_t kv_head,
            int begin,
            int end,
            std::vector<State>& states) {
  const int dim = int(a.head_dim), group = int(a.query_heads / a.kv_heads);
  const T* q = static_cast<const T*>(a.q) + sequence * a.q_stride + kv_head * group * dim;
  const int32_t* table = a.block_table + sequence * a.block_table_stride;
  float query[kMostGroup][kWidest], row[kWidest], score[kMostGroup][kTurn];
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < dim; ++i) query[g][i] = static_cast<float>(q[g * dim + i]) * (a.scale * kLog2OfE);
    rows.query(query[g]);
  }
  // A token's block, or -1 where that is none of the cache.
  const auto block_of = [&](int token) {
    const int64_t block = table[token / a.block_size];
    return block < a.num_blocks ? block : -1;
  };
  for (int first = begin; first < end; first += kTurn) {
    const int last = std::min(first + kTurn, end);
    for (int t = first; t < last; ++t) {
      const int64_t block = block_of(t);
      if (block >= 0) rows.key(block, t % a.block_size, kv_head, row);
      for (int g = 0; g < group; ++g) score[g][t - first] = block >= 0 ? dot(query[g], row, dim) : -INFINITY;
    }
    for (int g = 0; g < group; ++g) {
      float largest = -INFINITY;
      for (int t = first; t < last; ++t) largest = std::fmax(largest, score[g][t - first]);
      states[g].raise(largest, dim);
    }
    for (int t = first; t < last; ++t) {
      const int64_t block = block_of(t);
      if (block < 0) continue;
      rows.value(block, t % a.block_size, kv_head, row);
      for (int g = 0; g < group; ++g) {
        if (score[g][t - first] == -INFINITY) continue;  // weighs nothing, also where nothing else was seen
        const float weight = std::exp2(score[g][t - first] - states[g].m);
        states[g].l += weight;
        for (int i = 0; i < dim; ++i) states[g].o[i] += weight * row[i];
      }
    }
  }
}
// --8<-- [end:attend]

template <class T>
void write(const State& state, T* out, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) out[i] = T(state.l == 0.0f ? 0.0f : state.o[i] / state.l);
}

template <class F>
void with_type(Dtype dtype, F f) {
  if (dtype == Dtype::kFloat16) return f(Float16{});
  f(BFloat16{});
}

int context_of(const PagedAttention& a, int64_t sequence) {
  return tokens_in(a.context_lens[sequence], a.max_blocks, a.block_size);
}

template <class T, class Rows>
void leave_partials(const PagedAttentionSplit& args, const Rows& rows, int64_t first, int64_t last) {
  const PagedAttention& a = args.attention;
  const int64_t group = a.query_heads / a.kv_heads, partitions = args.partials.partitions;
  for (int64_t row = first; row < last; ++row) {
    std::vector<State> states(group);
    const int64_t head = row / partitions, partition = row % partitions, sequence = head / a.kv_heads;
    const int context = context_of(a, sequence);
    const int64_t tokens = partition_tokens(context, int(args.partition_size), int(partitions));
    const int begin = int(std::min<int64_t>(partition * tokens, context));
    const int end = int(std::min<int64_t>(begin + tokens, context));
    attend<T>(a, rows, sequence, head % a.kv_heads, begin, end, states);
    for (int64_t g = 0; g < group; ++g) {
      const int64_t at = (head * group + g) * partitions + partition;
      args.partials.m[at] = states[g].m;
      args.partials.l[at] = states[g].l;
      std::copy_n(states[g].o, a.head_dim, args.partials.o + at * a.head_dim);
    }
  }
}

}  // namespace

void paged_attention(const PagedAttention& a, int64_t first, int64_t last) {
  const int64_t group = a.query_heads / a.kv_heads;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = first; row < last; ++row) {
      std::vector<State> states(group);
      const int64_t sequence = row / a.kv_heads;
      attend<T>(a, PlainRows<T>{a}, sequence, row % a.kv_heads, 0, context_of(a, sequence), states);
      for (int64_t g = 0; g < group; ++g) {
        write(states[g], static_cast<T*>(a.out) + (row * group + g) * a.head_dim, a.head_dim);
      }
    }
  });
}

void paged_attention_partials(const PagedAttentionSplit& args, int64_t first, int64_t last) {
  with_type(args.attention.dtype, [&](auto zero) {
    using T = decltype(zero);
    leave_partials<T>(args, PlainRows<T>{args.attention}, first, last);
  });
}

void paged_attention_quantized(const PagedAttentionQuantized& args, int64_t first, int64_t last) {
  with_type(args.split.attention.dtype,
            [&](auto zero) { leave_partials<decltype(zero)>(args.split, CodedRows{args}, first, last); });
}

// --8<-- [start:merge]
void merge_partitions(const MergePartitions& a, int64_t first, int64_t last) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = first; row < last; ++row) {
      State all;
      for (int64_t at = row * a.partials.partitions; at < (row + 1) * a.partials.partitions; ++at) {
        if (a.partials.l[at] == 0.0f) continue;  // no tokens, and no o
        all.raise(a.partials.m[at], int(a.head_dim));
        const float weight = std::exp2(a.partials.m[at] - all.m);
        all.l += weight * a.partials.l[at];
        for (int64_t i = 0; i < a.head_dim; ++i) all.o[i] += weight * a.partials.o[at * a.head_dim + i];
      }
      write(all, static_cast<T*>(a.out) + row * a.head_dim, a.head_dim);
    }
  });
}
// --8<-- [end:merge]

}  // namespace qwen::cpu
