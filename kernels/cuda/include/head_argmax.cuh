// head_argmax.cuh: the id of the largest logit of an output head, without writing the logits.
//
// Mapping   head_rows.cuh. Each lane keeps the best of the logits that it sees, as one 64-bit key: the logit's bits,
//           ordered like integers, above the id's complement. So the largest key is the largest logit, and among equal
//           ones the lowest id. A block takes its largest to the workspace by one atomicMax for each row of x; the
//           block that comes last writes the ids, and leaves the workspace as it was: zeros.
// Traffic   The weight, once. 8 bytes out for each row of x, where the logits would be 4 * n, written and read again.
// Contract  Logits of an int8 weight are those of w8a16_linear in fp32, bit for bit. Ids as of torch.argmax: the first
//           of the largest, -0 equal to 0; but -1 where the largest is infinite or NaN, which is above everything. The
//           largest key does not depend on who comes when.
#pragma once

#include "head_rows.cuh"

using Key = unsigned long long;  // what atomicMax takes

// --8<-- [start:key]
__device__ __forceinline__ Key key_of(float logit, int64_t id) {
  const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 + 0 is 0
  const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return Key(logit == logit ? ordered : 0xffffffffu) << 32 | Key(~unsigned(id));
}

// The id of a key, or -1 if its logit is NaN or infinite.
__device__ __forceinline__ int64_t id_of(Key key) {
  constexpr unsigned kLowest = 0x00800000u, kHighest = 0xff7fffffu;  // of finite logits, as key_of() orders them
  return unsigned(key >> 32) - kLowest <= kHighest - kLowest ? int64_t(~unsigned(key)) : -1;
}
// --8<-- [end:key]

// The workspace: a count of blocks that have come, then a key for each row of x.
// --8<-- [start:finish]
template <int kBatch>
__device__ __forceinline__ void finish(Key best, const qwen::HeadInput& input, const qwen::Argmax& result) {
  __shared__ Key of_warps[kHeadWarps][kBatch];
  constexpr int kLanesOfSum = kWarpSize / (kHeadRows<kBatch> * kBatch);
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int distance = kWarpSize / 2; distance >= kWarpSize / kHeadRows<kBatch>; distance /= 2) {  // over the rows of W
    best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
  }
  if (lane < kWarpSize / kHeadRows<kBatch> && lane % kLanesOfSum == 0) of_warps[warp][lane / kLanesOfSum] = best;
  __syncthreads();
  if (warp != 0) return;

  auto* keys = reinterpret_cast<Key*>(result.workspace) + 1;
  if (lane < input.batch) {
    best = of_warps[0][lane];
#pragma unroll
    for (int w = 1; w < kHeadWarps; ++w) best = max(best, of_warps[w][lane]);
    atomicMax(keys + lane, best);
  }
  __threadfence();  // the keys are there before the block is counted
  __syncwarp();
  const unsigned blocks = gridDim.x;
  bool last = lane == 0 && atomicInc(reinterpret_cast<unsigned*>(result.workspace), blocks - 1) == blocks - 1;
  last = __any_sync(kAllLanes, last);
  __threadfence();
  if (last && lane < input.batch) {
    result.ids[lane] = id_of(atomicExch(keys + lane, Key(0)));  // read and reset
  }
}
// --8<-- [end:finish]

// --8<-- [start:kernel]
template <class Weight, int kBatch, bool kAligned>
__global__ void __launch_bounds__(kHeadThreads, kHeadBlocks<Weight, kBatch>)
    largest_logit(Weight weight, qwen::HeadInput input, qwen::Argmax result) {
  Key best = 0;  // below the key of every logit
  walk_rows<Weight, kBatch, kAligned>(
      weight, input, [&](int64_t row, int, float logit, bool) { best = max(best, key_of(logit, row)); });
  finish<kBatch>(best, input, result);
}
// --8<-- [end:kernel]

template <class Weight>
void find_largest(const Weight& weight, const qwen::HeadInput& input, const qwen::Argmax& result, cudaStream_t stream) {
  for_batches(weight, input.batch, [&](int64_t first, int64_t rows, auto batch, auto aligned) {
    LaunchOptions options;
    options.dependent = true;
    const qwen::Argmax of_rows{result.ids + first, result.workspace};
    launch(options, largest_logit<Weight, batch.value, aligned.value>, dim3(head_blocks<batch.value>(weight)),
           dim3(kHeadThreads), size_t(head_shared_bytes(weight, batch.value)), stream, weight,
           input_rows(input, first, rows), of_rows);
  });
}
