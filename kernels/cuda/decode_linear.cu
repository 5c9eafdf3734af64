// decode_linear.cu: out = x W^T for the 1 to 8 rows of x that decoding has, with what stands before and after it: the
// norm of x, the sum with a residual, SiLU(gate) * up.
//
// Mapping   Thread (32 * part + lane, group) of a block. A warp takes kRows rows of W and of those a segment of 256
//           columns (tile_rows.cuh); the `parts` warps of a group have the whole rows. Tensor Cores multiply, since
//           what counts is how soon after the kernel ahead a kernel ends. A W of more rows than blocks should come and
//           go for is walked over (row_walk.cuh); what Tensor Cores do not take is left to row_turns.cuh.
// Order     Tensor Cores add a segment, then the segments are added in order. Which way it goes follows from W alone:
//           a row's bits are the same alone and in a batch, however x and W lie.
// Norm      1/rms is a factor of the finished sum, so that no warp waits for it.
// Traffic   W once, n * k elements; x from the caches, once for each block. Memory decides, and the launches' links.
// Contract  fp32 sums and one rounding; before a 16-bit output x in fp32 counts with 16 bits. With prefetch, weight and
//           norm_weight are read before grid_dependency_wait().
#include "row_turns.cuh"
#include "row_walk.cuh"
#include "tile_rows.cuh"

