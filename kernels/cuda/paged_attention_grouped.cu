// paged_attention_grouped.cu: attention of one new token a sequence over its paged KV cache, one block a KV head.
//
// Mapping   Block (h, s) serves all query heads that share KV head h of sequence s. Its 8 warps take turns of tokens;
//           paged_attention.cuh says which lane holds what. At the end they are merged through shared memory.
// Traffic   K and V of the context in, once: 4 * context * kv_heads * head_dim bytes. q in and out out are small.
// Contract  Scores, maxima, exponentials, sums and outputs in fp32, one rounding. A context of 0 gives zeros.
#include "operators.h"
#include "paged_attention.cuh"
#include "paged_operands.cuh"

namespace {

// --8<-- [start:kernel]
template <class T, class Lanes>
__global__ void __launch_bounds__(kAttentionThreads) attend_grouped(AttentionOperands<T> a) {
  __shared__ WarpPartials<Lanes> shared;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int kv_head = blockIdx.x, sequence = blockIdx.y;
  grid_dependency_trigger();
  grid_dependency_wait();

  // The first page and q do not depend on the context: all three are asked for at once.
  const PagedHead<T> head = a.head(sequence, kv_head);
  const int token = first_token_of_lane<Lanes>(warp, lane);
  const int first_block = head.block_of(token, INT32_MAX);
  using Reader = AttentionReader<T, Lanes>;
  const typename Reader::RawQuery query(a.group_of(sequence, kv_head), a.group, lane);
  const int context = a.context(sequence);

  Reader reader;
  reader.read(head, query, a.scale, token, first_block, context, lane);
  reader.leave(shared, warp, lane);
  __syncthreads();

  T* out = a.out_of(sequence, kv_head);
  for (int i = threadIdx.x; i < a.group * Lanes::kHeadDim; i += kAttentionThreads) {
    float total;
    const SoftmaxState all = shared.merged(i / Lanes::kHeadDim, i % Lanes::kHeadDim, total);
    out[i] = from_float<T>(all.quotient(total));
  }
}
// --8<-- [end:kernel]

}  // namespace

void qwen_paged_attention_grouped(const qwen::PagedAttention& args, cudaStream_t stream) {
  dispatch_attention(args, [&](auto operands, auto lanes) {
    LaunchOptions options;
    options.dependent = true;
    launch(options, attend_grouped<typename decltype(operands)::Number, decltype(lanes)>,
           dim3(unsigned(args.kv_heads), unsigned(args.batch)), dim3(kAttentionThreads), 0, stream, operands);
  });
}
