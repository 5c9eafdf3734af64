// A launch: its limits, and the team of OS threads that runs its blocks.
#pragma once

#include <thread>

#include "cudasim/watchdog.h"

namespace cudasim {

// The limits of compute capability 9.0, by which a launch is refused, and the simulator's own for cooperative ones.
constexpr long kMaxThreadsPerBlock = 1024, kMaxBlockZ = 64, kMaxGridX = 2147483647, kMaxGridYZ = 65535;
constexpr size_t kMaxSharedBytes = 227 * 1024;
// ThreadSanitizer knows at most 8,128 threads, and each of ours is one.
constexpr long kMaxCooperativeThreads = CUDASIM_TSAN ? 4096 : 65536, kMaxCooperativeBlocks = 512;
constexpr long kMaxClusterThreads = 16384;  // of all clusters at a time, but for one: each needs a stack

inline std::string count(long n, const char* what) {
  return std::to_string(n) + " " + what;
}

// Why the launch is not possible; empty if it is.
inline std::string why_invalid(const Grid& g) {
  const auto over = [](const std::string& what, const std::string& limit) { return what + ", but " + limit; };
  if (g.threads < 1) return "the block " + text(g.block) + " has no threads; each of its dimensions must be at least 1";
  if (g.blocks < 1) return "the grid " + text(g.grid) + " has no blocks; skip the launch if there is nothing to do";
  if (g.threads > kMaxThreadsPerBlock)
    return over("the block " + text(g.block) + " has " + count(g.threads, "threads"), "at most 1024 are allowed");
  if (g.block.z > kMaxBlockZ) return over("the block " + text(g.block) + " is too deep", "z is at most 64");
  if (g.grid.x > kMaxGridX) return over("the grid " + text(g.grid) + " is too wide", "x is at most 2147483647");
  if (g.grid.y > kMaxGridYZ || g.grid.z > kMaxGridYZ)
    return over("the grid " + text(g.grid) + " is too large", "y and z are at most 65535");
  if (g.shared_bytes > kMaxSharedBytes)
    return over(count(long(g.shared_bytes), "bytes of dynamic shared memory are asked for"),
                "a block has at most 232448 (227 KB)");
  if (g.cooperative && (g.blocks > kMaxCooperativeBlocks || g.blocks * g.threads > kMaxCooperativeThreads))
    return over(
        "a cooperative launch of " + count(g.blocks, "blocks of ") + count(g.threads, "threads must run at once"),
        "the simulator runs at most " + count(kMaxCooperativeBlocks, "blocks and ") +
            count(kMaxCooperativeThreads, "threads at once; use a smaller grid"));
  if (g.cluster < 1 || g.cluster > 16 || (g.cluster & (g.cluster - 1)))
    return over("a cluster of " + count(g.cluster, "blocks is asked for"), "it has 1, 2, 4, 8 or 16");
  if (g.cluster > kMaxClusterBlocks)
    return over("a cluster of " + count(g.cluster, "blocks is asked for"),
                "ThreadSanitizer builds run single blocks; the checked variant finds races in shared memory");
  if (g.grid.x % unsigned(g.cluster))
    return over("the grid " + text(g.grid) + " is asked for in clusters of " + count(g.cluster, "blocks"),
                "its x must be a multiple of that");
  if (g.cooperative && g.cluster > 1)
    return "a launch is asked for that is both cooperative and in clusters; the simulator runs either";
  return "";
}

// Runs cluster `first`, and then, if `others`, whatever nobody has begun.
inline void run_blocks(Grid& grid, long first, bool others) {
  try {
    Watchdog::Worker worker(Watchdog::get());
    Cluster cluster(grid);
    const auto run = [&](long i) { worker.begins_block(), cluster.run(grid.order.empty() ? i : grid.order[i]); };
    run(first);
    if (!others) return grid.leave();
    for (long i; !grid.failed && (i = grid.next++) < grid.clusters;) run(i);
  } catch (const std::exception& e) {
    grid.fail(e.what());
  }
}

inline void shuffle_clusters(Grid& grid) {
  Random random{uint64_t(grid.seed)};
  for (long i = 0; i < grid.clusters; ++i) {
    grid.order.push_back(i);
    std::swap(grid.order[i], grid.order[random.below(unsigned(i + 1))]);
  }
}

// Runs all blocks and waits for them. Throws std::runtime_error with the first report.
inline void run(Grid& grid) {
  const std::string why = why_invalid(grid);
  if (!why.empty()) throw std::runtime_error("cuda_sim: invalid launch: " + why);
  if (current) throw std::runtime_error("cuda_sim: a kernel cannot launch kernels in the simulator");
  if (grid.cooperative && CUDASIM_ONE_OS_THREAD && grid.blocks > 1)
    throw std::runtime_error(
        "cuda_sim: this variant runs one block at a time; a cooperative launch needs the plain variant");
  static std::mutex shared_variables;  // of which all launches have the same, unless they are thread_local
  std::unique_lock<std::mutex> alone(shared_variables, std::defer_lock);
  if (CUDASIM_ONE_OS_THREAD) alone.lock();
  checker_launch_begins(grid.grid, grid.block, grid.shared_bytes, grid.kernel, grid.arguments, grid.argument_bytes);
  std::vector<std::thread> team;
  if (grid.cooperative) {  // all blocks at once, an OS thread each
    for (long i = 1; i < grid.blocks; ++i) team.emplace_back([&grid, i] { run_blocks(grid, i, false); });
    run_blocks(grid, 0, false);
  } else {
    if (grid.seed) shuffle_clusters(grid);
    const long cores = std::min(CUDASIM_TSAN ? 2l : 16l, long(std::thread::hardware_concurrency()));
    const long most = CUDASIM_ONE_OS_THREAD ? 1 : environment("CUDASIM_THREADS", cores);
    // Each thread of the team has a cluster of its own to begin with, so that every run has blocks side by side, and
    // ThreadSanitizer sees their races however late a thread starts.
    const long size = std::min({most, grid.clusters, std::max(1l, kMaxClusterThreads / (grid.cluster * grid.threads))});
    grid.next = size;
    for (long i = 1; i < size; ++i) team.emplace_back([&grid, i] { run_blocks(grid, i, true); });
    run_blocks(grid, 0, true);
  }
  for (auto& thread : team) thread.join();
  checker_launch_ends();
  if (grid.failed) throw std::runtime_error(grid.error);
}

void run(const Launch& launch) {
  Grid grid(launch);
  run(grid);
}

}  // namespace cudasim

// For whoever is done with this library for now.
extern "C" __attribute__((used, visibility("default"))) inline void cudasim_release_stacks() {
  cudasim::FiberPool::release();
}
