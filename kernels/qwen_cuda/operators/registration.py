"""What PyTorch must know of an operator beside its kernels: shapes for tracing, and gradients.

The schemas and the kernels for CPU, CUDA and Autograd are written in C++ (kernels/bindings). Filled here are the fake
kernel, which torch.compile and torch.export call with tensors that have no data, and the reference, a second operator
that the Autograd kernel calls where a gradient is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qwen_cuda.loading import load_operators, register_autograd

NAMESPACES = ("qwen_cuda", "qwen_sim")
_keep: list[torch.library.Library] = []  # a registration lives as long as its Library


def register(name: str, fake: Callable[..., Any], reference: Callable[..., Any] | None = None) -> None:
    """Registers the fake and the Autograd kernel of an operator, in both namespaces.

    Args:
        fake: gets the operator's arguments and returns outputs of the right shape, dtype and device.
        reference: the same mathematics in PyTorch. It runs in place of the kernel when a tensor needs a gradient, so
            that autograd can differentiate it. None for an operator that writes into its arguments: it refuses them,
            and names the operator without the underscore.
    """
    load_operators()
    for namespace in NAMESPACES:
        library = torch.library.Library(namespace, "FRAGMENT")
        _keep.append(library)
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
        if reference is not None:
            schema = str(getattr(getattr(torch.ops, namespace), name).default._schema)
            library.define(schema.partition("::")[2].replace(name, f"{name}_reference", 1))
            library.impl(f"{name}_reference", reference, "CompositeImplicitAutograd")
        register_autograd(namespace, name)
