// quantized_attention_arguments.h: what the operators of attention over a quantised cache check alike.
#pragma once

#include "paged_attention_arguments.h"
#include "quantized_arguments.h"

namespace qwen {

// How a cache's numbers are stored; `layout` is KVCacheFormat.strides.
struct CacheForm {
  int64_t kv_heads;
  std::string_view values;
  int64_t group;
  std::string_view scale_format;
  at::IntArrayRef layout;
  double hadamard_scale;
};

struct AttentionCut {
  int64_t partition_size, partitions;
  const at::Tensor& workspace;
  c10::string_view merge;
};

// Refuses what does not meet the contract, and says why. q has passed check_query; where the caches lie on another
// device, it is called `like_name`. Of the result out is null, and k and v are for reading.
PagedAttentionQuantized checked_quantized_attention(
    const char* op, const AttentionInputs& in, const CacheForm& form, const AttentionCut& cut, const char* like_name);

// On the CPU, its threads sharing the work.
void quantized_attention_on_cpu(const PagedAttentionQuantized& args);

}  // namespace qwen
