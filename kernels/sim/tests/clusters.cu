// Thread block clusters: ranks, each other's shared memory, their barrier. What a wrong kernel ends with is in
// cluster_reports.cu.
#include <algorithm>

#include "check.h"

namespace {

LaunchOptions clusters_of(int blocks) {
  LaunchOptions options;
  options.cluster = blocks;
  return options;
}

__global__ void ranks(unsigned* rank, unsigned* blocks) {
  const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  rank[b] = cluster_rank(), blocks[b] = cluster_blocks();
}

// Values go round the cluster: each round a block takes those of the next one, by static and dynamic memory in turn.
template <int kThreads>
__global__ void round_and_round(int* out, int rounds) {
  __shared__ int fixed[kThreads];
  int* dynamic = dynamic_shared<int>();
  const unsigned t = threadIdx.x, next = (cluster_rank() + 1) % cluster_blocks();
  fixed[t] = int(blockIdx.x * kThreads + t);
  for (int r = 0; r < rounds; ++r) {
    cluster_arrive();
    cluster_wait();
    if (r % 2 == 0) {
      dynamic[t] = *shared_of(&fixed[t], next);
    } else {
      fixed[t] = shared_of(dynamic, next)[t];
    }
  }
  cluster_arrive();
  cluster_wait();
  out[blockIdx.x * kThreads + t] = rounds % 2 ? dynamic[t] : fixed[t];
}

// Between its two halves a thread does what the others need not see yet.
__global__ void work_between_arrival_and_wait(int* out) {
  __shared__ int given[2][32], mine[32];
  const unsigned t = threadIdx.x, other = cluster_rank() ^ 1;
  int sum = 0;
  for (int r = 0; r < 6; ++r) {
    given[r % 2][t] = r + int(cluster_rank());
    cluster_arrive();
    mine[t] = r;
    cluster_wait();
    sum += shared_of(given[r % 2], other)[t] + mine[t];
  }
  cluster_arrive();
  cluster_wait();
  out[blockIdx.x * 32 + t] = sum;
}

// The threads from n on, and all of the last block, have returned: they count as arrived.
__global__ void some_return(int* out, int n) {
  __shared__ int s;
  if (int(threadIdx.x) >= n || cluster_rank() + 1 == cluster_blocks()) return;
  if (threadIdx.x == 0) s = int(cluster_rank());
  cluster_arrive();
  cluster_wait();
  out[blockIdx.x * 64 + threadIdx.x] = *shared_of(&s, 0) + *shared_of(&s, 1);
  cluster_arrive();
  cluster_wait();
}

__global__ void histogram(int* out) {  // of all blocks, in the memory of the first one
  __shared__ int bins[8];
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  cluster_arrive();
  cluster_wait();
  atomicAdd(shared_of(&bins[threadIdx.x % 8], 0), 1);
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 0 && threadIdx.x < 8) out[blockIdx.x / cluster_blocks() * 8 + threadIdx.x] = bins[threadIdx.x];
}

// The first block waits for the last one: with __nanosleep, or without.
__global__ void wait_for_another_block(int* out, bool sleeps) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() + 1 == cluster_blocks() && threadIdx.x == 0) atomicExch(shared_of(&flag, 0), 1);
  while (cluster_rank() == 0 && atomicAdd(&flag, 0) == 0) {
    if (sleeps) __nanosleep(20);
  }
  out[blockIdx.x * 32 + threadIdx.x] = 7;
  cluster_arrive();
  cluster_wait();
}

__global__ void order_of_blocks(int* blocks, int* count) {
  for (int i = 0; i < 4; ++i) {
    blocks[atomicAdd(count, 1)] = int(blockIdx.x);
    __syncwarp();
  }
}

// How often another block than the last one takes its turn.
int changes_of_turn() {
  int blocks[4 * 4 * 32], count = 0, changes = 0;
  launch(clusters_of(4), order_of_blocks, dim3(4), dim3(32), 0, nullptr, blocks, &count);
  for (int i = 1; i < count; ++i) changes += blocks[i] != blocks[i - 1];
  return changes;
}

