// advance_decode.cu: the end of a decode step. Each row goes on with its new token, and the host need not know yet.
//
// Mapping   A block a row; its threads share the columns of the embedding. Thread 0 counts.
// Overlap   The kernel after it may begin when the one ahead has ended. The barrier between two steps is the next one's
//           first attention, which waits before it lets others begin: behind it lengths and tables may be read ahead.
// Traffic   2 bytes read and 4 written a column: a few KiB, which latency hides.
// Contract  Exact: a 16-bit number is a float. The token's id reaches `history` in one store of 8 bytes, so that a host
//           that looks there, in its own memory, sees the old number or the new one.
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256, kColumns = 4;  // of a thread at once

struct Next {
  int position, slot;  // slot: -1 for a row that rests
  bool told;           // the token is one, and has its place in the history
};

// --8<-- [start:next]
__device__ Next next_of(const qwen::AdvanceDecode& a, int64_t row, int64_t id) {
  const int position = a.context_lens[row];  // below 0: the row rests already
  if (id < 0 || id >= a.vocab) return {0, -1, false};
  if (position < 0 || position >= a.max_context) return {0, -1, false};
  const int place = int(position % a.block_size), index = int(position / a.block_size);
  const int64_t entry = row * a.block_table_stride + index;
  const int block = index < a.max_blocks ? a.block_table[entry] : -1;
  if (block < 0 || block >= a.num_blocks) return {position, -1, true};
  return {position, int(block * a.block_size) + place, true};
}
// --8<-- [end:next]

// --8<-- [start:kernel]
template <class T>
__global__ void __launch_bounds__(kThreads) advance_rows(qwen::AdvanceDecode a) {
  const int64_t row = blockIdx.x;
  grid_dependency_wait();
  // All that is older has ended: the next step's first weights may come.
  grid_dependency_trigger();
  const int64_t id = a.ids[row];
  // The embedding is asked for together with the row's length and page.
  const int64_t known = max(min(id, a.vocab - 1), int64_t(0));
  const T* token = static_cast<const T*>(a.embedding) + known * a.hidden;
  T columns[kColumns];
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (first + c * kThreads < a.hidden) columns[c] = token[first + c * kThreads];
    }
  };
  load(threadIdx.x);
  const Next next = next_of(a, row, id);
  const bool rests = next.slot < 0;
  // The way into the host's memory is the longest: the id sets out first.
  if (threadIdx.x == 0 && next.told) a.history[row * a.history_stride + next.position] = id;
  for (int64_t first = threadIdx.x; first < a.hidden; load(first)) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c, first += kThreads) {
      if (first < a.hidden) {
        a.h[row * a.hidden + first] = rests ? 0.0f : to_float(columns[c]);
      }
    }
  }
  __syncthreads();  // all have read context_lens
  if (threadIdx.x != 0) return;
  a.context_lens[row] = rests ? -1 : next.position + 1;
  a.positions[row] = rests ? 0 : next.position;
  a.slot_mapping[row] = next.slot;
  if (next.told) a.draws[row] += 1;
}
// --8<-- [end:kernel]

template <class T>
void advance(const qwen::AdvanceDecode& args, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  launch(options, advance_rows<T>, dim3(unsigned(args.batch)), dim3(kThreads), 0, stream, args);
}

}  // namespace

void qwen_advance_decode(const qwen::AdvanceDecode& args, cudaStream_t stream) {
  if (args.dtype == qwen::Dtype::kFloat16) return advance<__half>(args, stream);
  advance<__nv_bfloat16>(args, stream);
}
