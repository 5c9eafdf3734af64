// head_argmax.cu: ids[i] = argmax of x[i, :] . W^T for a bf16 or fp16 W, as head_argmax.cuh says.
#include "head_argmax.cuh"

void qwen_head_argmax(const qwen::HeadArgmax& args, cudaStream_t stream) {
  const auto of_type = [&](auto zero) {
    using T = decltype(zero);
    const FloatWeight<T> weight{static_cast<const T*>(args.weight), args.n, int(args.input.k)};
    find_largest(weight, args.input, args.result, stream);
  };
  if (args.weight_dtype == qwen::Dtype::kFloat16) return of_type(__half{});
  of_type(__nv_bfloat16{});
}
