"""What PyTorch must know of an operator beside its kernels: shapes for tracing, and gradients.

The schemas and the CPU and CUDA kernels are registered in C++ (kernels/bindings). Two more dispatch keys are filled
here: the fake kernel, which torch.compile and torch.export call with tensors that have no data, and Autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qwen_cuda.loading import load_operators

NAMESPACES = ("qwen_cuda", "qwen_sim")
_keep: list[torch.library.Library] = []  # a registration lives as long as its Library


def register(
    name: str,
    fake: Callable[..., Any],
    reference: Callable[..., Any] | None = None,
    instead: str | None = None,
) -> None:
    """Registers the fake and the Autograd kernel of an operator, in both namespaces.

    Args:
        fake: gets the operator's arguments and returns outputs of the right shape, dtype and device.
        reference: the same mathematics in PyTorch. It runs in place of the kernel when a tensor needs a gradient, so
            that autograd can differentiate it. None for an operator that writes into its arguments: it refuses them.
        instead: for such an operator, the one that can be differentiated.
    """
    load_operators()
    for namespace in NAMESPACES:
        qualified = f"{namespace}::{name}"
        library = torch.library.Library(namespace, "FRAGMENT")
        _keep.append(library)
        torch.library.register_fake(qualified, fake, lib=library)
        library.impl(name, _autograd_kernel(namespace, name, reference, instead), "Autograd")


def _autograd_kernel(
    namespace: str, name: str, reference: Callable[..., Any] | None, instead: str | None
) -> Callable[..., Any]:
    kernel = getattr(getattr(torch.ops, namespace), name).default

    def autograd(*args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            if reference is None:
                raise RuntimeError(
                    f"{name}: an argument requires a gradient, and this operator overwrites its arguments; "
                    f"call {instead}, or wrap the call in torch.no_grad()."
                )
            return reference(*args, **options)
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args, **options)

    return autograd
