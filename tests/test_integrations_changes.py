"""What happens to a patched model: weights are cast, loaded, replaced and trained, the model is copied and pickled."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from qwen_cuda.integrations.huggingface import patch, patched_modules
from qwen_cuda.testing.ulp import assert_same_bits
from tests.integrations_kit import CONFIGS, assert_near, count_calls, logits, make, tokens

pytestmark = pytest.mark.usefixtures("one_thread")


def test_copies_and_pickles_stay_patched_and_own_their_weights() -> None:
    model = patch(make())
    ids = tokens(model)
    before = logits(model, ids)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert_same_bits(logits(other, ids), before)
        assert patched_modules(other) == patched_modules(model)
        with torch.no_grad():
            other.model.layers[1].mlp.gate_proj.weight.neg_()
        assert not torch.equal(logits(other, ids), before)
        assert_same_bits(logits(model, ids), before)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_model(family: str, checkpointing: bool) -> None:
    model = make(family)
    other = patch(copy.deepcopy(model))
    for one in (model, other):
        if checkpointing:
            one.train().gradient_checkpointing_enable()
        one(tokens(model), labels=tokens(model)).loss.backward()
    for (name, mine), (_, theirs) in zip(other.named_parameters(), model.named_parameters(), strict=True):
        assert mine.grad is not None, name
        assert_near(mine.grad, theirs.grad, 256)


def test_a_frozen_model_gives_gradients_to_its_inputs() -> None:
    model = make().requires_grad_(False)
    inputs = model.get_input_embeddings()(tokens(model)).clone().requires_grad_()
    (before,) = torch.autograd.grad(model(inputs_embeds=inputs).logits.square().mean(), inputs)
    (after,) = torch.autograd.grad(patch(model)(inputs_embeds=inputs).logits.square().mean(), inputs)
    assert_near(after, before, 256)


def test_an_optimiser_step_reaches_the_packed_weight() -> None:
    model = make()
    other = patch(copy.deepcopy(model))
    for one in (model, other):
        optimiser = torch.optim.SGD(one.parameters(), lr=0.5)
        one(tokens(model), labels=tokens(model)).loss.backward()
        optimiser.step()
    assert_near(logits(other, tokens(model)), logits(model, tokens(model)), 512)


def _cast(model: Any) -> None:
    model.to(torch.bfloat16)


def _reload(model: Any) -> None:
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()})


def _assign(model: Any) -> None:
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()}, assign=True)
    model.tie_weights()


def _replace(model: Any) -> None:
    old = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = nn.Linear(old.in_features, old.out_features, bias=False)
    nn.init.constant_(model.model.layers[0].mlp.up_proj.weight, 0.01)


class _Adapted(nn.Module):
    """As adapters wrap a layer: the weight of the wrapped one is still to be found under its name."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.5 * self.base(x)


def _adapt(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.gate_proj = _Adapted(mlp.gate_proj)


def _set_data(model: Any) -> None:
    weight = model.model.layers[0].mlp.gate_proj.weight
    weight.data = weight.data * 2


def _widen(model: Any) -> None:
    model.to(torch.float64)


@pytest.mark.parametrize("change", [_cast, _reload, _assign, _replace, _adapt, _set_data, _widen])
def test_weights_that_change_after_patching_count(change: Any) -> None:
    model = make()
    other = patch(copy.deepcopy(model))
    change(model)
    change(other)
    expected = logits(model, tokens(model))
    assert_near(logits(other, tokens(model)), expected, 8 if expected.dtype == torch.bfloat16 else 64)


def test_a_weight_that_is_replaced_after_compiling_counts() -> None:
    model = make(num_hidden_layers=1)
    other = patch(copy.deepcopy(model))
    torch._dynamo.reset()
    compiled = torch.compile(other, backend="aot_eager")
    logits(compiled, tokens(model))
    _assign(model)
    _assign(other)
    assert_near(logits(compiled, tokens(model)), logits(model, tokens(model)))


def test_a_cast_model_is_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    model = patch(make()).to(torch.bfloat16)
    logits(model, tokens(model))
    assert calls["silu_mul"] == 3


def test_autocast_computes_what_it_did() -> None:
    model = make()
    with torch.autocast("cpu", torch.bfloat16):
        before = logits(model, tokens(model))
        assert_near(logits(patch(model), tokens(model)), before, 8)
