"""`patch` and `unpatch`: modules of a model become ours, and become again what they were."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from torch import nn

from qwen_cuda.integrations.huggingface.checks import LAYERS, MLPS, NORMS, OURS, PatchError, find
from qwen_cuda.integrations.huggingface.modules import PackedMLP
from qwen_cuda.integrations.huggingface.packing import unpack

Model = TypeVar("Model", bound=nn.Module)

_TWINS = NORMS | MLPS | LAYERS
_ORIGINALS = {ours: theirs for theirs, ours in _TWINS.items()}
_ADDED = ("hf_rounding", "gate_up_weight", "packed_parameters")


def patch(
    model: Model, *, rms_norm: bool = True, mlp: bool = True, add_rms_norm: bool = True, hf_rounding: bool = True
) -> Model:
    """Puts our operators into a Qwen2, Qwen2.5 or Qwen3 model of transformers, in place.

    Args:
        model: any model of transformers that holds a `Qwen2Model` or a `Qwen3Model`, in float32, float16 or bfloat16,
            on a CPU or one CUDA device.
        rms_norm: all RMSNorms: before attention, after it, the last one, and Qwen3's norms of queries and keys.
        mlp: the MLPs. The weights of gate and up become halves of one tensor, by a copy of one layer at a time; the
            parameters, their names and their values stay.
        add_rms_norm: the addition after attention and the norm after it, as one operator.
        hf_rounding: round to the dtype wherever transformers does, so that results differ from its own by no more than
            the order of sums. False rounds once at the end of each operator, which is nearer to exact arithmetic.
    Returns:
        `model`.
    Raises:
        PatchError: the model is none of these, is patched or compiled already, or one of its modules is not what ours
            replace: quantised or adapted weights, a bias in the MLP, an activation other than SiLU, weights on several
            devices. Nothing has been changed then.

    Gradients are right: where a weight needs one, PyTorch's own operations compute in place of ours.
    """
    for _, module in find(model, rms_norm=rms_norm, mlp=mlp, add_rms_norm=add_rms_norm):
        module.__class__ = _TWINS[type(module)]
        module.hf_rounding = hf_rounding
        if isinstance(module, PackedMLP):
            module.pack()
    return model


def unpatch(model: Model) -> Model:
    """Takes our operators out of a model again; gate and up get memory of their own.

    Raises:
        PatchError: the model is not patched.
    """
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, OURS)]
    if not modules:
        raise PatchError(f"model, a {type(model).__name__}, is not patched; there is nothing to undo.")
    for module in modules:
        if isinstance(module, PackedMLP) and module.gate_up_weight is not None:
            unpack(module.gate_proj, module.up_proj)
        for name in _ADDED:
            vars(module).pop(name, None)
        module.__class__ = _ORIGINALS[type(module)]
    return model


def is_patched(model: nn.Module) -> bool:
    """Whether any module of the model is ours."""
    return any(isinstance(module, OURS) for module in model.modules())


def patched_modules(model: nn.Module) -> dict[str, int]:
    """How many modules of each of our classes the model holds, by the name of the class."""
    return dict(Counter(type(module).__name__ for module in model.modules() if isinstance(module, OURS)))
