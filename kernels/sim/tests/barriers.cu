// Barriers of the block, of the warp and of the grid.
#include "check.h"

namespace {

// 5 warps, the last one partial; the threads from n on leave before the barrier, which must not wait for them.
__global__ void neighbour_after_early_return(int* out, int n) {
  __shared__ int s[160];
  const int i = int(threadIdx.x);
  if (i >= n) return;
  s[i] = i;
  __syncthreads();
  out[i] = s[(i + 1) % n];
}

__global__ void verdicts(int* count, int* all, int* any) {
  const int i = int(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    count[i] = __syncthreads_count(i % 3 == round);
    all[round * 70 + i] = __syncthreads_and(i < 60 + round * 10);
    any[round * 70 + i] = __syncthreads_or(i == 70 - round);
  }
}

// The two halves of a warp meet at their own barriers, a different number of times.
__global__ void halves_of_a_warp(int* out) {
  __shared__ int s[32];
  const int lane = int(threadIdx.x), half = lane / 16;
  const unsigned mask = half ? 0xffff0000u : 0x0000ffffu;
  s[lane] = lane;
  for (int i = 0; i < 3 + half; ++i) {
    __syncwarp(mask);
    const int next = s[half * 16 + (lane + 1) % 16];
    __syncwarp(mask);
    s[lane] = next;
  }
  out[lane] = s[lane];
}

// __syncwarp may stand in different branches.
__global__ void syncwarp_in_branches(int* out) {
  __shared__ int s[32];
  const int lane = int(threadIdx.x);
  if (lane % 2) {
    s[lane] = lane;
    __syncwarp();
  } else {
    s[lane] = 10 * lane;
    __syncwarp();
  }
  out[lane] = s[lane ^ 1];
}

// Each round reads what other blocks wrote in the last one.
__global__ void pass_on(int* from, int* to, int rounds) {
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) to[blockIdx.x] = from[(blockIdx.x + 1) % gridDim.x] + 1;
    grid_sync();
    int* other = from;
    from = to, to = other;
  }
}

// The last block to finish adds up what all have written (__threadfence, then an atomic counter).
__global__ void last_block_sums(int* parts, int* counter, int* result) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = int(blockIdx.x);
    __threadfence();
    last = atomicAdd(counter, 1) == int(gridDim.x) - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  __threadfence();
  for (unsigned b = 0; b < gridDim.x; ++b) *result += parts[b];
}

// Thread 0 waits for the last thread of its block: with __nanosleep, or without.
__global__ void wait_for_flag(int* out, bool sleeps) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x + 1 == blockDim.x) atomicExch(&flag, 1);
  while (atomicAdd(&flag, 0) == 0) {
    if (sleeps) __nanosleep(20);
  }
  out[threadIdx.x] = 7;
}

}  // namespace

CHECK(barrier_ignores_threads_that_returned) {
  int out[160];
  launch(neighbour_after_early_return, dim3(1), dim3(160), 0, nullptr, out, 131);
  for (int i = 0; i < 131; ++i) EXPECT(out[i] == (i + 1) % 131);
}

CHECK(barriers_that_count_and_vote) {
  int count[70], all[210], any[210];
  launch(verdicts, dim3(1), dim3(70), 0, nullptr, count, all, any);
  for (int i = 0; i < 70; ++i) {
    EXPECT(count[i] == 23);  // i % 3 == 2
    for (int r = 0; r < 3; ++r) {
      EXPECT((all[r * 70 + i] != 0) == (r >= 1));
      EXPECT((any[r * 70 + i] != 0) == (r >= 1));
    }
  }
}

CHECK(syncwarp_with_diverged_masks) {
  int out[32];
  launch(halves_of_a_warp, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 32; ++l) EXPECT(out[l] == l / 16 * 16 + (l % 16 + 3 + l / 16) % 16);
}

CHECK(syncwarp_from_different_branches) {
  int out[32];
  launch(syncwarp_in_branches, dim3(1), dim3(32), 0, nullptr, out);
  for (int l = 0; l < 32; ++l) EXPECT(out[l] == (l % 2 ? 10 * (l - 1) : l + 1));
}

#if !CUDASIM_ONE_OS_THREAD  // where all blocks cannot run at once
CHECK(grid_sync_joins_all_blocks) {
  int a[20] = {}, b[20] = {};
  LaunchOptions options;
  options.cooperative = true;
  launch(options, pass_on, dim3(20), dim3(64), 0, nullptr, a, b, 10);
  for (int i = 0; i < 20; ++i) EXPECT(a[i] == 10);
}
#endif

CHECK(last_block_sees_what_all_wrote) {
  int parts[500], counter = 0, result = 0;
  launch(last_block_sums, dim3(500), dim3(64), 0, nullptr, parts, &counter, &result);
  EXPECT(result == 499 * 500 / 2);
}

CHECK(spin_with_nanosleep_lets_others_run) {
  int out[64] = {};
  launch(wait_for_flag, dim3(1), dim3(64), 0, nullptr, out, true);
  for (int i = 0; i < 64; ++i) EXPECT(out[i] == 7);
}

#ifdef __linux__
#if !CUDASIM_ASAN && !CUDASIM_TSAN
CHECK(spin_without_nanosleep_is_preempted) {
  int out[64] = {};
  launch(wait_for_flag, dim3(1), dim3(64), 0, nullptr, out, false);
  for (int i = 0; i < 64; ++i) EXPECT(out[i] == 7);
}
#endif
#endif
