// operators.h: what a kernel file gives to the bindings, as plain C++: neither CUDA's headers nor PyTorch's.
//
// A launcher gets raw pointers that the bindings have checked, enqueues its kernels on `stream` and returns. It
// allocates nothing and never waits. It throws a std::exception whose text is a sentence.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;

#define QWEN_EXPORT extern "C" __attribute__((visibility("default")))

namespace qwen {

enum class Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// --8<-- [start:rms_norm]
// out[r, :] = weight * x[r, :] / sqrt(mean(x[r, :]^2) + eps), rounded once.
struct RmsNorm {
  const void* x;       // [rows, hidden]
  const void* weight;  // [hidden]
  void* out;           // [rows, hidden]; may be x itself
  int64_t rows, hidden;
  int64_t x_stride, out_stride;  // elements from one row to the next
  float eps;
  Dtype dtype;
  bool hf_rounding;  // x * scale is rounded too, as in Hugging Face's order of operations
};
// --8<-- [end:rms_norm]

// sum = x + residual in fp32; out = the norm of sum, rounded once; residual_out = sum, rounded once.
struct AddRmsNorm {
  const void* x;         // [rows, hidden]
  const void* residual;  // [rows, hidden]
  const void* weight;    // [hidden]
  void* out;             // [rows, hidden]; may be x itself
  void* residual_out;    // [rows, hidden]; may be residual itself
  int64_t rows, hidden;
  int64_t x_stride, residual_stride, out_stride, residual_out_stride;
  float eps;
  Dtype dtype;
  bool hf_rounding;  // the sum is rounded before it is normed, and sum * scale is rounded too
};

// --8<-- [start:silu_mul]
// out[r, i] = silu(gate_up[r, i]) * gate_up[r, size + i], rounded once; silu(z) is
// z / (1 + exp(-z)).
struct SiluMul {
  const void* gate_up;                 // [rows, 2 * size]: gate, then up
  void* out;                           // [rows, size]
  int64_t rows, size;                  // size: the width of gate, of up and of out
  int64_t gate_up_stride, out_stride;  // elements from one row to the next
  Dtype dtype;
  bool hf_rounding;  // silu(gate) is rounded too
};
// --8<-- [end:silu_mul]

// --8<-- [start:qk_norm_rope_cache_write]
// Each token's row of qkv holds its heads of Q, of K and of V, of 128 elements each. Heads
// of Q and K are normed and rotated by the token's position, in fp32 and rounded once. K
// goes to the token's slot of k_cache, V as it is to that of v_cache. To the kernel a cache
// is an array of slots: slot s is place s % block_size of block s / block_size. A slot that
// the cache does not have, such as -1, is not written. A position that cos_sin does not
// have gives NaN and writes nothing.
struct QkNormRopeCacheWrite {
  const void* qkv;           // [tokens, (num_heads + 2 * num_kv_heads) * 128]
  const void* q_weight;      // [128]
  const void* k_weight;      // [128]
  const float* cos_sin;      // [max_positions, 128]: 64 cosines, then 64 sines
  const void* positions;     // [tokens], int64_t or int32_t
  const void* slot_mapping;  // [tokens], int64_t or int32_t
  void* q;                   // [tokens, num_heads, 128]
  void* k;                   // [tokens, num_kv_heads, 128], or null: K is not returned
  void* k_cache;             // [num_slots, num_kv_heads, 128]
  void* v_cache;             // [num_slots, num_kv_heads, 128]
  int64_t tokens, num_slots, max_positions;
  int64_t qkv_stride, cos_sin_stride;  // elements from one row to the next
  int32_t num_heads, num_kv_heads;
  float eps;
  Dtype dtype;                      // kFloat16 or kBFloat16
  bool wide_positions, wide_slots;  // int64_t, not int32_t
};
// --8<-- [end:qk_norm_rope_cache_write]

// --8<-- [start:paged_attention]
// out[s, h, :] is the sum of p[t] * v[t, h / group, :] over t, rounded once, where p is the
// softmax of scale * q[s, h, :] . k[t, h / group, :] over t < context_lens[s]. Token t of
// sequence s lies in slot t % block_size of block block_table[s, t / block_size]. A context
// of 0 gives zeros. An entry that is no block of the cache is skipped with all its tokens.
struct PagedAttention {
  const void* q;                // [batch, query_heads, head_dim]; heads aligned to 16 bytes
  const void* k_cache;          // [num_blocks, block_size, kv_heads, head_dim], aligned too
  const void* v_cache;          // the same
  const int32_t* block_table;   // [batch, max_blocks]
  const int32_t* context_lens;  // [batch]; below 0 is 0, and what the table holds is most
  void* out;                    // [batch, query_heads, head_dim]
  int64_t batch;
  int64_t query_heads, kv_heads;         // query_heads / kv_heads is 1 to 8
  int64_t head_dim;                      // 64 or 128
  int64_t num_blocks, block_size;        // block_size: a power of two from 8 to 256
  int64_t max_blocks;                    // of a sequence
  int64_t q_stride, block_table_stride;  // elements from one sequence to the next
  float scale;
  Dtype dtype;  // kFloat16 or kBFloat16
};
// --8<-- [end:paged_attention]

// --8<-- [start:partials]
// What partition p knows of query head h of sequence s, for any p in [0, partitions):
// m[s, h, p], the largest score times log2(e), -inf without tokens; l[s, h, p], the sum of
// 2^(score - m), 0 without; o[s, h, p, :], that of 2^(score - m) * v, undefined without.
struct Partials {
  float* o;           // [batch, query_heads, partitions, head_dim]
  float* m;           // [batch, query_heads, partitions]
  float* l;           // [batch, query_heads, partitions]
  uint32_t* arrived;  // [batch, kv_heads]; 0 before and after each launch
  int64_t partitions;
};
// --8<-- [end:partials]

// How the partitions of a sequence come together: by the blocks of a thread block cluster, which
// needs 2, 4, 8 or 16 partitions and compute capability 9.0; or by the block that ends last.
// kFastest: by a cluster of up to 8, where it is possible. The result has the same bits.
enum class Merge : int32_t { kFastest = 0, kCluster = 1, kLastBlock = 2, kLeavePartials = 3 };

// A context is cut into partitions of partition_size tokens (a multiple of 16), or of more where it has more than
// partitions * partition_size tokens: partition_tokens() says of how many.
struct PagedAttentionSplit {
  PagedAttention attention;
  Partials partials;
  int64_t partition_size;
  Merge merge;
};

// --8<-- [start:fused_decode_attention]
// The last token of each sequence is new: its Q, K and V come as a row of token.qkv. One
// launch does what qk_norm_rope_cache_write does to that row, to the same bits in the cache,
// and then paged attention by partitions over the sequence with it, within the same bound as
// paged_attention_split. token.q, token.k and attention.q are null. With `prefetch` everything
// but qkv is read while the kernels ahead in the stream still run: none of them may write the
// tokens before, weights, indices, the table.
struct FusedDecodeAttention {
  QkNormRopeCacheWrite token;
  PagedAttentionSplit split;
  bool prefetch;
};
// --8<-- [end:fused_decode_attention]

// out[s, h, :] = the merge of all partitions, rounded once.
struct MergePartitions {
  Partials partials;
  void* out;  // [batch, query_heads, head_dim]
  int64_t batch, query_heads, head_dim;
  Dtype dtype;
};

// --8<-- [start:decode_linear]
// out[r, :] = x[r, :] W^T + residual[r, :], rounded once. With norm_weight x[r, :] is
// normed first: x[r, :] * norm_weight / sqrt(mean(x[r, :]^2) + eps). With silu_mul W holds
// gate's rows, then up's, and out = silu(gate) * up. All in fp32 until the one rounding.
struct DecodeLinear {
  const void* x;                      // [batch, k]
  const void* weight;                 // [n, k], without gaps
  const void* norm_weight;            // [k], or null
  const void* residual;               // [batch, n] as out, or null; not with silu_mul
  void* out;                          // [batch, n], with silu_mul [batch, n / 2]
  int64_t batch, n, k;                // batch: 1 to 8
  int64_t x_stride, residual_stride;  // elements from one row to the next
  float eps;
  Dtype dtype;               // of weight and norm_weight: kFloat16 or kBFloat16
  Dtype x_dtype, out_dtype;  // the same, or kFloat32
  bool silu_mul;
  bool prefetch;  // weight and norm_weight may be read while kernels ahead still run
};
// --8<-- [end:decode_linear]

// --8<-- [start:head]
// What a head reads: rows of x, or their RMSNorm, in fp32 and not rounded in between.
struct HeadInput {
  const void* x;            // [batch, k]
  const void* norm_weight;  // [k], or null: x as it is
  int64_t batch, k;         // batch: 1 to 8
  int64_t x_stride;         // elements from one row to the next
  float eps;
  Dtype dtype, norm_dtype;  // of x, of norm_weight
  bool prefetch;            // weights are read before the kernels ahead have ended
};

// Row r stands for qweight[r, c] * scales[r, c / group].
struct W8Weight {
  const int8_t* qweight;  // [n, k]
  const float* scales;    // [n, k / group]
  int64_t n, group;       // group: 32, 64, 128 or k
};

// out[i, r] = input[i, :] . weight[r, :], rounded once.
struct W8A16Linear {
  HeadInput input;
  W8Weight weight;
  void* out;        // [batch, n]
  Dtype out_dtype;  // kFloat32, or that of x
};
// --8<-- [end:head]

// --8<-- [start:argmax]
// ids[i] = the lowest r for which input[i, :] . weight[r, :] is largest, in fp32; -1 where that
// is infinite or NaN, which is larger than everything.
struct Argmax {
  int64_t* ids;         // [batch]
  uint64_t* workspace;  // [9]; 0 before and after each launch
};
// --8<-- [end:argmax]

struct HeadArgmax {
  HeadInput input;
  const void* weight;  // [n, k]
  int64_t n;
  Dtype weight_dtype;  // kFloat16 or kBFloat16
  Argmax result;
};

struct W8A16Argmax {
  HeadInput input;
  W8Weight weight;
  Argmax result;
};

// --8<-- [start:advance_decode]
// The end of a decode step: row r goes on with token ids[r]. Its position is the number of
// tokens before it, context_lens[r]; there history holds it, and draws counts it. Its
// embedding is h[r, :], the next step's input; its slot is the one that block_table[r, :] has
// for the position; context_lens counts it. A row whose table has no block of the cache for
// it comes to rest with it, and one for which ids holds no token, or history no place, without
// it; and stays so: context_lens -1, position 0, slot -1, h 0.
struct AdvanceDecode {
  const int64_t* ids;          // [batch]
  const void* embedding;       // [vocab, hidden]
  const int32_t* block_table;  // [batch, max_blocks]
  int32_t* context_lens;       // [batch]
  int32_t* positions;          // [batch]
  int32_t* slot_mapping;       // [batch]
  int64_t* draws;              // [batch]
  int64_t* history;            // [batch, max_context]; may be memory of the host
  float* h;                    // [batch, hidden]
  int64_t batch, vocab, hidden, num_blocks, block_size, max_blocks, max_context;
  int64_t block_table_stride, history_stride;  // elements from one row to the next
  Dtype dtype;                                 // of embedding: kFloat16 or kBFloat16
};
// --8<-- [end:advance_decode]

// --8<-- [start:quantized]
// Numbers in groups of `group` neighbours with a scale each: number = code * scale.
enum class ValueFormat : int32_t { kNone = 0, kE4M3 = 1, kE2M1 = 2 };  // e2m1: two to a byte
enum class ScaleFormat : int32_t { kUE8M0 = 0, kE4M3 = 1, kFloat32 = 2 };

// The codes of head h of slot s begin at data + (s >> block_shift) * data_block_stride
// + (s % block_size * heads + h) * data_row_stride, where block_size is 2^block_shift. Its scales
// are found alike. Strides count bytes.
struct QuantizedLayout {
  int64_t data_block_stride, scale_block_stride;
  int64_t data_row_stride, scale_row_stride;
  int32_t heads, block_shift;
  int32_t group;  // 16, 32, 64 or 128
  ValueFormat values;
  ScaleFormat scale_format;
};
struct QuantizedRows {
  uint8_t* data;
  uint8_t* scales;
};
// --8<-- [end:quantized]

// What of a head is given back, in the dtype of x: after the norm; after the rotation and the
// Hadamard transform; or what its codes stand for.
enum class Stage : int32_t { kNone = 0, kNorm = 1, kTransform = 2, kCastBack = 3 };

// --8<-- [start:norm_rope_hadamard_quant_store]
// Each head of x goes through the stages that are on: norm, rotation of its last rotary_dim
// elements, Hadamard transform, in fp32 and then rounded once to the dtype of x; group
// quantisation of that; the store. Heads from num_keys on are V: they are quantised as they are.
// A slot outside of [0, num_slots) is not written. A position that cos_sin does not have gives
// NaN, and writes nothing to a slot.
// num_queries heads stand before all others: their norm has query_weight, and once rotated
// they go to query_out alone.
struct NormRopeHadamardQuantStore {
  const void* x;             // [tokens, heads, head_dim]
  const void* norm_weight;   // [head_dim], or null: no norm
  const float* cos_sin;      // [max_positions, rotary_dim], or null: no rotation
  const void* positions;     // [tokens], int64_t or int32_t
  const void* slot_mapping;  // [tokens], or null: token t has slot t, whatever its position
  void* out;                 // [tokens, heads, head_dim], or null
  const void* query_weight;  // [head_dim]; null with norm_weight, and without queries
  void* query_out;           // [tokens, num_queries, head_dim]; null without queries
  QuantizedRows k, v;        // of the num_keys heads after the queries, and of the others
  QuantizedLayout layout;    // of both; values is kNone without quantisation
  int64_t tokens, num_slots, max_positions;
  int64_t token_stride, head_stride, cos_sin_stride;  // elements
  int32_t heads, num_queries, num_keys, head_dim;     // head_dim: 128 or 512
  int32_t rotary_dim;                                 // a multiple of 8
  float eps;
  float hadamard_scale;             // 0: no transform
  Stage stage;                      // of out
  bool interleaved;                 // pairs are (2 i, 2 i + 1), not (i, i + rotary_dim / 2)
  bool conjugate;                   // turns backwards
  Dtype dtype;                      // of x, norm_weight and out
  bool wide_positions, wide_slots;  // int64_t, not int32_t
};
// --8<-- [end:norm_rope_hadamard_quant_store]

// --8<-- [start:sample_tokens]
// token[r] is drawn from row r of logits: penalty of tokens in `seen`, temperature, top-k, top-p,
// min-p, and then the first largest of logit + Gumbel noise, whose random numbers are those of
// (seed, draw, token). The token is added to `seen`. -1, and nothing added, where the largest
// logit is not finite.
struct SampleTokens {
  const float* logits;              // [batch, vocab]
  const float* temperature;         // [batch]; below 1e-6 the largest logit is taken
  const int32_t* top_k;             // [batch]; 0 keeps all
  const float* top_p;               // [batch]; 1 keeps all
  const float* min_p;               // [batch]; 0 keeps all
  const float* repetition_penalty;  // [batch]; 1 does nothing
  const int64_t* seeds;             // [batch]
  const int64_t* draws;             // [batch]: tokens that the row has drawn before
  int32_t* seen;                    // [batch, seen_words], one bit a token
  int64_t* token;                   // [batch]
  int64_t batch, vocab;             // vocab: up to 2^20
  int64_t seen_words;               // of a row: vocab / 32, rounded up
};
// --8<-- [end:sample_tokens]

// --8<-- [start:paged_attention_quantized]
// Paged attention by partitions over the numbers that the codes of a cache stand for. With
// hadamard_scale each query head is multiplied by Sylvester's matrix times it: the writer
// transformed the keys so. Rows of codes begin at multiples of 16 bytes; layout.heads is
// attention.kv_heads, head_dim is 128, and attention.k_cache and v_cache are null.
struct PagedAttentionQuantized {
  PagedAttentionSplit split;
  QuantizedRows k, v;      // read only
  QuantizedLayout layout;  // of both
  float hadamard_scale;    // 0: no transform
};
// --8<-- [end:paged_attention_quantized]

// --8<-- [start:fused_decode_attention_quantized]
// The last token of each sequence is new: its Q, K and V come as a row of token.qkv. One launch
// does what norm_rope_hadamard_quant_store does to that row, and then paged attention over the
// codes with it, to the same bits as both in turn. token.q and token.k, attention.q and all
// 16-bit caches are null; codes go to attention.k and attention.v. FP4 codes are NVFP4 or MXFP4.
// `prefetch` is as in FusedDecodeAttention.
struct FusedDecodeAttentionQuantized {
  QkNormRopeCacheWrite token;
  PagedAttentionQuantized attention;
  bool prefetch;
};
// --8<-- [end:fused_decode_attention_quantized]

}  // namespace qwen

