// w8a16_linear.cu: out = x . W^T, or the RMSNorm of x times W^T, for int8 weights with a scale for each group of
// columns.
//
// Mapping   head_rows.cuh: warps walk over the rows of W, four at a time, 16 bytes of each row a lane.
// Traffic   n * k bytes of weights and 4 * n * k / group of scales in, batch * n results out. A weight costs 2.25
//           instructions to convert and one multiply-add for each row of x.
// Contract  Bytes become floats exactly. A lane's 16 products are summed in fp32, multiplied by their group's scale and
//           added in fp32; one rounding at the end, none where out is fp32. |x| must stay below 2^116: a sum of 16
//           products with weights that are not yet scaled must fit into fp32.
#include "head_rows.cuh"

namespace {

struct Logits {
  void* data;  // [batch, n]
  int64_t n;
  qwen::Dtype dtype;

  __device__ __forceinline__ void store(int64_t row, int i, float value) const {
    const int64_t at = i * n + row;
    if (dtype == qwen::Dtype::kFloat32) {
      static_cast<float*>(data)[at] = value;
    } else if (dtype == qwen::Dtype::kFloat16) {
      static_cast<__half*>(data)[at] = from_float<__half>(value);
    } else {
      static_cast<__nv_bfloat16*>(data)[at] = from_float<__nv_bfloat16>(value);
    }
  }
};

// --8<-- [start:kernel]
template <int kBatch, bool kAligned>
__global__ void __launch_bounds__(kHeadThreads, kHeadBlocks<Int8Weight, kBatch>)
    multiply_rows(Int8Weight weight, qwen::HeadInput input, Logits out) {
  walk_rows<Int8Weight, kBatch, kAligned>(weight, input, [&](int64_t row, int i, float logit, bool first) {
    if (first && i < input.batch) out.store(row, i, logit);
  });
}
// --8<-- [end:kernel]

}  // namespace

void qwen_w8a16_linear(const qwen::W8A16Linear& args, cudaStream_t stream) {
  const Int8Weight weight(args.weight, args.input.k);
  const int64_t out_size = args.out_dtype == qwen::Dtype::kFloat32 ? 4 : 2;
  for_batches(weight, args.input.batch, [&](int64_t first, int64_t rows, auto batch, auto aligned) {
    LaunchOptions options;
    options.dependent = true;
    const Logits out{static_cast<char*>(args.out) + first * weight.rows * out_size, weight.rows, args.out_dtype};
    launch(options, multiply_rows<batch.value, aligned.value>, dim3(head_blocks<batch.value>(weight)),
           dim3(kHeadThreads), size_t(head_shared_bytes(weight, batch.value)), stream, weight,
           input_rows(args.input, first, rows), out);
  });
}
