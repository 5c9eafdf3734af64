// partitions.h: how a context is cut into partitions, the same on the CPU, on the GPU and for the bindings.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define QWEN_BOTH __host__ __device__ inline
#else
#define QWEN_BOTH inline
#endif

namespace qwen {

constexpr int kPartitionGrain = 16;  // tokens: every partition but the last is a multiple of it

// The tokens of a partition: partition_size, or as many as it takes for `partitions` of them to hold the context.
QWEN_BOTH int partition_tokens(int context, int partition_size, int partitions) {
  if (context <= int64_t(partition_size) * partitions) return partition_size;
  const int share = (context - 1) / partitions + 1;
  return (share + kPartitionGrain - 1) / kPartitionGrain * kPartitionGrain;
}

// What of a context length counts: no less than nothing, and no more than the block table can hold.
QWEN_BOTH int tokens_in(int context_len, int64_t max_blocks, int64_t block_size) {
  const int64_t most = max_blocks * block_size;
  return context_len < 0 ? 0 : context_len > most ? int(most) : context_len;
}

}  // namespace qwen
