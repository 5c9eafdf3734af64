// cpu_operators.h: the operators as plain loops, on the rows [first, last) of their arguments. No PyTorch here: the
// bindings share the rows out among threads.
//
// A row of decode_linear is a column of its result; one of a head is one of its weight, and an argmax of some rows is a
// key for each row of the input: the largest of keys is that of all rows. A row of attention is one KV head of one
// sequence, in the partials one partition of it; of the merge a query head.
#pragma once

#include "operators.h"

namespace qwen::cpu {

void rms_norm(const RmsNorm& args, int64_t first, int64_t last);
void add_rms_norm(const AddRmsNorm& args, int64_t first, int64_t last);
void silu_mul(const SiluMul& args, int64_t first, int64_t last);
void qk_norm_rope_cache_write(const QkNormRopeCacheWrite& args, int64_t first, int64_t last);
void norm_rope_hadamard_quant_store(const NormRopeHadamardQuantStore& args, int64_t first, int64_t last);
void paged_attention(const PagedAttention& args, int64_t first, int64_t last);
void paged_attention_partials(const PagedAttentionSplit& args, int64_t first, int64_t last);
void paged_attention_quantized(const PagedAttentionQuantized& args, int64_t first, int64_t last);  // the partials
void merge_partitions(const MergePartitions& args, int64_t first, int64_t last);
void decode_linear(const DecodeLinear& args, int64_t first, int64_t last);
void w8a16_linear(const W8A16Linear& args, int64_t first, int64_t last);
void head_argmax(const HeadArgmax& args, int64_t first, int64_t last, uint64_t* keys);
void w8a16_argmax(const W8A16Argmax& args, int64_t first, int64_t last, uint64_t* keys);
int64_t id_of(uint64_t key);  // -1 if the logit is NaN or infinite

void advance_decode(const AdvanceDecode& args, int64_t first, int64_t last);
void sample_tokens(const SampleTokens& args, int64_t first, int64_t last);

}  // namespace qwen::cpu