template <int kThreads>
void expect_rounds(int cluster, int clusters, int rounds) {
  const int blocks = cluster * clusters;
  std::vector<int> out(size_t(blocks) * kThreads);
  launch(clusters_of(cluster), round_and_round<kThreads>, dim3(unsigned(blocks)), dim3(kThreads),
         kThreads * sizeof(int), nullptr, out.data(), rounds);
  int wrong = 0;
  for (int b = 0; b < blocks; ++b) {
    const int from = b / cluster * cluster + (b % cluster + rounds) % cluster;
    for (int t = 0; t < kThreads; ++t) wrong += out[size_t(b * kThreads + t)] != from * kThreads + t;
  }
  EXPECT(wrong == 0);
}

}  // namespace

CHECK(ranks_count_along_x) {
  unsigned rank[16], blocks[16];
  launch(clusters_of(2), ranks, dim3(4, 2, 2), dim3(1), 0, nullptr, rank, blocks);
  for (unsigned b = 0; b < 16; ++b) EXPECT(rank[b] == b % 2 && blocks[b] == 2);
  launch(ranks, dim3(4, 2, 2), dim3(1), 0, nullptr, rank, blocks);
  for (unsigned b = 0; b < 16; ++b) EXPECT(rank[b] == 0 && blocks[b] == 1);
}

CHECK(blocks_of_a_cluster_reach_each_other) {
  for (const int cluster : {1, 2, 4, 8, 16}) expect_rounds<64>(cluster, 3, 5);
  expect_rounds<96>(4, 1, 4);
}

CHECK(a_cluster_of_4096_threads) {
  expect_rounds<256>(16, 2, 3);
}

CHECK(arrival_and_wait_are_two_steps) {
  int out[4 * 32];
  launch(clusters_of(2), work_between_arrival_and_wait, dim3(4), dim3(32), 0, nullptr, out);
  for (int b = 0; b < 4; ++b) EXPECT(out[b * 32 + 31] == 15 + 15 + 6 * (1 - b % 2));
}

CHECK(threads_that_returned_count_as_arrived) {
  int out[8 * 64] = {};
  launch(clusters_of(4), some_return, dim3(8), dim3(64), 0, nullptr, out, 40);
  for (int i = 0; i < 8 * 64; ++i) EXPECT(out[i] == (i % 64 < 40 && i / 64 % 4 != 3 ? 1 : 0));
}

CHECK(atomics_in_the_memory_of_another_block) {
  int out[3 * 8];
  launch(clusters_of(8), histogram, dim3(24), dim3(64), 0, nullptr, out);
  for (const int count : out) EXPECT(count == 64);
}

CHECK(a_block_alone_is_ordered_by_the_barrier_of_its_cluster) {
  int out[2 * 8];
  launch(histogram, dim3(2), dim3(64), 0, nullptr, out);
  for (const int count : out) EXPECT(count == 8);
}

CHECK(spin_with_nanosleep_lets_other_blocks_run) {
  int out[4 * 32] = {};
  launch(clusters_of(4), wait_for_another_block, dim3(4), dim3(32), 0, nullptr, out, true);
  EXPECT(std::count(out, out + 128, 7) == 128);
}

#if defined(__linux__) && !CUDASIM_ASAN
CHECK(spin_without_nanosleep_lets_other_blocks_run) {
  int out[2 * 32] = {};
  launch(clusters_of(2), wait_for_another_block, dim3(2), dim3(32), 0, nullptr, out, false);
  EXPECT(std::count(out, out + 64, 7) == 64);
}
#endif

CHECK(seeds_interleave_the_blocks_of_a_cluster) {
  const char* const before = std::getenv("CUDASIM_SEED");
  const std::string kept = before ? before : "";
  setenv("CUDASIM_SEED", "0", 1);
  EXPECT(changes_of_turn() == 3);
  for (const char* seed : {"1", "2", "3"}) {
    setenv("CUDASIM_SEED", seed, 1);
    const int changes = changes_of_turn();
    EXPECT(changes > 12 && changes == changes_of_turn());
  }
  setenv("CUDASIM_SEED", kept.c_str(), 1);
}

CHECK(most_cluster_blocks_is_a_size_that_runs) {
  const int most = most_cluster_blocks(histogram, 64, 0);
  EXPECT(most == 16);
  int out[8];
  launch(clusters_of(most), histogram, dim3(unsigned(most)), dim3(64), 0, nullptr, out);
  for (const int count : out) EXPECT(count == 8 * most);
}
