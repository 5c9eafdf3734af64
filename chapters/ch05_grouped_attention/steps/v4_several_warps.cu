// v4: eight warps share the context of a KV head, and are merged through shared memory.
//
//   grid    (kv_heads, batch) blocks
//   block   8 warps; in a turn of the block each of its 16 (32) streams reads 4 tokens
//   lane    as in v3: 8 neighbouring dimensions, 4 tokens of its stream in a turn
//   end     each stream leaves (m, l, o) in shared memory; after one barrier a thread merges one
//           dimension of one query head over all streams of all warps
//
// Traffic: that of v2. Each stream leaves 4 * (head_dim + 2) bytes a head in shared memory.
//
// The idea: one warp cannot keep enough loads in flight for an SM, eight can. The merge is the
// algebra that joined two streams, once more.
#include "kv_pages.cuh"
#include "online_softmax.cuh"
#include "operators.h"
#include "paged_operands.cuh"

namespace {

constexpr int kRun = 4;  // tokens of a stream in a turn; they lie in one page, for 4 divides 8
constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;

// --8<-- [start:kernel]
template <class T, int kHeadDim, int kGroup>
__global__ void __launch_bounds__(kThreads) attend_block(AttentionOperands<T> a) {
  constexpr int kLanes = kHeadDim / 8, kStreams = kThreads / kLanes;
  __shared__ float m[kStreams], l[kStreams], partial[kStreams][kHeadDim];
  const int stream = threadIdx.x / kLanes, dimension = threadIdx.x % kLanes * 8;
  const int kv_head = blockIdx.x, sequence = blockIdx.y;
  const PagedHead<T> head = a.head(sequence, kv_head);
  const int context = a.context(sequence);

  float query[kGroup][8], o[kGroup][8] = {};
  SoftmaxState state[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    const T* q = a.group_of(sequence, kv_head) + g * kHeadDim + dimension;
    const Pack<T> pack = g < a.group ? load_pack(q) : Pack<T>{};
#pragma unroll
    for (int i = 0; i < 8; ++i) query[g][i] = to_float(pack.values[i]) * a.scale * kLog2OfE;
  }

  for (int turn = 0; turn < context; turn += kStreams * kRun) {
    const int token = turn + stream * kRun, block = head.block_of(token, context);
    const int tokens = head.has(block) ? context - token : 0;
    const int64_t offset = (tokens > 0 ? head.offset(block, token) : 0) + dimension;
    Pack<T> key[kRun] = {}, value[kRun] = {};
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
      if (t >= tokens) break;
      key[t] = load_pack(head.k + offset + t * head.slot_stride);
      value[t] = load_pack(head.v + offset + t * head.slot_stride);
    }

#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float score[kRun], largest = kNoScore;
#pragma unroll
      for (int t = 0; t < kRun; ++t) {
        score[t] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) score[t] += query[g][i] * to_float(key[t].values[i]);
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
          score[t] += __shfl_xor_sync(kAllLanes, score[t], distance);
        }
        if (t >= tokens) score[t] = -INFINITY;  // not there: it weighs nothing
        largest = fmaxf(largest, score[t]);
      }
      const float factor = state[g].raise(largest);
#pragma unroll
      for (int i = 0; i < 8; ++i) o[g][i] *= factor;
#pragma unroll
      for (int t = 0; t < kRun; ++t) {
        const float weight = state[g].weight(score[t]);
        state[g].l += weight;
#pragma unroll
        for (int i = 0; i < 8; ++i) o[g][i] += weight * to_float(value[t].values[i]);
      }
    }
  }

#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= a.group) break;
    __syncthreads();  // the head before has been read by all
    if (dimension == 0) m[stream] = state[g].m, l[stream] = state[g].l;
#pragma unroll
    for (int i = 0; i < 8; ++i) partial[stream][dimension + i] = o[g][i];
    __syncthreads();  // all streams have left their part
    if (threadIdx.x >= kHeadDim) continue;
    SoftmaxState all;
    float total = 0.0f;
    for (int s = 0; s < kStreams; ++s) all.m = fmaxf(all.m, m[s]);
    for (int s = 0; s < kStreams; ++s) {
      const float weight = all.weight(m[s]);
      all.l += weight * l[s];
      total += weight * partial[s][threadIdx.x];
    }
    T* out = a.out_of(sequence, kv_head) + g * kHeadDim;
    out[threadIdx.x] = from_float<T>(all.quotient(total));
  }
}
// --8<-- [end:kernel]

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  dispatch_attention(args, [&](auto operands, auto lanes) {
    using T = typename decltype(operands)::Number;
    using Lanes = decltype(lanes);
    launch(attend_block<T, Lanes::kHeadDim, Lanes::kGroup>, dim3(unsigned(args.kv_heads), unsigned(args.batch)),
           dim3(kThreads), 0, stream, operands);
  });
}