QWEN_EXPORT void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_add_rms_norm(const qwen::AddRmsNorm& args, cudaStream_t stream);
QWEN_EXPORT void qwen_silu_mul(const qwen::SiluMul& args, cudaStream_t stream);
QWEN_EXPORT void qwen_qk_norm_rope_cache_write(const qwen::QkNormRopeCacheWrite& args, cudaStream_t stream);
QWEN_EXPORT void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream);
// The partitions of a sequence are merged by the block that ends last: one launch.
QWEN_EXPORT void qwen_paged_attention_split(const qwen::PagedAttentionSplit& args, cudaStream_t stream);
// Leaves the partials, for merge_partitions; attention.out is not used, and merge is kLeavePartials.
QWEN_EXPORT void qwen_paged_attention_partials(const qwen::PagedAttentionSplit& args, cudaStream_t stream);
QWEN_EXPORT void qwen_merge_partitions(const qwen::MergePartitions& args, cudaStream_t stream);
QWEN_EXPORT void qwen_fused_decode_attention(const qwen::FusedDecodeAttention& args, cudaStream_t stream);
QWEN_EXPORT void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream);
QWEN_EXPORT void qwen_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream);
QWEN_EXPORT void qwen_head_argmax(const qwen::HeadArgmax& args, cudaStream_t stream);
QWEN_EXPORT void qwen_w8a16_argmax(const qwen::W8A16Argmax& args, cudaStream_t stream);
QWEN_EXPORT void qwen_advance_decode(const qwen::AdvanceDecode& args, cudaStream_t stream);
QWEN_EXPORT void qwen_norm_rope_hadamard_quant_store(const qwen::NormRopeHadamardQuantStore& args, cudaStream_t stream);
QWEN_EXPORT void qwen_sample_tokens(const qwen::SampleTokens& args, cudaStream_t stream);
QWEN_EXPORT void qwen_paged_attention_quantized(const qwen::PagedAttentionQuantized& args, cudaStream_t stream);
QWEN_EXPORT void qwen_fused_decode_attention_quantized(const qwen::FusedDecodeAttentionQuantized& args,
                                                       cudaStream_t stream);
