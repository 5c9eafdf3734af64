"""A model of transformers in float64: what its weights say, as far as that can be computed."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from qwen3_ref.functional import rms_norm


class _ExactRMSNorm(nn.Module):
    """transformers' norms compute in float32 whatever comes in; this one in the dtype of its input."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon, "fused")


def in_float64(model: Any) -> Any:
    """A copy of an unpatched model that computes in float64, norms included.

    The table of RoPE stays what transformers makes of it, in float32: it is part of the model, and the same for all.
    """
    exact = copy.deepcopy(model).double()
    for module in exact.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = _ExactRMSNorm
    return exact
