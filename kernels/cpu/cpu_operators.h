// cpu_operators.h: the operators as plain loops, on the rows [first, last) of their arguments. No PyTorch here: the
// bindings share the rows out among threads.
#pragma once

#include "operators.h"

namespace qwen::cpu {

void rms_norm(const RmsNorm& args, int64_t first, int64_t last);
void add_rms_norm(const AddRmsNorm& args, int64_t first, int64_t last);
void silu_mul(const SiluMul& args, int64_t first, int64_t last);
void qk_norm_rope_cache_write(const QkNormRopeCacheWrite& args, int64_t first, int64_t last);

}  // namespace qwen::cpu
