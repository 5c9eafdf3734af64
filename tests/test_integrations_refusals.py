"""Models that cannot be patched are refused in one sentence, and stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from qwen_cuda.integrations.huggingface import PatchError, patch, unpatch
from tests.integrations_kit import make


class _OtherNorm(nn.Module):
    """Somebody's own."""


class _OtherLinear(nn.Linear):
    """Somebody's own."""


def _layer(model: Any) -> Any:
    return model.model.layers[1]


def _weight_norm(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(_layer(model).mlp.gate_proj)


def _bias(model: Any) -> None:
    linear = _layer(model).mlp.up_proj
    linear.bias = nn.Parameter(torch.zeros(linear.out_features))


def _subclass(model: Any) -> None:
    _layer(model).mlp.up_proj.__class__ = _OtherLinear


def _offloaded(model: Any) -> None:
    _layer(model).self_attn.q_norm.forward = lambda x: x


def _own_norm(model: Any) -> None:
    _layer(model).input_layernorm = _OtherNorm()


def _own_layer(model: Any) -> None:
    _layer(model).__class__ = type("OtherLayer", (type(_layer(model)),), {})


def _half_norm(model: Any) -> None:
    model.model.norm.to(torch.bfloat16)


def _double(model: Any) -> None:
    model.double()


def _meta(model: Any) -> None:
    model.to("meta")


def _two_devices(model: Any) -> None:
    _layer(model).mlp.to("meta")


def _compiled_in_place(model: Any) -> None:
    model.compile()


def _quantised(model: Any) -> None:
    class Quantised(nn.Parameter):
        pass

    linear = _layer(model).mlp.gate_proj
    linear.weight = Quantised(linear.weight.data)


PLAIN = "only a plain nn.Linear can be packed"
REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "weight norm": (_weight_norm, f"layers.1.mlp.gate_proj is a ParametrizedLinear; {PLAIN}"),
    "bias": (_bias, "model.layers.1.mlp.up_proj has a bias"),
    "subclass": (_subclass, f"layers.1.mlp.up_proj is a _OtherLinear; {PLAIN}"),
    "offloaded": (_offloaded, "model.layers.1.self_attn.q_norm has a forward of its own"),
    "own norm": (_own_norm, "layers.1.input_layernorm is a _OtherNorm; it must be transformers' own Qwen2RMSNorm"),
    "own layer": (_own_layer, "layers.1 is a OtherLayer; it must be transformers' own Qwen2DecoderLayer or Qwen3"),
    "norm of another dtype": (_half_norm, "model.norm.weight has dtype bfloat16, .* float32; all must have one dtype"),
    "float64": (_double, "has dtype float64; it must be float32, float16 or bfloat16"),
    "meta": (_meta, "is on the device meta; it must be on a CPU or a CUDA device"),
    "in part on another device": (_two_devices, "model.layers.1.mlp.gate_proj.weight is on the device meta"),
    "compiled in place": (_compiled_in_place, "is compiled already; patch it first, and compile it afterwards"),
    "quantised weight": (_quantised, "layers.1.mlp.gate_proj.weight is a Quantised; it must be a plain parameter"),
    "patched": (patch, r"is patched already; call unpatch\(model\) first"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_does_not_fit_is_refused_and_nothing_changes(name: str) -> None:
    change, sentence = REFUSED[name]
    model = make()
    change(model)
    classes = [type(module) for module in model.modules()]
    addresses = [weight.data_ptr() for weight in model.parameters()]
    with pytest.raises(PatchError, match=sentence) as error:
        patch(model)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    assert [type(module) for module in model.modules()] == classes
    assert [weight.data_ptr() for weight in model.parameters()] == addresses


def test_another_activation_is_refused_unless_the_mlp_stays() -> None:
    model = make(hidden_act="gelu")
    with pytest.raises(PatchError, match="has the activation 'gelu'; silu_mul computes silu: patch with mlp=False"):
        patch(model)
    patch(model, mlp=False)


def test_what_is_not_switched_on_is_not_asked_for() -> None:
    for change, switches in ((_bias, {"mlp": False}), (_own_norm, {"rms_norm": False})):
        model = make()
        change(model)
        patch(model, **switches)


@pytest.mark.parametrize("model", [LlamaForCausalLM, None, 3], ids=["another family", "None", "number"])
def test_another_model_is_refused(model: Any) -> None:
    if model is LlamaForCausalLM:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                             num_attention_heads=1))  # fmt: skip
    with pytest.raises(PatchError, match=f"model is a {type(model).__name__}; it must be a Qwen2, Qwen2.5 or Qwen3"):
        patch(model)


def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(PatchError, match="is compiled already"):
        patch(torch.compile(make()))  # type: ignore[type-var]


def test_nothing_to_switch_on_is_refused() -> None:
    with pytest.raises(PatchError, match="are all False; at least one of them must be True"):
        patch(make(), rms_norm=False, mlp=False, add_rms_norm=False)


def test_a_plain_model_cannot_be_unpatched() -> None:
    with pytest.raises(PatchError, match="is not patched; there is nothing to undo"):
        unpatch(make())
