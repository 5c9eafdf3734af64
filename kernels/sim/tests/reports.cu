// Every way in which a wrong kernel ends, and what its report says.
#include <cassert>
#include <cstdlib>

#include "check.h"

namespace {

constexpr int kTwoBarriers = __LINE__ + 2;
__global__ void two_barriers() {
  if (threadIdx.x < 16) __syncthreads();
  if (threadIdx.x >= 16) __syncthreads();
}
__global__ void barriers_of_different_branches() {
  if (threadIdx.z == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
constexpr int kHalfShuffles = __LINE__ + 3;
__global__ void half_of_the_warp_shuffles(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kFullMask, 1, 1);
  } else {
    __syncthreads();
  }
}
constexpr int kDifferentMasks = __LINE__ + 3;
__global__ void different_masks(int* out) {
  const unsigned mask = threadIdx.x < 16 ? kFullMask : 0xffff0000u;
  out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1);
  __syncthreads();
}
constexpr int kWrongMask = __LINE__ + 2;
__global__ void mask_without_the_caller(int* out) {
  const int v = __shfl_xor_sync(0xffu, 1, 1);
  if (blockIdx.x == 0) out[threadIdx.x] = v;
}
constexpr int kOddWidth = __LINE__ + 2;
__global__ void odd_width(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(kFullMask, 1, 1, 12);
}
[[maybe_unused]] constexpr int kGridBarrier = __LINE__ + 2;
__global__ void blocks_that_skip_the_grid_barrier() {
  if (blockIdx.x != 2) grid_sync();
}
__global__ void null_pointer(int* p) {
  if (threadIdx.x == 5) *p = 1;
}
__global__ void far_out_of_bounds(int* p, long i) {
  p[i] = 1;
}
__global__ void division(int* p) {
  p[0] = p[1] / p[2];
}
__global__ void failed_assert(const int* p) {
  assert(p[threadIdx.x] == 0);
}
__device__ int deep(int n, volatile char* above) {
  volatile char frame[4096];
  frame[0] = above ? above[0] : 1;
  return n ? deep(n - 1, frame) + frame[0] : 0;
}
__global__ void endless_recursion(int* out) {
  out[0] = deep(1000, nullptr);
}
__global__ void endless_loop(volatile int* p) {
  while (p[0] == 0) {
  }
}
__global__ void endless_wait(volatile int* p) {
  while (p[0] == 0) __nanosleep(100);
}
__global__ void endless_barriers(volatile int* p) {
  while (p[0] == 0) __syncthreads();
}
__global__ void nothing() {}
__global__ void launches_a_kernel() {
  launch(nothing, dim3(1), dim3(1), 0, nullptr);
}

// "reports.cu:12"
std::string line(int number) {
  return "reports.cu:" + std::to_string(number);
}

[[maybe_unused]] LaunchOptions cooperative() {
  LaunchOptions options;
  options.cooperative = true;
  return options;
}

}  // namespace

CHECK(deadlock_names_who_waits_where) {
  const std::string r = report_of([] { launch(half_of_the_warp_shuffles, dim3(1), dim3(64), 0, nullptr, nullptr); });
  EXPECT_PART(r, "block (0,0,0): deadlock");
  EXPECT_PART(r, "threads 0-15, 32-47: waiting in __shfl_xor_sync at " + line(kHalfShuffles) +
                     ", mask 0xffffffff, for lanes 16-31");
  EXPECT_PART(r, "threads 16-31, 48-63: waiting in __syncthreads at " + line(kHalfShuffles + 2));
}

CHECK(diverged_barriers_are_named) {
  std::string r = report_of([] { launch(two_barriers, dim3(1), dim3(32), 0, nullptr); });
  EXPECT_PART(r, "different barriers, __syncthreads at " + line(kTwoBarriers) + " and __syncthreads at " +
                     line(kTwoBarriers + 1));
  r = report_of([] { launch(barriers_of_different_branches, dim3(1), dim3(4, 4, 2), 0, nullptr); });
  EXPECT_PART(r, "thread (0,0,1): threads of one block meet at different barriers");
  EXPECT_PART(r, "  threads (0,0,0)-(3,3,0): waiting in __syncthreads at reports.cu:");
}

CHECK(masks_that_differ_end_in_a_deadlock) {
  static int out[32];
  const std::string r = report_of([] { launch(different_masks, dim3(1), dim3(32), 0, nullptr, out); });
  EXPECT_PART(
      r, "threads 0-15: waiting in __shfl_xor_sync at " + line(kDifferentMasks) + ", mask 0xffffffff, for lanes 16-31");
  EXPECT_PART(r, "threads 16-31: waiting in __syncthreads");
}

