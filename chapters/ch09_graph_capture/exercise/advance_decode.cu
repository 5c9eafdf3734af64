// Exercise of chapter 9: the end of a decode step with two holes. README.md beside this file says how to go about it.
//
//   grid    (rows) blocks, a row each
//   block   one thread where there is one row; else 256, which share the columns of the embedding
//
// A batch of one row needs hole 1 alone; larger ones need both.
#include <stdexcept>
#include <string>

#include "number_types.cuh"
#include "operators.h"

namespace {

constexpr int kThreads = 256;

struct Next {
  int position, slot;  // slot: -1 for a row that rests
  bool told;           // the token is one, and has its place in the history
};

// ---- Hole 1 --------------------------------------------------------------------------------------------------------
constexpr bool kNextIsWritten = false;  // set it to true once it is

// Where token `id` of this row stands, and where its K and V go. The row has a.context_lens[row] tokens so far, so that
// is the new one's position; below 0 the row is at rest. Block number position / block_size of its table,
// a.block_table[row * a.block_table_stride + ...], holds the position, and the slot is counted over all blocks.
//   * no token of the vocabulary, a row at rest, a position that the history of max_context tokens has not: {0, -1,
//   false}
//   * else, where the table of max_blocks columns has no such entry, or the entry is no block of the cache's
//     num_blocks: {position, -1, true}
//   * else {position, slot, true}
__device__ Next next_of(const qwen::AdvanceDecode& a, int64_t row, int64_t id) {
  (void)a, (void)row, (void)id;
  return {0, -1, false};  // write it here
}

// ---- Given: what a row's memory becomes ----------------------------------------------------------------------------
// One column of h: that of the token's embedding, or 0 where the row rests.
template <class T>
__device__ void store_column(const qwen::AdvanceDecode& a, int64_t row, int64_t id, const Next& next, int64_t i) {
  const T* embedding = static_cast<const T*>(a.embedding);
  a.h[row * a.hidden + i] = next.slot < 0 ? 0.0f : to_float(embedding[id * a.hidden + i]);
}

// Everything else. One thread of a row calls it, once.
__device__ void store_state(const qwen::AdvanceDecode& a, int64_t row, int64_t id, const Next& next) {
  const bool rests = next.slot < 0;
  a.context_lens[row] = rests ? -1 : next.position + 1;
  a.positions[row] = rests ? 0 : next.position;
  a.slot_mapping[row] = next.slot;
  if (!next.told) return;
  a.draws[row] += 1;
  a.history[row * a.history_stride + next.position] = id;
}

template <class T>
__global__ void advance_one_row(qwen::AdvanceDecode a) {
  grid_dependency_wait();
  const Next next = next_of(a, 0, a.ids[0]);
  for (int64_t i = 0; i < a.hidden; ++i) store_column<T>(a, 0, a.ids[0], next, i);
  store_state(a, 0, a.ids[0], next);
}

// ---- Hole 2 --------------------------------------------------------------------------------------------------------
constexpr bool kRowsAreWritten = false;  // set it to true once they are

// The same for row blockIdx.x by kThreads threads: each works out `next` for itself, stores every kThreads-th column,
// and one of them stores the state. Mind who still reads what that one writes.
template <class T>
__global__ void __launch_bounds__(kThreads) advance_rows(qwen::AdvanceDecode a) {
  grid_dependency_wait();  // ids are of the kernel ahead
  (void)a;                 // write it here
}

// ---- Given: from a call to the kernel that serves it ---------------------------------------------------------------
void need(bool written, const char* hole, const char* flag) {
  if (written) return;
  throw std::runtime_error(std::string("chapter 9, ") + hole +
                           " is not written yet: write it in chapters/ch09_graph_capture/exercise/advance_decode.cu, "
                           "then set " +
                           flag + " to true.");
}

template <class T>
void advance(const qwen::AdvanceDecode& args, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  if (args.batch == 1) return launch(options, advance_one_row<T>, dim3(1), dim3(1), 0, stream, args);
  launch(options, advance_rows<T>, dim3(unsigned(args.batch)), dim3(kThreads), 0, stream, args);
}

}  // namespace

void qwen_advance_decode(const qwen::AdvanceDecode& args, cudaStream_t stream) {
  need(kNextIsWritten, "hole 1 (next_of)", "kNextIsWritten");
  if (args.batch > 1) need(kRowsAreWritten, "hole 2 (advance_rows)", "kRowsAreWritten");
  if (args.dtype == qwen::Dtype::kFloat16) return advance<__half>(args, stream);
  advance<__nv_bfloat16>(args, stream);
}
