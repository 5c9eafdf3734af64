"""What `make drop-in` times: the steps that `generate` takes, on shared weights, in alternating order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chapters.ch03_swiglu.drop_in import speed
from chapters.ch03_swiglu.drop_in.configurations import CONFIGURATIONS, patched_copy
from chapters.ch03_swiglu.drop_in.models import Subject
from chapters.ch03_swiglu.drop_in.runners import GraphRunner, operators_per_step, runner
from chapters.ch03_swiglu.drop_in.speed import BLOCK, TOKENS, work
from qwen_cuda.integrations.huggingface import is_patched
from qwen_cuda.testing.ulp import assert_same_bits
from tests.integrations_kit import CONFIGS, logits, make, tokens

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = CONFIGURATIONS[-1]


def test_a_short_cache_starts_again_and_rounds_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rounds than the 128 tokens have: block k of a pass always appends to a cache of the same length."""
    seen: list[tuple[str, str, int]] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name, self.length = name, 0

        def start(self, prompt: torch.Tensor) -> None:
            self.length = prompt.shape[1]

        def steps(self, count: int) -> list[float]:
            seen.append((self.name, "steps", self.length))
            self.length += count
            return [1.0]

    subject = Subject("m", make(), ())
    measured = speed.Speed.__new__(speed.Speed)
    measured._subject, measured._rounds = subject, TOKENS // BLOCK + 2
    samples = measured._decode({"a": Recorder("a"), "b": Recorder("b")}, 5)  # type: ignore[dict-item]
    blocks = seen[2:]
    assert [len(values) for values in samples.values()] == [10, 10]
    assert [name for name, _, _ in blocks[:8]] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    expected = [5 + BLOCK * (k % (TOKENS // BLOCK)) for k in range(10)]
    assert [length for name, _, length in blocks if name == "a"] == expected


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_timed_is_what_generate_does(mode: Any, family: str) -> None:
    model = make(family)
    prompt = tokens(model, 1, 5)
    expected = model.generate(prompt, do_sample=False, max_new_tokens=5, pad_token_id=0)[0, 5:].tolist()
    one = runner(mode, patched_copy(model, ALL, "hf"), 16)
    for _ in range(2):  # a second start forgets the first
        with torch.no_grad():
            one.start(prompt)
            found = [int(one.token)]
            for _ in range(4):
                assert all(ms > 0 for ms in one.steps(1))
                found.append(int(one.token))
        assert found == expected


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@pytest.mark.parametrize("family", CONFIGS)
def test_replayed_graphs_give_the_tokens_of_the_eager_model(family: str) -> None:
    model = make(family, torch.bfloat16).cuda()
    prompt = tokens(model, 1, 7)
    found = []
    for mode in ("eager", "graph"):
        one = runner(mode, patched_copy(model, ALL, "hf"), 32)
        with torch.no_grad():
            one.start(prompt)
            text = [int(one.token)]
            for _ in range(12):
                one.steps(1)
                text.append(int(one.token))
            assert one.prefills(prompt, 2)
        found.append(text)
    assert found[0] == found[1]


def test_a_mask_that_is_told_is_the_mask_that_is_found() -> None:
    model = make()
    prompt = tokens(model, 1, 9)
    told = GraphRunner(model, 16)
    with torch.no_grad():
        told.prefills(prompt, 1)
        replayed = told._prefills[9]()
        assert isinstance(replayed, torch.Tensor)
        assert_same_bits(replayed, model(prompt, use_cache=False, logits_to_keep=1).logits)


def test_a_step_launches_less_by_what_each_operator_replaces() -> None:
    model = make()
    prompt = tokens(model, 1, 4)
    counts = {one.name: operators_per_step(patched_copy(model, one, "hf"), prompt) for one in CONFIGURATIONS}
    plain = operators_per_step(model, prompt)
    norms, layers = 13, 3
    # A norm in float32: pow, mean, add, rsqrt, two products. An MLP: two products, silu, a multiplication.
    assert plain - counts["rms_norm"] == 5 * norms
    assert plain - counts["mlp"] == 2 * layers
    assert counts["rms_norm+mlp"] - counts["all"] == layers


def test_models_share_their_weights() -> None:
    model = make()
    before = logits(model, tokens(model))
    copies = [patched_copy(model, one, "hf") for one in CONFIGURATIONS]
    for one in copies:
        assert is_patched(one)
        assert all(a is b for a, b in zip(one.parameters(), model.parameters(), strict=True))
    packed = {one.model.layers[0].mlp.gate_up_weight.data_ptr() for one in copies if hasattr(
        one.model.layers[0].mlp, "gate_up_weight")}  # fmt: skip
    assert len(packed) == 1
    assert not is_patched(model)
    assert float((logits(model, tokens(model)) - before).abs().max()) < 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_work_counts_every_weight_that_a_step_reads_once(tied: bool) -> None:
    model = make(tie_word_embeddings=tied)
    weights = sum(weight.nbytes for name, weight in model.named_parameters() if tied or "embed" not in name)
    cached = 2 * 3 * 2 * 32 * 4  # k and v, layers, heads, head size, bytes
    nbytes, flops = work(model, "decode", 100)
    assert nbytes == weights + cached * (100 + TOKENS // 2)
    matrices = sum(w.numel() for name, w in model.named_parameters() if w.dim() == 2 and "embed" not in name)
    head = model.get_output_embeddings().weight.numel()
    assert flops == 2 * (matrices + head * tied)
    assert work(model, "prefill", 100) == (weights, 2 * (100 * (matrices - head * (not tied)) + head))
