// Faults of checked_faults.cu between the two blocks of a cluster.
#pragma once

#include "cuda_platform.cuh"

namespace {

__device__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

__global__ void far_read_without_wait(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;  // @far_read_without_wait other
  cluster_arrive();
  if (!wrong) cluster_wait();
  const float theirs = *shared_of(&tile[threadIdx.x], cluster_rank() ^ 1);  // @far_read_without_wait
  if (wrong) cluster_wait();
  cluster_barrier();
  out[threadIdx.x] = theirs;
}

__global__ void far_read_without_barrier(float* out, int wrong) {
  float* tile = dynamic_shared<float>();
  tile[threadIdx.x] = 1.0f;
  if (wrong)
    __syncthreads();
  else
    cluster_barrier();
  const float theirs = shared_of(tile, cluster_rank() ^ 1)[threadIdx.x];  // @far_read_without_barrier
  cluster_barrier();
  out[threadIdx.x] = theirs;
}

__global__ void far_reader_is_overtaken(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  cluster_barrier();
  const float theirs = *shared_of(&tile[threadIdx.x], cluster_rank() ^ 1);  // @far_reader_is_overtaken other
  const float mine = tile[threadIdx.x];
  if (wrong)
    __syncthreads();
  else
    cluster_barrier();
  tile[threadIdx.x] = mine + 1.0f;  // @far_reader_is_overtaken
  cluster_barrier();
  out[threadIdx.x] = theirs;
}

__global__ void far_writers(float* out, int wrong) {
  __shared__ float sum;
  if (cluster_rank() == 0 && threadIdx.x == 0) sum = 0.0f;
  cluster_barrier();
  if (threadIdx.x == 5 && (cluster_rank() == 1 || wrong)) *shared_of(&sum, 0) = 2.0f;  // @far_writers
  cluster_barrier();
  if (cluster_rank() == 0) out[threadIdx.x] = sum;
}

__global__ void far_read_beside_atomic(float* out, int wrong) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  cluster_barrier();
  atomicAdd(shared_of(&count, 0), 1);
  if (!wrong) cluster_barrier();
  if (cluster_rank() == 0) out[threadIdx.x] = float(count);  // @far_read_beside_atomic
  cluster_barrier();
}

__global__ void far_past_end(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  cluster_barrier();
  out[threadIdx.x] = shared_of(tile, cluster_rank() ^ 1)[threadIdx.x + wrong];  // @far_past_end
  cluster_barrier();
}

__global__ void far_dynamic_past_end(float* out, int wrong) {
  float* tile = dynamic_shared<float>();
  tile[threadIdx.x] = 1.0f;
  cluster_barrier();
  out[threadIdx.x] = shared_of(tile, cluster_rank() ^ 1)[threadIdx.x + wrong];  // @far_dynamic_past_end
  cluster_barrier();
}

__global__ void far_unwritten(float* out, int wrong) {
  __shared__ float tile[32];
  if (threadIdx.x != 4 || !wrong) tile[threadIdx.x] = 1.0f;
  cluster_barrier();
  out[threadIdx.x] = *shared_of(&tile[threadIdx.x], cluster_rank() ^ 1);  // @far_unwritten
  cluster_barrier();
}

// The last barrier is missing: in this order the other block is still there, in another it is not.
__global__ void far_read_at_the_end(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  cluster_barrier();
  if (cluster_rank() == 1) out[threadIdx.x] = *shared_of(&tile[threadIdx.x], 0);  // @far_read_at_the_end
  if (!wrong) cluster_barrier();
}

__global__ void far_block_has_ended(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  cluster_arrive();
  if (wrong && cluster_rank() == 1) return;
  cluster_wait();
  out[threadIdx.x] = *shared_of(&tile[threadIdx.x], 1);  // @far_block_has_ended
  cluster_barrier();
}

// By a pointer that another block made: what a GPU does, the simulator does not know.
__global__ void far_pointer_comes_back(float* out, int wrong) {
  __shared__ float tile[32];
  __shared__ float* theirs;
  tile[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) *shared_of(&theirs, cluster_rank() ^ 1) = shared_of(tile, cluster_rank() ^ 1);
  cluster_barrier();
  out[threadIdx.x] = wrong ? theirs[threadIdx.x] : tile[threadIdx.x];  // @far_pointer_comes_back
}

// Sound: what one thread has waited for, __syncthreads and __syncwarp pass on to the others.
__global__ void far_barrier_is_passed_on(float* out, int) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.0f;
  cluster_arrive();
  if (threadIdx.x % 32 == 0) cluster_wait();
  __syncwarp();
  float sum = *shared_of(&tile[threadIdx.x], cluster_rank() ^ 1);
  if (threadIdx.x % 32) cluster_wait();
  cluster_arrive();
  if (threadIdx.x == 0) cluster_wait();
  __syncthreads();
  tile[threadIdx.x] = sum + 1.0f;
  if (threadIdx.x != 0) cluster_wait();
  out[threadIdx.x % 32] = sum;
}

}  // namespace
