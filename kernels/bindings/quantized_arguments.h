// quantized_arguments.h: what the operators over codes and scales check alike. What is legal beyond what memory demands
// is said by the argument objects of kernels/qwen_cuda.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "checks.h"

namespace qwen {

// Index of a word among those that an argument may be.
template <class Enum>
Enum named(const char* op,
           const char* name,
           std::string_view word,
           std::initializer_list<std::string_view> words,
           int32_t first = 0) {
  int32_t index = first;
  std::string all;
  for (const std::string_view one : words) {
    if (one == word) return static_cast<Enum>(index);
    all += (index++ == first ? "\"" : ", \"") + std::string(one) + "\"";
  }
  TORCH_CHECK(false, op, ": ", name, " is \"", std::string(word), "\"; it must be one of ", all, ".");
}

void check_aligned(const char* op, const char* name, const void* data, int64_t bytes);
void check_group(const char* op, int64_t group);

// Of a head.
int64_t value_bytes(const QuantizedLayout& layout, int64_t head_dim);
int64_t scale_bytes(const QuantizedLayout& layout, int64_t head_dim);

// A tensor of uint8 on the device of `like`.
void check_bytes(const char* op, const char* name, const at::Tensor& t, const char* like_name, const at::Tensor& like);

// A paged cache of K, or two of one shape. `where` is (block_size, bytes from row to row of codes, of scales, bytes to
// the first scale); a token has `heads` rows.
struct QuantizedCaches {
  const at::Tensor& k_cache;
  const at::Tensor* v_cache;  // or null
  at::IntArrayRef where;
  int64_t heads, head_dim;
};

// Checks them, and completes `layout`, whose group and formats are set. Returns the offset of the scales.
int64_t take_layout(const char* op,
                    QuantizedLayout& layout,
                    const QuantizedCaches& caches,
                    const char* like_name,
                    const at::Tensor& like);

}  // namespace qwen
