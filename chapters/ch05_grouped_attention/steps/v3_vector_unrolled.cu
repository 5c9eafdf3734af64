// v3: 16 bytes a load, four tokens of each stream in flight, one rescaling for all of them.
//
//   grid    (kv_heads, batch) blocks
//   block   one warp, in streams of head_dim / 8 lanes: 2 for head_dim 128, 4 for 64
//   lane    owns 8 neighbouring dimensions: one load of 16 bytes
//   turn    each stream reads 4 tokens of its own: all 8 loads are on their way before the
//           first is used. A dot product takes 4 shuffles (3 for head_dim 64) of one stream.
//   end     the streams, which saw different tokens, are merged by shuffles
//
// Traffic: that of v2, in an eighth of the load instructions.
//
// The idea: memory answers late, so ask for much at once. And a turn has one new maximum, so o
// is rescaled once in four tokens.
#include "kv_pages.cuh"
#include "online_softmax.cuh"
#include "operators.h"
#include "paged_operands.cuh"

namespace {

constexpr int kRun = 4;  // tokens of a stream in a turn; they lie in one page, for 4 divides 8

// --8<-- [start:kernel]
template <class T, int kHeadDim, int kGroup>
__global__ void __launch_bounds__(kWarpSize) attend_streams(AttentionOperands<T> a) {
  constexpr int kLanes = kHeadDim / 8, kStreams = kWarpSize / kLanes;
  const int lane = threadIdx.x, stream = lane / kLanes, dimension = lane % kLanes * 8;
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
    Pack<T> out;
#pragma unroll
    for (int distance = kWarpSize / 2; distance >= kLanes; distance /= 2) {
      // The other stream's (m, l, o): both are brought to the larger maximum, then added.
      const float other_m = __shfl_xor_sync(kAllLanes, state[g].m, distance);
      const float other_l = __shfl_xor_sync(kAllLanes, state[g].l, distance);
      const float factor = state[g].raise(other_m), weight = state[g].weight(other_m);
      state[g].l += weight * other_l;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        o[g][i] = o[g][i] * factor + weight * __shfl_xor_sync(kAllLanes, o[g][i], distance);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out.values[i] = from_float<T>(state[g].quotient(o[g][i]));
    T* to = a.out_of(sequence, kv_head) + g * kHeadDim + dimension;
    if (stream == 0) store_pack(to, out);
  }
}
// --8<-- [end:kernel]

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  dispatch_attention(args, [&](auto operands, auto lanes) {
    using T = typename decltype(operands)::Number;
    using Lanes = decltype(lanes);
    launch(attend_streams<T, Lanes::kHeadDim, Lanes::kGroup>, dim3(unsigned(args.kv_heads), unsigned(args.batch)),
           dim3(kWarpSize), 0, stream, operands);
  });
}
