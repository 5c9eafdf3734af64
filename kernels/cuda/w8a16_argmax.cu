// w8a16_argmax.cu: ids[i] = argmax of x[i, :] . W^T for an int8 W with scales, as head_argmax.cuh says.
#include "head_argmax.cuh"

void qwen_w8a16_argmax(const qwen::W8A16Argmax& args, cudaStream_t stream) {
  find_largest(Int8Weight(args.weight, args.input.k), args.input, args.result, stream);
}
