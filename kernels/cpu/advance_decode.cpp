// advance_decode on a CPU.
#include <algorithm>

#include "cpu_operators.h"
#include "number_formats.h"

namespace qwen::cpu {

void advance_decode(const AdvanceDecode& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t id = args.ids[row], position = args.context_lens[row];
    float* h = args.h + row * args.hidden;
    const int64_t index = position / args.block_size;
    int64_t block = -1;
    if (0 <= id && id < args.vocab && 0 <= position && position < args.max_context) {
      args.draws[row] += 1;
      args.history[row * args.history_stride + position] = id;
      if (index < args.max_blocks) block = args.block_table[row * args.block_table_stride + index];
    }
    if (block < 0 || block >= args.num_blocks) {
      args.context_lens[row] = -1;
      args.positions[row] = 0;
      args.slot_mapping[row] = -1;
      std::fill(h, h + args.hidden, 0.0f);
      continue;
    }
    args.context_lens[row] = static_cast<int32_t>(position + 1);
    args.positions[row] = static_cast<int32_t>(position);
    args.slot_mapping[row] = static_cast<int32_t>(block * args.block_size + position % args.block_size);
    dispatch(args.dtype, false, [&](auto zero, auto) {
      const auto* from = static_cast<const decltype(zero)*>(args.embedding) + id * args.hidden;
      for (int64_t i = 0; i < args.hidden; ++i) h[i] = static_cast<float>(from[i]);
    });
  }
}

}  // namespace qwen::cpu
