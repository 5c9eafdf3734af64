// Every way in which a wrong kernel ends that runs in clusters, and what its report says.
#include "check.h"

namespace {

LaunchOptions clusters_of(int blocks) {
  LaunchOptions options;
  options.cluster = blocks;
  return options;
}

constexpr int kTwoArrivals = __LINE__ + 3;
__global__ void arrives_twice() {
  cluster_arrive();
  if (threadIdx.x == 7 && cluster_rank() == 1) cluster_arrive();
  cluster_wait();
}
constexpr int kWaitAlone = __LINE__ + 3;
__global__ void waits_without_arrival() {
  if (threadIdx.x != 9) cluster_arrive();
  cluster_wait();
}
constexpr int kOneNeverComes = __LINE__ + 3;
__global__ void one_block_never_arrives() {
  if (cluster_rank() == 1 && threadIdx.x < 16) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}
constexpr int kWrongRank = __LINE__ + 3;
__global__ void rank_beyond_the_cluster(int* out) {
  __shared__ int s;
  out[0] = *shared_of(&s, 2);
}
constexpr int kNotShared = __LINE__ + 2;
__global__ void pointer_to_global_memory(int* out) {
  out[0] = *shared_of(out, 0);
}
[[maybe_unused]] constexpr int kEnded = __LINE__ + 7;
__global__ void reads_of_a_block_that_has_ended(int* out) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 1;
  cluster_arrive();
  if (cluster_rank() == 1) return;
  cluster_wait();
  out[threadIdx.x] = *shared_of(&s, 1);
}
[[maybe_unused]] __global__ void waits_for_ever(volatile int* p) {
  while (p[0] == 0) __nanosleep(100);
}
__global__ void nothing() {}

// "cluster_reports.cu:12"
std::string line(int number) {
  return "cluster_reports.cu:" + std::to_string(number);
}

template <class... P, class... A>
std::string report(int cluster, void (*kernel)(P...), unsigned blocks, A... arguments) {
  return report_of([&] { launch(clusters_of(cluster), kernel, dim3(blocks), dim3(32), 64, nullptr, arguments...); });
}

}  // namespace

CHECK(cluster_arrive_needs_a_wait_before_the_next) {
  EXPECT_PART(report(2, arrives_twice, 2),
              "block (1,0,0): thread 7: calls cluster_arrive at " + line(kTwoArrivals) + " a second time");
}

CHECK(cluster_wait_needs_an_arrival) {
  const std::string r = report(2, waits_without_arrival, 4);
  EXPECT_PART(r, "thread 9: calls cluster_wait at " + line(kWaitAlone) + " without cluster_arrive before it");
  EXPECT_PART(r, "threads 0-8: waiting in cluster_wait at " + line(kWaitAlone));
}

CHECK(deadlock_of_a_cluster_names_who_waits_where) {
  const std::string r = report(4, one_block_never_arrives, 4);
  EXPECT_PART(r, "cuda_sim: blocks (0,0,0) to (3,0,0) of a cluster: deadlock: no thread of them can go on");
  EXPECT_PART(r, "block (0,0,0)\n  threads 0-31: waiting in cluster_wait at " + line(kOneNeverComes + 3));
  EXPECT_PART(r, "block (1,0,0)\n  threads 0-15: waiting in __syncthreads at " + line(kOneNeverComes) +
                     "\n  threads 16-31: waiting in cluster_wait");
}

CHECK(shared_of_knows_the_cluster_and_its_memory) {
  static int out[32];
  EXPECT_PART(report(2, rank_beyond_the_cluster, 2, out),
              "thread 0: asks shared_of at " + line(kWrongRank) + " for block 2 of a cluster that has 2 blocks");
  EXPECT_PART(report(2, pointer_to_global_memory, 2, out),
              "gives shared_of at " + line(kNotShared) + " a pointer that is not into its block's shared memory");
}

CHECK(each_limit_of_a_cluster_is_named) {
  EXPECT_PART(report(4, nothing, 6),
              "the grid (6,1,1) is asked for in clusters of 4 blocks, but its x must be a multiple of that");
  EXPECT_PART(report(3, nothing, 6), "a cluster of 3 blocks is asked for, but it has 1, 2, 4, 8 or 16");
  EXPECT_PART(report(32, nothing, 32), "a cluster of 32 blocks is asked for");
  EXPECT_PART(report(0, nothing, 32), "a cluster of 0 blocks is asked for");
  LaunchOptions both = clusters_of(2);
  both.cooperative = true;
  EXPECT_PART(report_of([&] { launch(both, nothing, dim3(2), dim3(32), 0, nullptr); }), "both cooperative and in");
}

CHECK(shared_memory_of_a_block_that_has_ended) {
  static int out[32];
  EXPECT_PART(
      report(2, reads_of_a_block_that_has_ended, 2, out),
      ", the shared memory of block (1,0,0), which has ended: a barrier of the cluster must come after the last "
      "access; it is at " +
          line(kEnded));
  EXPECT(report(2, nothing, 2).empty());
}

#ifdef __linux__
CHECK(clusters_without_an_end_are_stopped) {
  static int p[1];
  setenv("CUDASIM_TIMEOUT", "1", 1);
  EXPECT_PART(report(4, waits_for_ever, 4, p), "the block has not ended after 1 seconds (CUDASIM_TIMEOUT)");
  unsetenv("CUDASIM_TIMEOUT");
}
#endif
