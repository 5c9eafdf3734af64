// sample_tokens: schema, checks, output, and the way to the kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "cpu_operators.h"

namespace {

using at::Tensor;
using qwen::Backend;

constexpr const char* kOp = "sample_tokens";
constexpr int64_t kMostBatch = 8, kMostVocabulary = 1 << 20;

const char* name_of(at::ScalarType type) {
  return type == at::kFloat ? "float32" : type == at::kInt ? "int32" : "int64";
}

void check_operand(const char* name, const Tensor& t, at::ScalarType type, const Tensor& logits) {
  TORCH_CHECK(t.scalar_type() == type, kOp, ": ", name, " has dtype ", t.scalar_type(), "; it must be ", name_of(type),
              ".");
  TORCH_CHECK(t.device() == logits.device(), kOp, ": ", name, " is on ", t.device(), " and logits on ", logits.device(),
              "; they must be on one device.");
  TORCH_CHECK(t.layout() == at::kStrided && t.is_contiguous(), kOp, ": ", name, " has gaps or another layout; pass ",
              name, ".contiguous().");
}

template <class T>
const T* parameter(const char* name, const Tensor& t, const Tensor& logits) {
  check_operand(name, t, c10::CppTypeToScalarType<T>::value, logits);
  TORCH_CHECK(t.dim() == 1 && t.size(0) == logits.size(0), kOp, ": ", name, " has shape ", t.sizes(), "; it must be [",
              logits.size(0), "], one for each row of logits.");
  return static_cast<const T*>(t.const_data_ptr());
}

template <Backend B>
Tensor sample_tokens(const Tensor& logits,
                     const Tensor& temperature,
                     const Tensor& top_k,
                     const Tensor& top_p,
                     const Tensor& min_p,
                     const Tensor& repetition_penalty,
                     const Tensor& seeds,
                     const Tensor& draws,
                     Tensor& seen) {
  qwen::check_device(B, kOp, "logits", logits);
  check_operand("logits", logits, at::kFloat, logits);
  TORCH_CHECK(logits.dim() == 2, kOp, ": logits has shape ", logits.sizes(), "; it must be [batch, vocabulary].");
  qwen::SampleTokens args{};
  args.batch = logits.size(0), args.vocab = logits.size(1), args.seen_words = (args.vocab + 31) / 32;
  TORCH_CHECK(args.batch <= kMostBatch, kOp, ": logits has shape ", logits.sizes(), "; at most 8 rows are supported.");
  TORCH_CHECK(args.vocab >= 1 && args.vocab <= kMostVocabulary, kOp, ": logits has shape ", logits.sizes(),
              "; a row must have 1 to ", kMostVocabulary, " logits.");
  args.logits = static_cast<const float*>(logits.const_data_ptr());
  args.temperature = parameter<float>("temperature", temperature, logits);
  args.top_k = parameter<int32_t>("top_k", top_k, logits);
  args.top_p = parameter<float>("top_p", top_p, logits);
  args.min_p = parameter<float>("min_p", min_p, logits);
  args.repetition_penalty = parameter<float>("repetition_penalty", repetition_penalty, logits);
  args.seeds = parameter<int64_t>("seeds", seeds, logits);
  args.draws = parameter<int64_t>("draws", draws, logits);
  check_operand("seen", seen, at::kInt, logits);
  TORCH_CHECK(seen.dim() == 2 && seen.size(0) == args.batch && seen.size(1) == args.seen_words, kOp,
              ": seen has shape ", seen.sizes(), "; it must be [", args.batch, ", ", args.seen_words,
              "], one bit for each logit: qwen_cuda.operators.seen_tokens makes one.");
  const std::pair<const char*, const Tensor*> inputs[] = {
      {"logits", &logits}, {"temperature", &temperature},
      {"top_k", &top_k},   {"top_p", &top_p},
      {"min_p", &min_p},   {"repetition_penalty", &repetition_penalty},
      {"seeds", &seeds},   {"draws", &draws}};
  for (const auto& [name, tensor] : inputs) qwen::check_apart(kOp, "seen", seen, name, *tensor);

  Tensor token = at::empty({args.batch}, logits.options().dtype(at::kLong));
  if (args.batch == 0) return token;
  args.seen = static_cast<int32_t*>(seen.mutable_data_ptr());
  args.token = static_cast<int64_t*>(token.mutable_data_ptr());
  if constexpr (B == Backend::kCpu) {
    at::parallel_for(0, args.batch, 1,
                     [&](int64_t first, int64_t last) { qwen::cpu::sample_tokens(args, first, last); });
  } else {
    const c10::DeviceGuard guard(logits.device());
    const qwen::KnownOperands known(B, kOp);
    for (const auto& [name, tensor] : inputs)
      known.add(name, tensor->const_data_ptr(), qwen::span_bytes(*tensor), false);
    known.add("seen", args.seen, qwen::span_bytes(seen), true);
    known.add("token", args.token, qwen::span_bytes(token), true);
    reinterpret_cast<decltype(&qwen_sample_tokens)>(qwen::find_launcher(B, kOp))(args, qwen::current_stream(logits));
  }
  return token;
}

void define(torch::Library& m) {
  // --8<-- [start:schema]
  m.def(
      "sample_tokens(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p,"
      " Tensor min_p, Tensor repetition_penalty, Tensor seeds, Tensor draws,"
      " Tensor(a!) seen) -> Tensor");
  // --8<-- [end:schema]
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qwen_cuda, m) {
  define(m);
}
TORCH_LIBRARY_FRAGMENT(qwen_sim, m) {
  define(m);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CPU, m) {
  m.impl("sample_tokens", &sample_tokens<Backend::kCpu>);
}
TORCH_LIBRARY_IMPL(qwen_cuda, CUDA, m) {
  m.impl("sample_tokens", &sample_tokens<Backend::kCuda>);
}
TORCH_LIBRARY_IMPL(qwen_sim, CPU, m) {
  m.impl("sample_tokens", &sample_tokens<Backend::kSim>);
}
// To be refused with a sentence.
TORCH_LIBRARY_IMPL(qwen_sim, CUDA, m) {
  m.impl("sample_tokens", &sample_tokens<Backend::kSim>);
}
