// Kernels with one planted fault each, and their sound twins: `planted NAME` launches one of them. Random schedules, or
// a build with a sanitizer, must find the faults and keep silent on the others.
#include "check.h"

namespace {

constexpr int kThreads = 64;

// Where thread t of this block writes t - 1; blocks have 64 places each.
__device__ int& result_of(int* out, int t) {
  return out[int(blockIdx.x) * kThreads + t];
}

// ---- races in shared memory
template <bool kBarrier>
__global__ void read_of_neighbour(int* out) {
  __shared__ int s[kThreads];
  const int t = int(threadIdx.x);
  s[t] = t;
  if (kBarrier) __syncthreads();
  result_of(out, t) = t > 0 ? s[t - 1] : 0;  // in order, thread t - 1 has always written already
}

template <bool kBarrier>
__global__ void reuse_of_a_buffer(int* out) {
  __shared__ int s[kThreads];
  const int t = int(threadIdx.x);
  int sum = 0;
  for (int round = 0; round < 4; ++round) {
    s[t] = t + round;
    __syncthreads();
    sum += s[(t + 1) % kThreads];
    if (kBarrier) __syncthreads();  // else the next round may overwrite what is still to be read
  }
  result_of(out, t) = sum - 4 * ((t + 1) % kThreads) - 6 + t - 1;
}

template <bool kSync>
__global__ void exchange_in_a_warp(int* out) {
  __shared__ int s[kThreads];
  const int t = int(threadIdx.x);
  s[t] = t;
  // A shuffle brings the lanes together, but orders no memory: __syncwarp does.
  const int one = __shfl_sync(kFullMask, 1, 0);
  if (kSync) __syncwarp();
  result_of(out, t) = s[t ^ 1] * one + (t & 1 ? 0 : -2);  // t - 1
}

template <bool kAtomic>
__global__ void histogram(int* out) {
  __shared__ int bins[4];
  const int t = int(threadIdx.x);
  if (t < 4) bins[t] = 0;
  __syncthreads();
  for (int i = 0; i < 16; ++i) {
    const int bin = (i + t) % 4;
    if (kAtomic) {
      atomicAdd(&bins[bin], 1);
    } else {
      bins[bin] = bins[bin] + 1;
    }
  }
  __syncthreads();
  result_of(out, t) = bins[t % 4] - 256 + t - 1;
}

// ---- races in global memory
template <bool kAtomic>
__global__ void global_histogram(int* out) {
  const int t = int(threadIdx.x);
  int* bin = &result_of(out, t % 4);
  for (int i = 0; i < 16; ++i) {
    if (kAtomic) {
      atomicAdd(bin, 1);
    } else {
      *bin = *bin + 1;
    }
  }
  __syncthreads();
  const int count = *bin;
  __syncthreads();
  result_of(out, t) = count - 256 + t - 1;
}

template <bool kAtomic>
__global__ void count_of_blocks(int* out) {
  result_of(out, int(threadIdx.x)) = int(threadIdx.x) - 1;
  int* counter = out + gridDim.x * kThreads;
  if (threadIdx.x != 0) return;
  if (kAtomic) {
    atomicAdd(counter, 1);
  } else {
    *counter = *counter + 1;
  }
}

// ---- indices out of bounds
template <int kPast>
__global__ void dynamic_shared_memory(int* out) {
  int* s = dynamic_shared<int>();
  s[threadIdx.x + kPast] = int(threadIdx.x);
  __syncthreads();
  result_of(out, int(threadIdx.x)) = s[threadIdx.x + kPast] - 1;
}

template <int kPast>
__global__ void static_shared_memory(int* out) {
  __shared__ int s[kThreads];
  s[threadIdx.x + kPast] = int(threadIdx.x);
  __syncthreads();
  result_of(out, int(threadIdx.x)) = s[threadIdx.x + kPast] - 1;
}

template <int kPast>
__global__ void local_array(int* out) {
  int values[8];
  const int one = int(blockDim.x) / kThreads;  // which the compiler does not know
  for (int i = 0; i < 8; ++i) values[i + kPast * one] = i;
  __syncwarp();
  result_of(out, int(threadIdx.x)) = values[one * 3] + kPast + int(threadIdx.x) - 4;
}

template <int kPast>
__global__ void global_memory(int* out) {
  result_of(out, int(threadIdx.x) + kPast) = int(threadIdx.x) - 1;
}

struct Case {
  const char* name;
  void (*kernel)(int*);
  unsigned blocks;
};

const Case kCases[] = {
    {"read_of_neighbour", read_of_neighbour<true>, 2},
    {"read_of_neighbour_without_barrier", read_of_neighbour<false>, 2},
    {"reuse_of_a_buffer", reuse_of_a_buffer<true>, 2},
    {"reuse_of_a_buffer_without_barrier", reuse_of_a_buffer<false>, 2},
    {"exchange_in_a_warp", exchange_in_a_warp<true>, 2},
    {"exchange_in_a_warp_without_syncwarp", exchange_in_a_warp<false>, 2},
    {"histogram", histogram<true>, 2},
    {"histogram_without_atomic", histogram<false>, 2},
    {"global_histogram", global_histogram<true>, 2},
    {"global_histogram_without_atomic", global_histogram<false>, 2},
    {"count_of_blocks", count_of_blocks<true>, 50},
    {"count_of_blocks_without_atomic", count_of_blocks<false>, 50},
    {"dynamic_shared_memory", dynamic_shared_memory<0>, 2},
    {"dynamic_shared_memory_out_of_bounds", dynamic_shared_memory<1>, 2},
    {"static_shared_memory", static_shared_memory<0>, 2},
    {"static_shared_memory_out_of_bounds", static_shared_memory<1>, 2},
    {"local_array", local_array<0>, 2},
    {"local_array_out_of_bounds", local_array<1>, 2},
    {"global_memory", global_memory<0>, 2},
    {"global_memory_out_of_bounds", global_memory<2>, 2},
};

}  // namespace

// Every kernel gives t - 1 for each thread t > 0 of each block. 0: it did; 3: it did not; 2: there is no such case; 1:
// the launch ended with a report.
extern "C" __attribute__((visibility("default"))) int run_case(const char* name) {
  for (const Case& c : kCases) {
    if (std::strcmp(c.name, name) != 0) continue;
    const int results = int(c.blocks) * kThreads;
    std::vector<int> out(size_t(results) + 1);
    const std::string report = report_of(
        [&] { launch(c.kernel, dim3(c.blocks), dim3(kThreads), kThreads * sizeof(int), nullptr, out.data()); });
    if (!report.empty()) return std::puts(report.c_str()), 1;
    bool right = std::strncmp(c.name, "count_of_blocks", 15) != 0 || out[results] == int(c.blocks);
    for (int i = 0; i < results; ++i) right = right && (i % kThreads == 0 || out[i] == i % kThreads - 1);
    std::puts(right ? "right" : "wrong");
    return right ? 0 : 3;
  }
  return std::puts("no such case"), 2;
}

int main(int count, char** names) {
  return run_case(count > 1 ? names[1] : "");
}
