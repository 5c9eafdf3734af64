// advance_decode.cu: the end of a decode step. Each row goes on with its new token, and the host need not know yet.
//
// Mapping   A block a row; its threads share the columns of the embedding. Thread 0 counts.
// Traffic   2 bytes read and 4 written a column: a few KiB, which latency hides.
// Contract  Exact: a 16-bit number is a float. The token's id reaches `history` in one store of 8 bytes, so that a host
//           that looks there, in its own memory, sees the old number or the new one.
#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256;

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
  const int64_t id = a.ids[row];
  const Next next = next_of(a, row, id);
  const bool rests = next.slot < 0;
  const T* token = static_cast<const T*>(a.embedding) + (rests ? 0 : id) * a.hidden;
  for (int64_t i = threadIdx.x; i < a.hidden; i += kThreads) {
    a.h[row * a.hidden + i] = rests ? 0.0f : to_float(token[i]);
  }
  __syncthreads();  // all have read context_lens
  if (threadIdx.x != 0) return;
  a.context_lens[row] = rests ? -1 : next.position + 1;
  a.positions[row] = rests ? 0 : next.position;
  a.slot_mapping[row] = next.slot;
  if (!next.told) return;
  a.draws[row] += 1;
  a.history[row * a.history_stride + next.position] = id;
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
