// cache_write_arguments.h: what the operators that write a new token into the paged cache check alike.
#pragma once

#include <array>
#include <utility>

#include "checks.h"

namespace qwen {

struct CacheWriteInputs {
  const at::Tensor &qkv, &q_weight, &k_weight, &cos_sin, &positions, &slot_mapping, &k_cache, &v_cache;
  double eps;
  int64_t num_heads;

  std::array<std::pair<const char*, const at::Tensor*>, 6> read() const {
    return {{{"qkv", &qkv},
             {"q_weight", &q_weight},
             {"k_weight", &k_weight},
             {"cos_sin", &cos_sin},
             {"positions", &positions},
             {"slot_mapping", &slot_mapping}}};
  }
};

// Each refuses what does not meet the contract, and says why.
void check_qkv(Backend backend, const char* op, const at::Tensor& qkv);
// Its rows, or it itself, can be read 16 bytes at a time.
void check_packs(const char* op, const char* name, const at::Tensor& t);
// Of the result q, k and both caches are null. qkv has passed check_qkv; nothing is asked of the caches but to share no
// memory with what is read.
QkNormRopeCacheWrite checked_token(const char* op, const CacheWriteInputs& in, int64_t num_kv_heads, int64_t num_slots);
// q and k of the result are null.
QkNormRopeCacheWrite checked_cache_write(Backend backend, const char* op, const CacheWriteInputs& in);

void add_known(const KnownOperands& known, const CacheWriteInputs& in);

// On the CPU, its threads sharing the tokens.
void cache_write_on_cpu(const QkNormRopeCacheWrite& args);

}  // namespace qwen
