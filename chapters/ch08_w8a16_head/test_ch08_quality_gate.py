"""The quality gate judges rightly: what it measures, when a model passes, and that a bad one never does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.agreement import Distance, Flip, interval, judged_logits
from chapters.ch08_w8a16_head.quality_gate.gate import AGREEMENT, GROUPS, MARGIN, complaints, judge
from chapters.ch08_w8a16_head.quality_gate.prompts import CONTEXT, GateError
from chapters.ch08_w8a16_head.quality_gate.subject import EMBEDDING, HEAD, Layers, Quantization, Subject, load
from qwen3_ref.hub import resolve_model
from qwen3_ref.weights import random_weights

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny() -> Subject:
    """The tiny checkpoint on its held-out stories, 24 × 32 tokens."""
    return load(resolve_model("tiny"), CPU, 32)


def distance(tokens: int = 1000, flips: int = 0, margin: float = 0.1, **figures: Any) -> Distance:
    usual = {"mean_error": 0.01, "max_error": 0.1, "kl": 1e-5, "max_kl": 1e-4, "reference_loss": 1.0, "loss": 1.0}
    found = tuple(Flip(0, CONTEXT + i, 1, 2, margin) for i in range(flips))
    return replace(Distance(tokens, found, **usual), **figures)


def drawn(n: int, vocab: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, reference logits, and logits near enough for some to agree."""
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(n, vocab, generator=generator) * 2
    tokens = torch.randint(vocab, (n,), generator=generator)
    return tokens, reference, reference + torch.randn(n, vocab, generator=generator) * 0.5


@pytest.mark.parametrize("layers", ["head", "all"])
def test_int8_weights_pass_on_the_tiny_checkpoint(layers: Layers, tiny: Subject) -> None:
    verdict = judge(tiny, Quantization(layers))
    assert verdict.passed
    assert verdict.complaints == []
    assert verdict.judged.distance.tokens == 24 * 32
    assert 0 < verdict.judged.distance.mean_error < 0.1
    assert verdict.rounding.distance.mean_error > 0, "the noise of bf16 stands beside it"


def test_int4_weights_fail(tiny: Subject) -> None:
    """The negative control: a gate that lets 4 bits in all layers pass measures nothing."""
    verdict = judge(tiny, Quantization("all", bits=4, group=128))
    assert not verdict.passed
    assert verdict.judged.distance.agreement < AGREEMENT
    assert max(flip.margin for flip in verdict.judged.distance.flips) > MARGIN
    assert len(verdict.complaints) == 2, "either criterion alone refuses it"


def test_smaller_groups_cost_bytes_and_err_less(tiny: Subject) -> None:
    verdict = judge(tiny, Quantization("head"), variants=True)
    assert [arm.quantization and arm.quantization.group for arm in verdict.variants] == list(GROUPS)
    costs = [arm.cost for arm in verdict.variants if arm.cost]
    assert sorted(costs, key=lambda cost: cost.bytes) == costs
    assert sorted(costs, key=lambda cost: -cost.weight_error) == costs
    errors = [arm.distance.mean_error for arm in verdict.variants]
    assert sorted(errors, reverse=True) == errors
    assert all(0.5 < cost.bytes / cost.bf16_bytes < 0.57 for cost in costs)


def test_at_99_per_cent_a_model_passes_and_below_it_does_not() -> None:
    assert list(complaints(distance(1000, flips=10))) == []
    (sentence,) = complaints(distance(1000, flips=11))
    assert sentence.startswith("98.90% of 1,000 tokens are the reference's; at least 99% must be")


def test_one_flip_that_is_no_near_tie_is_enough_to_fail() -> None:
    assert list(complaints(distance(flips=1, margin=MARGIN))) == []
    (sentence,) = complaints(distance(flips=1, margin=math.nextafter(MARGIN, 1)))
    assert sentence.startswith("1 of 1 flips are no near-ties: at token 16 of text 1 ")