namespace {

// Waves of blocks, whose warps have one group of rows each, before blocks that stay are better.
#ifdef __CUDACC__
constexpr int kWaves = 16;
#else
constexpr int kWaves = 1;  // so that a layer need not be large to be walked over
#endif

// Of a block.
template <int kRows>
constexpr int kMostWarps = kRows > 8 ? 12 : 16;

// What the compiler is told of a block's threads and of blocks on an SM. It then uses at most 96 registers for 16 rows
// and 64 for 8: gate and up leave room for the next kernel's blocks, whose weights come in while these are multiplied.
template <int kRows>
constexpr int kThreads = (kRows > 8 ? 20 : 16) * kWarpSize;
template <int kRows, bool kOne>
constexpr int kOnSm = kRows > 8 || !kOne ? 1 : 2;
constexpr int kMostRows = 8;  // of x

// kOne: x has one row, and no instruction goes into a loop over rows. kCut: bf16 numbers that each number of x becomes.
// --8<-- [start:kernel]
template <int kRows, bool kOne, int kCut, bool kNorm, bool kAligned, class W, class X>
__global__ void __launch_bounds__(kThreads<kRows>, kOnSm<kRows, kOne>) multiply_tiles(LinearOperands<W, X> a) {
  using Input = TileInput<kCut, W>;
  // Rows of x: at most, and of a tile.
  constexpr int kBatch = kOne ? 1 : kMostRows, kTileRows = 4 / Input::kSlots;
  __shared__ Meeting<kMostWarps<kRows>, kRows * kBatch, kBatch> meeting;
  const int batch = kOne ? 1 : a.batch;
  const int lane = threadIdx.x % kWarpSize, group = blockIdx.x * blockDim.y + threadIdx.y;
  const int part = threadIdx.x / kWarpSize, parts = blockDim.x / kWarpSize;
  const Input x{dynamic_shared<W>() + part * batch * kCut * Input::kStride};
  // The next kernel may come in, and ask for its weights while we work.
  grid_dependency_trigger();
  if (!a.prefetch) grid_dependency_wait();

  const int column = part * kSegmentColumns + lane * kLaneColumns, left = a.k - column;
  // Where a lane without columns reads: any that there are.
  const int place = kAligned ? min(column, a.k - kLaneColumns) : column;
  TileRows<kRows, W> rows;
  LaneColumns<W> gain;
  rows.template load<kAligned>(a, group, part, lane);
  if constexpr (kNorm) gain.template load<kAligned, false>(a.norm_weight + place, left);
  grid_dependency_wait();  // before it nothing is read that a kernel may have written

  // Row i of x goes to shared memory by a warp of each segment. It is asked for at once.
  LaneColumns<X> raw;
  float squares = 0.0f;
  const auto read = [&](int i) {
    const X* from = a.x_row(i) + place;
    raw.template load<kAligned, false>(from, left);
  };
  const auto put = [&](int i) {
    const bool counts = left > 0;
    squares = x.template put<kNorm>(i, lane, raw, gain, counts);
  };
  const auto leave_squares = [&](int i) {
    if (lane == 0) meeting.squares[part][i] = squares;
  };
  const bool reads = threadIdx.y < batch;
  int row = kOne ? 0 : threadIdx.y;  // the last one that this warp reads
  if (reads) read(row);
  // The column of out of this lane's row of W, and what is added there for row i of x.
  const bool is_up = a.silu_mul && lane >= kRows / 2;
  const int to = group * (a.silu_mul ? kRows / 2 : kRows) + lane;
  const bool writes = lane < kRows && to < a.columns && !is_up;
  const bool adds = writes && a.residual != nullptr;
  const auto added = [&](int i) { return adds && i < batch ? a.residual_bits(i, to) : 0; };
  unsigned residual = kOne && part > 0 ? 0 : added(part);
  if (reads) put(row);
  if constexpr (!kOne) {
    for (int i = row + blockDim.y; i < batch; i += blockDim.y) {
      if (kNorm) squares = warp_sum(squares), leave_squares(row);
      read(row = i), put(i);
    }
  }
  __syncthreads();

  if (kNorm) squares = warp_sum(squares);  // of warps without x as well: no branch, and it runs beside the products
#pragma unroll 1
  for (int first = 0; first < batch; first += kTileRows) {
    TileSums<kRows> sums;
    sums.multiply(rows, x.column(first, batch, lane));
    const int i = first + lane % 4 / Input::kSlots;
#pragma unroll
    for (int h = 0; h < kRows / 8; ++h) {
      const float sum = sums.template product<Input::kSlots>(h, lane);
      if (lane % Input::kSlots == 0 && i < batch) {
        meeting.products[threadIdx.y * parts + part][i * kRows + 8 * h + lane / 4] = sum;
      }
    }
  }
  if (kNorm && reads) leave_squares(row);
  __syncthreads();

  const auto finish = [&](int i) {
    RowSum sum = {0.0f, 0.0f};
    if (lane < kRows) {
      const int first = threadIdx.y * parts, at = i * kRows + lane;
      sum = meeting.template sums<kNorm>(first, parts, at, i);
    }
    finish_row<kNorm>(a, sum, i, to, writes, adds, residual, kRows / 2);
  };
  if (part < batch) finish(kOne ? 0 : part);
  if constexpr (!kOne) {
    for (int i = part + parts; i < batch; i += parts) {
      residual = added(i);
      finish(i);
    }
  }
}
// --8<-- [end:kernel]

constexpr size_t kStaticBytes = 8192;  // more than any meeting

// Turing has tiles of halves alone.
#ifdef __CUDACC__
bool tensor_cores_take_bf16() {
  return cuda_platform::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
}
#else
bool tensor_cores_take_bf16() {
  return true;
}
#endif

// Rows of W that the busiest SM gets, where each gets a group of `rows` in turn.
template <class W, class X>
int64_t busiest(const LinearOperands<W, X>& a, int rows) {
  return ceil_div(groups_of(a, rows), multiprocessors()) * rows;
}

// Blocks as large as they need be for one on each SM.
template <int kRows, bool kOne, int kCut, bool kNorm, bool kAligned, class W, class X>
void launch_rows(const LinearOperands<W, X>& a, cudaStream_t stream) {
  LaunchOptions options;
  options.dependent = true;
  const int64_t segments = segments_of(a), most = kMostWarps<kRows> / segments, groups = groups_of(a, kRows);
  const int64_t share = ceil_div(groups, multiprocessors()), of_block = share < most ? share : most;
  const dim3 grid(unsigned(ceil_div(groups, of_block))), block(unsigned(segments * kWarpSize), unsigned(of_block));
  const size_t shared_bytes = size_t(segments * a.batch) * TileInput<kCut, W>::kRowBytes;
  launch(options, multiply_tiles<kRows, kOne, kCut, kNorm, kAligned, W, X>, grid, block, shared_bytes, stream, a);
}

// x as kCut numbers. False, and nothing is launched, where W is not for tiles, whatever x is.
template <int kCut, bool kNorm, class W, class X>
bool launch_tiles(const LinearOperands<W, X>& a, cudaStream_t stream) {
  const int64_t segments = segments_of(a), most = kMostWarps<8> / segments;
  const size_t largest = size_t(segments * kMostRows) * TileInput<kCut, W>::kRowBytes;
  if (!tensor_cores_take_bf16() || largest + kStaticBytes > size_t(most_shared_bytes())) return false;
  if (groups_of(a, 8) > 2 * kWaves * multiprocessors() * most) return false;
  // More rows a warp where they come out even; and where blocks come one after the other, for more bytes on their way.
  const bool wide = segments <= kMostWarps<16> && (busiest(a, 16) <= busiest(a, 8) ||
                                                   groups_of(a, 16) > multiprocessors() * (kMostWarps<16> / segments));
  if (!is_aligned(a)) {
    launch_rows<8, false, kCut, kNorm, false>(a, stream);
  } else if (a.batch > 1) {
    launch_rows<8, false, kCut, kNorm, true>(a, stream);
  } else if (wide) {
    launch_rows<16, true, kCut, kNorm, true>(a, stream);
  } else {
    launch_rows<8, true, kCut, kNorm, true>(a, stream);
  }
  return true;
}

// 16-bit x stays as it is. What is cut in three keeps its 24 bits, for a result in fp32.
template <bool kNorm, class W, class X>
bool launch_tiles_of(const LinearOperands<W, X>& a, cudaStream_t stream) {
  if constexpr (!kNorm && std::is_same_v<X, W>)
    return launch_tiles<1, kNorm>(a, stream);
  else
    return a.wide_out ? launch_tiles<3, kNorm>(a, stream) : launch_tiles<2, kNorm>(a, stream);
}

template <bool kNorm, class W, class X>
void choose(const LinearOperands<W, X>& a, cudaStream_t stream) {
  if constexpr (std::is_same_v<W, __nv_bfloat16>) {
    if (launch_tiles_of<kNorm>(a, stream)) return;
  }
  if (!is_aligned(a)) return launch_turns<4, 1, kNorm, false>(a, stream);
  if (a.batch > 4) return launch_turns<4, 8, kNorm, true>(a, stream);
  if (a.batch > 2) return launch_turns<4, 4, kNorm, true>(a, stream);
  if (a.batch > 1) return launch_turns<8, 2, kNorm, true>(a, stream);
  const int64_t walkers = int64_t(multiprocessors()) * kWalkBlocks * kWalkWarps;
  groups_of(a, kWalkRows) < walkers ? launch_turns<4, 1, kNorm, true>(a, stream) : launch_walk<kNorm>(a, stream);
}

}  // namespace

void qwen_decode_linear(const qwen::DecodeLinear& args, cudaStream_t stream) {
  dispatch_linear(args, [&](auto a) {
    dispatch_switch(a.norm_weight != nullptr, [&](auto norm) { choose<norm.value>(a, stream); });
  });
}
