"""Which of our operators a model has, and models that have them and share one set of weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, get_args

from qwen_cuda.integrations.huggingface import patch

Rounding = Literal["hf", "single"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
UNPATCHED = "unpatched"


@dataclass(frozen=True)
class Configuration:
    """Arguments of `patch` under a name."""

    name: str
    rms_norm: bool = False
    mlp: bool = False
    add_rms_norm: bool = False


CONFIGURATIONS = (
    Configuration("rms_norm", rms_norm=True),
    Configuration("mlp", mlp=True),
    Configuration("rms_norm+mlp", rms_norm=True, mlp=True),
    Configuration("rms_norm+add", rms_norm=True, add_rms_norm=True),
    Configuration("all", rms_norm=True, mlp=True, add_rms_norm=True),
)
TIMED = tuple(one for one in CONFIGURATIONS if one.name != "rms_norm+add")


def copy_sharing_weights(model: Any) -> Any:
    """The same modules once more, around the very parameters and buffers of `model`."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def patched_copy(model: Any, configuration: Configuration, rounding: Rounding) -> Any:
    """`model` with our operators, as another model on the same weights; `model` computes what it did.

    Packed weights are shared too: the parameters of gate and up become halves of one tensor in all of them.
    """
    return patch(
        copy_sharing_weights(model),
        rms_norm=configuration.rms_norm,
        mlp=configuration.mlp,
        add_rms_norm=configuration.add_rms_norm,
        hf_rounding=rounding == "hf",
    )
