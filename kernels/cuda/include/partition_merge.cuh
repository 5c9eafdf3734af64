// partition_merge.cuh: how the blocks that read the partitions of a context bring (m, l, o) together in one launch.
//
// Cluster     The blocks are a thread block cluster. Each takes a share of the dimensions of all heads and is sent its
//             part of what the others saw, into its shared memory: no traffic through the L2 cache, and two barriers,
//             of which the first only waits until all have begun.
// Last block  Each block leaves what it saw in the workspace and is counted; who is counted last merges.
// Both add in the order of partitions, by the same function: the same bits. Blocks without tokens have left before.
#pragma once

#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"

constexpr int kMergeBatch = 16;     // partitions whose partials a thread asks for at once
constexpr int kClusterBlocks = 16;  // the largest cluster there is
constexpr int kFastClusters = 8;    // up to here a cluster is faster: of 16 blocks too few fit at once on an H200

// Whether this block is the last of `blocks` to come here; all threads get the answer. The counter returns to 0. What
// a block wrote before, the last one sees afterwards.
// --8<-- [start:last]
__device__ __forceinline__ bool comes_last(uint32_t* arrived, int blocks) {
  bool last = false;
  __syncthreads();  // what the block wrote is known to thread 0, and so its fence counts for all
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(arrived, blocks - 1) == uint32_t(blocks - 1);
    __threadfence();
  }
  return __syncthreads_or(last);
}
// --8<-- [end:last]

// What the blocks of a cluster send to one of them, and where a block is sent what.
template <class Lanes>
struct ClusterInbox {
  static constexpr int kMost = Lanes::kGroup * Lanes::kHeadDim + kClusterBlocks;
  float m[kMost], l[kMost], o[kMost];
};

// One partition of one KV head's context, of which `live` have tokens.
template <class T, class Lanes>
struct PartitionMerge {
  static constexpr int kHeadDim = Lanes::kHeadDim;
  const AttentionOperands<T>& a;
  const qwen::Partials& partials;
  int sequence, kv_head, partition, live, share = 0;  // share: of the dimensions
  T* out = a.out_of(sequence, kv_head);
  int size = a.group * kHeadDim;  // results of this KV head

  // Where the partial of result i lies in m and l; kHeadDim times as far in o, plus the dimension.
  __device__ __forceinline__ int64_t place(int i, int of_partition) const {
    const int64_t head = int64_t(sequence) * a.query_heads + kv_head * a.group + i / kHeadDim;
    return head * partials.partitions + of_partition;
  }

  __device__ __forceinline__ void leave_partials(const WarpPartials<Lanes>& shared) const {
    for (int i = threadIdx.x; i < size; i += kAttentionThreads) {
      float total;
      const SoftmaxState all = shared.merged(i / kHeadDim, i % kHeadDim, total);
      const int64_t at = place(i, partition);
      partials.o[at * kHeadDim + i % kHeadDim] = total;
      if (i % kHeadDim == 0) partials.m[at] = all.stored_m(), partials.l[at] = all.l;
    }
  }
  // A partition without tokens.
  __device__ __forceinline__ void leave_nothing() const {
    if (threadIdx.x >= a.group) return;
    const int64_t at = place(threadIdx.x * kHeadDim, partition);
    partials.m[at] = -INFINITY, partials.l[at] = 0.0f;
  }

  // The only partition with tokens.
  // With shared dimensions it has its share of each head's results.
  __device__ __forceinline__ void finish_alone(const WarpPartials<Lanes>& shared) const {
    constexpr int kMine = Lanes::kValueDim;
    for (int i = threadIdx.x; i < a.group * kMine; i += Lanes::kThreads) {
      float total;
      const SoftmaxState all = shared.merged(i / kMine, i % kMine, total);
      out[i / kMine * kHeadDim + share * kMine + i % kMine] = from_float<T>(all.quotient(total));
    }
  }

  // The partials past the first-level cache, which does not see what other blocks wrote.
  // --8<-- [start:by_last_block]
  __device__ __forceinline__ void by_last_block(const WarpPartials<Lanes>& shared) const {
    leave_partials(shared);
    if (!comes_last(partials.arrived + sequence * a.kv_heads + kv_head, live)) return;
    for (int i = threadIdx.x; i < size; i += kAttentionThreads) {
      out[i] = from_float<T>(merge_readers<kMergeBatch>(live, [&](int p) {
        const int64_t at = place(i, p);
        const float* o = partials.o + at * kHeadDim + i % kHeadDim;
        return SoftmaxPart{__ldcg(partials.m + at), __ldcg(partials.l + at), __ldcg(o)};
      }));
    }
  }
  // --8<-- [end:by_last_block]

  // Every block has called cluster_arrive_relaxed() at its begin: nobody is sent anything before it runs.
  // --8<-- [start:by_cluster]
  __device__ __forceinline__ void by_cluster(const WarpPartials<Lanes>& shared, ClusterInbox<Lanes>& inbox) const {
    const int part = (size + live - 1) / live;
    cluster_wait();
    for (int i = threadIdx.x; i < size; i += kAttentionThreads) {
      float total;
      const SoftmaxState all = shared.merged(i / kHeadDim, i % kHeadDim, total);
      const int to = i / part, at = partition * part + i % part;
      *shared_of(inbox.m + at, to) = all.stored_m();
      *shared_of(inbox.l + at, to) = all.l;
      *shared_of(inbox.o + at, to) = total;
    }
    cluster_arrive();
    cluster_wait();
    const int first = partition * part, mine = min(part, size - first);
    for (int i = threadIdx.x; i < mine; i += kAttentionThreads) {
      out[first + i] = from_float<T>(merge_readers<kMergeBatch>(live, [&](int p) {
        return SoftmaxPart{inbox.m[p * part + i], inbox.l[p * part + i], inbox.o[p * part + i]};
      }));
    }
  }
  // --8<-- [end:by_cluster]
};

inline LaunchOptions dependent_launch(int cluster = 1) {
  LaunchOptions options;
  options.dependent = true;
  options.cluster = cluster;
  return options;
}

// What kFastest means for this kernel and this number of partitions.
template <class Kernel>
qwen::Merge merge_for(qwen::Merge wanted, Kernel kernel, int64_t partitions, size_t shared_bytes = 0) {
  if (wanted == qwen::Merge::kLastBlock || wanted == qwen::Merge::kLeavePartials) return wanted;
  const int most = wanted == qwen::Merge::kFastest ? kFastClusters : kClusterBlocks;
  const bool fits = partitions > 1 && (partitions & (partitions - 1)) == 0 && partitions <= most &&
                    partitions <= most_cluster_blocks(kernel, kAttentionThreads, shared_bytes);
  if (fits) return qwen::Merge::kCluster;
  if (wanted == qwen::Merge::kFastest) return qwen::Merge::kLastBlock;
  throw std::runtime_error(
      "A merge by cluster needs 2, 4, 8 or 16 partitions and a GPU that can run so many blocks as a cluster, from "
      "compute capability 9.0 on; partitions is " +
      std::to_string(partitions) + ".");
}
