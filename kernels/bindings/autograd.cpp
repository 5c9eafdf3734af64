// Autograd of all operators: their kernels know no gradients, so where one is wanted the reference in PyTorch runs.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <list>

#include "operators.h"

namespace {

bool wants_gradient(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!c10::GradMode::is_enabled()) return false;
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::IValue& one) { return one.isTensor() && one.toTensor().requires_grad(); });
}

// Python registers the reference of `op` as the operator `op`_reference; one that writes into its arguments has none.
void autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!wants_gradient(op, *stack)) {
    const at::AutoDispatchBelowAutograd guard;
    return op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  const std::string& full = op.schema().name();
  const std::string name = full.substr(full.rfind(':') + 1);
  const auto reference = c10::Dispatcher::singleton().findSchema({full + "_reference", ""});
  const std::string other = name.back() == '_' ? "call " + name.substr(0, name.size() - 1) + ", or wrap" : "wrap";
  TORCH_CHECK(reference.has_value(), name, ": an argument requires a gradient, and this operator overwrites its ",
              "arguments; ", other, " the call in torch.no_grad().");
  reference->callBoxed(stack);
}

}  // namespace

// Gives the operator `name` of a namespace this Autograd kernel.
QWEN_EXPORT void qwen_register_autograd(const char* space, const char* name) {
  static std::list<torch::Library>* const kept = new std::list<torch::Library>;  // a registration lives as long
  kept->emplace_back(torch::Library::IMPL, space, c10::DispatchKey::Autograd, __FILE__, __LINE__);
  kept->back().impl(name, torch::CppFunction::makeFromBoxedFunction<&autograd>());
}