CHECK(mask_that_leaves_the_caller_out) {
  static int out[32];
  const std::string r = report_of([] { launch(mask_without_the_caller, dim3(3), dim3(32), 0, nullptr, out); });
  EXPECT_PART(r, "thread 8: lane 8 calls __shfl_xor_sync at " + line(kWrongMask) +
                     " with mask 0x000000ff, which leaves it out");
}

CHECK(width_that_is_no_power_of_two) {
  static int out[32];
  EXPECT_PART(report_of([] { launch(odd_width, dim3(1), dim3(32), 0, nullptr, out); }),
              "__shfl_xor_sync at " + line(kOddWidth) + " has width 12; it must be 1, 2, 4, 8, 16 or 32");
}

CHECK(each_limit_of_a_launch_is_named) {
  const auto report = [](dim3 grid, dim3 block, size_t bytes) {
    return report_of([&] { launch(nothing, grid, block, bytes, nullptr); });
  };
  EXPECT_PART(report(dim3(1), dim3(2048), 0), "the block (2048,1,1) has 2048 threads, but at most 1024 are allowed");
  EXPECT_PART(report(dim3(1), dim3(1, 1, 65), 0), "the block (1,1,65) is too deep, but z is at most 64");
  EXPECT_PART(report(dim3(1), dim3(0), 0), "the block (0,1,1) has no threads");
  EXPECT_PART(report(dim3(4, 0), dim3(32), 0), "the grid (4,0,1) has no blocks; skip the launch");
  EXPECT_PART(report(dim3(1, 65536), dim3(32), 0), "y and z are at most 65535");
  EXPECT_PART(report(dim3(3000000000u), dim3(32), 0), "x is at most 2147483647");
  EXPECT_PART(report(dim3(1), dim3(32), 232449),
              "232449 bytes of dynamic shared memory are asked for, but a block has at most 232448");
  EXPECT(report(dim3(65535), dim3(1), 0).empty() && report(dim3(1), dim3(1024), 232448).empty());
  EXPECT_PART(report_of([] { launch(launches_a_kernel, dim3(1), dim3(1), 0, nullptr); }),
              "thread 0: cuda_sim: a kernel cannot launch kernels");
}

#if !CUDASIM_ASAN
CHECK(cooperative_launch_has_a_largest_size) {
  EXPECT_PART(report_of([] { launch(cooperative(), nothing, dim3(513), dim3(32), 0, nullptr); }),
              "a cooperative launch of 513 blocks of 32 threads must run at once");
}
CHECK(block_that_skips_the_grid_barrier) {
  const std::string r =
      report_of([] { launch(cooperative(), blocks_that_skip_the_grid_barrier, dim3(4), dim3(32), 0, nullptr); });
  EXPECT_PART(r,
              "deadlock: 3 of 4 blocks wait in grid_sync at " + line(kGridBarrier) + ", and the others have returned");
}
#endif

#if !CUDASIM_ASAN && !CUDASIM_TSAN
CHECK(faults_end_the_launch_and_not_the_process) {
  static int p[64];
  const auto report = [](auto kernel, auto... arguments) {
    return report_of([&] { launch(kernel, dim3(2), dim3(32), 0, nullptr, arguments...); });
  };
  EXPECT_PART(report(null_pointer, static_cast<int*>(nullptr)),
              "thread 5: reads or writes address 0x0: a null pointer");
  EXPECT_PART(report(far_out_of_bounds, p, 1l << 40), "thread 0: reads or writes");
  EXPECT_PART(report(endless_recursion, p), "thread 0: needs more than its");
#ifdef __x86_64__  // AArch64 answers 0
  p[2] = 0;
  EXPECT_PART(report(division, p), "thread 0: divides an integer by zero");
#endif
  p[7] = 1;
  EXPECT_PART(report(failed_assert, p), "thread 7: calls abort(), as a failed assert does");
}

#ifdef __linux__
CHECK(kernels_without_an_end_are_stopped) {
  setenv("CUDASIM_TIMEOUT", "1", 1);
  static int p[32];
  const auto report = [](void (*kernel)(volatile int*)) {
    return report_of([&] { launch(kernel, dim3(1), dim3(32), 0, nullptr, p); });
  };
  EXPECT_PART(report(endless_loop), "the block has not ended after 1 seconds (CUDASIM_TIMEOUT)");
  EXPECT_PART(report(endless_wait), "last passed __nanosleep at reports.cu:");
  EXPECT_PART(report(endless_barriers), " __syncthreads at reports.cu:");  // waiting in it, or last passed it
  unsetenv("CUDASIM_TIMEOUT");
}
#endif
#endif

// A failed launch leaves the simulator as it was.
CHECK(next_launch_works_after_a_report) {
  static int out[32];
  for (int i = 0; i < 3; ++i) {
    EXPECT(!report_of([] { launch(mask_without_the_caller, dim3(9), dim3(32), 0, nullptr, out); }).empty());
    EXPECT(report_of([] { launch(nothing, dim3(9), dim3(320), 0, nullptr); }).empty());
  }
}