@pytest.mark.parametrize("name", ["mean_error", "max_error", "kl", "max_kl", "loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_no_number_never_passes(name: str, value: float) -> None:
    figures: dict[str, Any] = {name: value}
    assert list(complaints(distance(**figures)))


def test_a_margin_that_is_no_number_never_passes() -> None:
    assert list(complaints(distance(flips=1, margin=math.nan)))


def test_too_few_tokens_are_no_judgement() -> None:
    assert list(complaints(distance(640))) == []
    with pytest.raises(GateError, match=r"^639 tokens are too few for a judgement; at least 20 × 32 = 640"):
        list(complaints(distance(639)))


def test_figures_are_those_of_their_definitions() -> None:
    tokens, reference, logits = drawn(50, 40, seed=1)
    found = Distance.of(3, tokens, reference, logits)
    flipped = [i for i in range(50) if int(reference[i].argmax()) != int(logits[i].argmax())]
    assert 0 < len(flipped) < 50
    assert [(flip.text, flip.place - CONTEXT) for flip in found.flips] == [(3, i) for i in flipped]
    for flip in found.flips:
        row = reference[flip.place - CONTEXT]
        assert flip.margin == pytest.approx(float(row.max() - row[flip.chosen]))
    assert found.agreement == pytest.approx(1 - len(flipped) / 50)
    truth, other = reference.double().softmax(-1), logits.double().softmax(-1)
    divergences = (truth * (truth / other).log()).sum(-1)
    assert found.kl == pytest.approx(float(divergences.mean()))
    assert found.max_kl == pytest.approx(float(divergences.max()))
    likelihood = math.prod(float(truth[i, token]) for i, token in enumerate(tokens.tolist()))
    assert found.reference_perplexity == pytest.approx(likelihood ** (-1 / 50))
    mine = math.prod(float(other[i, token]) for i, token in enumerate(tokens.tolist())) ** (-1 / 50)
    assert found.perplexity_change == pytest.approx(mine / found.reference_perplexity - 1)
    assert found.mean_error == pytest.approx(float((logits - reference).abs().mean()))
    assert found.max_error == float((logits - reference).abs().max())


def test_texts_together_are_one_long_text() -> None:
    texts = [drawn(n, 30, seed) for seed, n in enumerate((5, 17, 1))]
    found = Distance.over([Distance.of(0, *text) for text in texts])
    whole = Distance.of(0, *(torch.cat(parts) for parts in zip(*texts, strict=True)))
    assert (found.tokens, len(found.flips)) == (whole.tokens, len(whole.flips))
    for name in ("mean_error", "max_error", "kl", "max_kl", "reference_loss", "loss"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_a_model_agrees_with_itself(tiny: Subject) -> None:
    logits = judged_logits(tiny.reference(), tiny.prompts[0], "it")
    found = Distance.of(0, tiny.prompts[0][0, CONTEXT:], logits, logits)
    assert (found.flips, found.max_error, found.max_kl, found.perplexity_change) == ((), 0.0, 0.0, 0.0)


def test_logits_stand_before_the_tokens_that_they_predict(tiny: Subject) -> None:
    """The tiny model knows its stories: shifted by one, its perplexity would be that of a guess."""
    logits = judged_logits(tiny.reference(), tiny.prompts[0], "it")
    tokens = tiny.prompts[0][0, CONTEXT:]
    assert logits.shape == (32, tiny.config.vocab_size)
    assert logits.dtype == torch.float32
    assert Distance.of(0, tokens, logits, logits).reference_perplexity < 3


@pytest.mark.parametrize(("successes", "trials"), [(159, 160), (154, 160), (640, 640), (0, 7), (619, 640)])
def test_the_interval_is_where_the_share_is_not_rejected(successes: int, trials: int) -> None:
    """Its ends are the p whose normal test with their own variance just does not reject the share that was seen."""
    for p, end in zip(interval(successes, trials), (0.0, 1.0), strict=True):
        off = abs(successes / trials - p)
        assert off == pytest.approx(1.96 * math.sqrt(p * (1 - p) / trials), abs=1e-12) or p == end


def test_only_the_weights_that_are_named_change(tiny: Subject) -> None:
    plain = dict(tiny.reference().state_dict())
    for layers in ("head", "all"):
        model, cost = tiny.quantized(Quantization(layers))
        found = dict(model.state_dict())
        changed = {name for name in plain if not torch.equal(plain[name], found[name])}
        expected = {name for name in plain if name.endswith("_proj.weight")} if layers == "all" else set()
        assert changed == expected
        assert set(found) - set(plain) == {HEAD}
        assert found[EMBEDDING].data_ptr() == tiny.weights[EMBEDDING].data_ptr()
        assert not torch.equal(found[HEAD], found[EMBEDDING])
        assert cost.bf16_bytes == 2 * sum(found[name].numel() for name in {HEAD, *expected})
    after = dict(tiny.reference().state_dict())
    assert after.keys() == plain.keys()
    assert all(after[name] is plain[name] or torch.equal(after[name], plain[name]) for name in plain)


def test_an_untied_head_is_quantised_from_its_own_weight(tiny: Subject) -> None:
    config = replace(tiny.config, tie_word_embeddings=False)
    own = {**tiny.weights, HEAD: tiny.weights[EMBEDDING].flip(0).contiguous()}
    model, _ = replace(tiny, config=config, weights=own).quantized(Quantization("head"))
    assert float((model.head_weight - own[HEAD]).abs().max()) < 0.02 * float(own[HEAD].abs().max())


def poisoned(name: str, value: float) -> Callable[[Subject], Subject]:
    def change(subject: Subject) -> Subject:
        weight = subject.weights[name].clone()
        weight.view(-1)[7] = value
        return replace(subject, weights={**subject.weights, name: weight})

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (poisoned("model.norm.weight", math.nan), r"the fp32 reference, text 1 of held_out_stories.json, gives logits"),
        (poisoned("model.norm.weight", math.inf), r"NaN or infinite: they cannot be judged"),
        (poisoned("model.norm.weight", 3e38), r"NaN or infinite: they cannot be judged"),
    ],
)
def test_numbers_that_are_none_cannot_be_judged(
    change: Callable[[Subject], Subject], sentence: str, tiny: Subject
) -> None:
    with pytest.raises(GateError, match=sentence):
        judge(change(tiny), Quantization("head"))


def test_a_weight_that_cannot_be_quantised_is_named(tiny: Subject) -> None:
    with pytest.raises(GateError, match=r"^lm_head.weight cannot be quantised: group is 96; it must divide"):
        judge(tiny, Quantization("head", group=96))
    broken = poisoned("model.layers.3.mlp.up_proj.weight", math.nan)(tiny)
    with pytest.raises(GateError, match=r"^model.layers.3.mlp.up_proj.weight cannot be quantised: .*NaN"):
        broken.quantized(Quantization("all"))


def test_a_model_that_knows_nothing_cannot_be_judged(tiny: Subject) -> None:
    random = replace(tiny, weights=random_weights(tiny.config, 0, torch.float32))
    with pytest.raises(GateError, match=r"worse than blind guessing: its perplexity is .* 4,096 tokens"):
        judge(random, Quantization("head"))


def test_too_few_texts_cannot_be_judged(tiny: Subject) -> None:
    few = replace(tiny, prompts=tiny.prompts[:19])
    with pytest.raises(GateError, match=r"608 tokens are too few"):
        judge(few, Quantization("head"))
