"""What a model must be before its modules are changed. Each refusal is one sentence, and nothing has been changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Model, Qwen3Model
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm

from qwen_cuda.integrations.huggingface.modules import (
    DEVICES,
    DTYPES,
    FusedDecoderLayer,
    FusedQwen2DecoderLayer,
    FusedQwen2RMSNorm,
    FusedQwen3DecoderLayer,
    FusedQwen3RMSNorm,
    FusedRMSNorm,
    PackedMLP,
    PackedQwen2MLP,
    PackedQwen3MLP,
)

NORMS: dict[type[nn.Module], type[nn.Module]] = {Qwen2RMSNorm: FusedQwen2RMSNorm, Qwen3RMSNorm: FusedQwen3RMSNorm}
MLPS: dict[type[nn.Module], type[nn.Module]] = {Qwen2MLP: PackedQwen2MLP, Qwen3MLP: PackedQwen3MLP}
LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    Qwen2DecoderLayer: FusedQwen2DecoderLayer,
    Qwen3DecoderLayer: FusedQwen3DecoderLayer,
}
OURS = (FusedRMSNorm, PackedMLP, FusedDecoderLayer)
_ACTIVATIONS = ("silu", "swish")


class PatchError(ValueError):
    """A model that cannot be patched or unpatched. Nothing has been changed."""


Found = list[tuple[str, Any]]


def find(model: nn.Module, *, rms_norm: bool, mlp: bool, add_rms_norm: bool) -> Found:
    """The modules to change, by name.

    Raises:
        PatchError: the model, or one of these modules, is not what our modules replace.
    """
    if not (rms_norm or mlp or add_rms_norm):
        raise PatchError("rms_norm, mlp and add_rms_norm are all False; at least one of them must be True.")
    bases = list(_bases(model))
    found: Found = []
    for prefix, base in bases:
        for name, module in base.named_modules(prefix=prefix):
            if (rms_norm and _is_norm(name)) or (mlp and name.endswith(".mlp")) or (add_rms_norm and _is_layer(name)):
                found.append((name, module))
    for name, module in found:
        _check_class(name, module)
        if type(module) in MLPS:
            _check_mlp(name, module)
    norms: Found = [
        (name, module)
        for prefix, base in bases
        for name, module in base.named_modules(prefix=prefix)
        if type(module) in NORMS
    ]
    _check_weights(norms if rms_norm or add_rms_norm else [], found)
    return found


def _bases(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The Qwen2 and Qwen3 models among the modules of `model`, by name."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise PatchError(f"model is a {kind}; it must be a Qwen2, Qwen2.5 or Qwen3 model of transformers.")
    modules = list(model.named_modules())
    if any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for _, module in modules):
        raise PatchError(f"model, a {kind}, is compiled already; patch it first, and compile it afterwards.")
    if any(isinstance(module, OURS) for _, module in modules):
        raise PatchError(f"model, a {kind}, is patched already; call unpatch(model) first.")
    bases = [(name, module) for name, module in modules if isinstance(module, (Qwen2Model, Qwen3Model))]
    if not bases:
        raise PatchError(f"model is a {kind}; it must be a Qwen2, Qwen2.5 or Qwen3 model of transformers.")
    yield from bases


def _is_norm(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm")


def _is_layer(name: str) -> bool:
    parent, _, last = name.rpartition(".")
    return last.isdigit() and parent.rpartition(".")[2] == "layers"


def _check_class(name: str, module: nn.Module) -> None:
    wanted = NORMS if _is_norm(name) else LAYERS if _is_layer(name) else MLPS
    if type(module) not in wanted:
        names = " or ".join(kind.__name__ for kind in wanted)
        raise PatchError(f"{name} is a {type(module).__name__}; it must be transformers' own {names}.")
    if "forward" in vars(module):
        raise PatchError(
            f"{name} has a forward of its own, as offloading and kernels from the hub give it; load the model without."
        )


def _check_mlp(name: str, mlp: Any) -> None:
    activation = getattr(mlp.config, "hidden_act", None)
    if activation not in _ACTIVATIONS:
        raise PatchError(f"{name} has the activation {activation!r}; silu_mul computes silu: patch with mlp=False.")
    for part in ("gate_proj", "up_proj"):
        linear = getattr(mlp, part)
        if type(linear) is not nn.Linear or "forward" in vars(linear):
            raise PatchError(
                f"{name}.{part} is a {type(linear).__name__}; only a plain nn.Linear can be packed, no quantised, "
                "adapted or parametrised one: patch with mlp=False."
            )
        if linear.bias is not None:
            raise PatchError(f"{name}.{part} has a bias, which the packed product lacks; patch with mlp=False.")


def _check_weights(norms: Found, found: Found) -> None:
    """All weights that the operators read: plain tensors of one supported dtype, on one device."""
    weights = {f"{name}.weight": module.weight for name, module in norms}
    weights |= {
        f"{name}.{part}.weight": getattr(module, part).weight
        for name, module in found
        if type(module) in MLPS
        for part in ("gate_proj", "up_proj")
    }
    first, like = next(iter(weights.items()))
    for name, weight in weights.items():
        if type(weight) is not nn.Parameter:
            raise PatchError(f"{name} is a {type(weight).__name__}; it must be a plain parameter, not a quantised one.")
        if weight.dtype not in DTYPES:
            raise PatchError(f"{name} has dtype {_short(weight.dtype)}; it must be float32, float16 or bfloat16.")
        if weight.device.type not in DEVICES:
            raise PatchError(f"{name} is on the device {weight.device}; it must be on a CPU or a CUDA device.")
        if weight.device != like.device:
            raise PatchError(f"{name} is on {weight.device}, {first} on {like.device}; all must be on one device.")
        if weight.dtype != like.dtype:
            raise PatchError(
                f"{name} has dtype {_short(weight.dtype)}, {first} {_short(like.dtype)}; all must have one dtype."
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
