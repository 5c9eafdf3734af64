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

// Refuses what does not meet the contract, and says why. q and k of the result are null.
QkNormRopeCacheWrite checked_cache_write(Backend backend, const char* op, const CacheWriteInputs& in);

void add_known(const KnownOperands& known, const CacheWriteInputs& in);

// On the CPU, its threads sharing the tokens.
void cache_write_on_cpu(const QkNormRopeCacheWrite& args);

}  // namespace qwen
