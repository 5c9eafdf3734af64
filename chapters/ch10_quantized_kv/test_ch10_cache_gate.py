"""The quality gate of caches: the model reads what the bytes say, a good cache passes, a coarse one does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.gate import AGREEMENT, MARGIN
from chapters.ch08_w8a16_head.quality_gate.prompts import GateError
from chapters.ch08_w8a16_head.quality_gate.subject import Subject, load
from chapters.ch10_quantized_kv.cache_gate import command
from chapters.ch10_quantized_kv.cache_gate.caches import FORMATS, CacheKind, WrittenKVCache
from chapters.ch10_quantized_kv.cache_gate.gate import Verdict, judge, with_cache
from chapters.ch10_quantized_kv.cache_gate.needles import Question, Recall, drawn, questions
from qwen3_ref.cache import KVCache
from qwen3_ref.config import Qwen3Config
from qwen3_ref.cost import kv_bytes_per_token
from qwen3_ref.hub import resolve_model
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, quantize_groups

pytestmark = pytest.mark.usefixtures("operators", "one_thread")
CPU = torch.device("cpu")


class CoarseKVCache(KVCache):
    """Of each number the sign, or 0: in units of the largest magnitude of its head."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().append(layer, *(coarse(heads) for heads in (k, v)))


def coarse(heads: Tensor) -> Tensor:
    largest = heads.abs().amax(-1, keepdim=True)
    return (heads / largest).round() * largest


class Coarse(CacheKind):
    def new_cache(self, config: Qwen3Config, max_len: int, device: torch.device) -> KVCache:
        return CoarseKVCache(config, 1, max_len, torch.float32, device)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    """The tiny checkpoint on its held-out stories, 24 × 32 tokens."""
    return load(resolve_model("tiny"), CPU, 32)


@pytest.fixture(scope="module")
def asked(tiny: Subject) -> tuple[Question, ...]:
    return questions(tiny.texts, tiny.tokenizer, CPU, count=14, passages=1)


@pytest.fixture(scope="module")
def verdict(tiny: Subject, asked: tuple[Question, ...]) -> Verdict:
    """FP8 with the transform; and beside it FP4, and a cache that is too coarse."""
    return judge(tiny, asked, [CacheKind("fp8"), CacheKind("nvfp4"), Coarse("fp8", hadamard=False)])


def test_quantised_caches_pass_on_the_tiny_checkpoint(verdict: Verdict) -> None:
    fp8, nvfp4, _ = verdict.caches
    assert verdict.passed
    assert (fp8.complaints, nvfp4.complaints) == ([], [])
    assert fp8.distance.tokens == 24 * 32
    assert 0 < fp8.distance.mean_error < nvfp4.distance.mean_error, "fewer bits err more"
    assert fp8.recall.asked >= 12


def test_a_cache_that_is_too_coarse_fails(verdict: Verdict) -> None:
    """The negative control: a gate that lets three numbers pass for all measures nothing."""
    control = verdict.caches[-1]
    assert control.distance.agreement < AGREEMENT
    assert max(flip.margin for flip in control.distance.flips) > MARGIN
    assert len(control.complaints) == 3, "each criterion alone refuses it"


def test_lost_answers_are_a_complaint_of_their_own(verdict: Verdict) -> None:
    fp8 = verdict.caches[0]
    some = replace(fp8, recall=Recall(20, 19, ("Where is the key?",)))
    assert some.complaints == []
    (sentence,) = replace(fp8, recall=Recall(20, 18, ("Where is the key?",) * 2)).complaints
    assert sentence == "18 of 20 answers that the reference finds are found; at least 95% must be."


def test_a_reference_that_finds_nothing_is_no_judge(asked: tuple[Question, ...]) -> None:
    found = [True] * 11 + [False] * (len(asked) - 11)
    with pytest.raises(GateError, match=r"the reference finds 11 of 14 answers .* at least 12 are needed"):
        Recall.of(asked, found, found)
    found[11] = True
    recall = Recall.of(asked, found, [False, *found[1:]])
    assert (recall.asked, recall.found, recall.lost) == (12, 11, (asked[0].text,))


def test_questions_ask_for_what_was_told_at_the_beginning(tiny: Subject, asked: tuple[Question, ...]) -> None:
    for number, question in enumerate(asked):
        needle = drawn(number)
        ids = question.prompt[0].tolist()
        text = tiny.tokenizer.decode(ids)
        assert text.startswith(needle.told)
        assert text.endswith(f"Question: {needle.question}\nAnswer: {needle.answer}")
        assert tiny.tokenizer.decode(ids[-question.answer :]) == f" {needle.answer}"
        assert len(ids) - question.answer > 150, "the answer is far back"


@pytest.mark.parametrize("kind", [CacheKind("fp8"), CacheKind("mxfp4", hadamard=False)], ids=lambda kind: kind.name)
def test_the_model_reads_what_the_bytes_stand_for(kind: CacheKind, tiny: Subject) -> None:
    """In two passes, of which the second attends to what the first one left."""
    cache = kind.new_cache(tiny.config, 40, CPU)
    assert isinstance(cache, WrittenKVCache)
    plain = KVCache(tiny.config, 1, 40, torch.float32)
    generator = torch.Generator().manual_seed(1)
    cast, transform = FORMATS[kind.format], 128**-0.5
    for tokens in (21, 1):
        shape = (1, tiny.config.num_key_value_heads, tokens, 128)
        k, v = (torch.randn(shape, generator=generator) for _ in range(2))
        got = cache.append(0, k, v)
        plain.append(0, k, v)
        for heads, mine, hadamard in ((k, got[0], kind.hadamard), (v, got[1], False)):
            rows = heads.bfloat16().float()
            if hadamard:
                rows = hadamard_transform(rows, transform).bfloat16().float()
            back = dequantize_groups(
                *quantize_groups(rows, cast.values, cast.group, cast.scales), cast.values, cast.scales
            )
            want = hadamard_transform(back, transform) if hadamard else back
            assert torch.equal(mine[:, :, -tokens:], want)
        cache.advance(tokens)
        plain.advance(tokens)
    assert cache.length == plain.length == 22
    with pytest.raises(ValueError, match=r"holds 22 of 40 tokens"):
        cache.append(0, *(torch.zeros(1, tiny.config.num_key_value_heads, 19, 128),) * 2)


def test_one_pass_and_token_by_token_give_the_same_logits(tiny: Subject) -> None:
    """As an engine reads its prompt, in one go or in parts: what a token attends to went through the cache anyway."""
    kind, prompt, model = CacheKind("fp8"), tiny.prompts[0][:, :24], tiny.reference()
    with torch.inference_mode():
        whole = with_cache(model, kind)(prompt)
        cache = kind.new_cache(tiny.config, 24, CPU)
        parts = [model(part, cache) for part in prompt.split((20, 1, 3), dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=0.05)
        assert float((whole - model(prompt)).abs().max()) > 0.05


def test_bytes_of_a_token_are_those_of_its_pages(tiny: Subject) -> None:
    shares = {name: CacheKind(name).token_bytes(tiny.config) / kv_bytes_per_token(tiny.config) for name in FORMATS}
    assert shares == {"fp8": 132 / 256, "nvfp4": 72 / 256, "mxfp4": 68 / 256}


def test_the_command_judges_one_cache_and_compares_others(
    verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes and the file, on a judgement that was made before."""
    kinds: list[CacheKind] = []

    def judged(subject: Subject, asked: object, those: list[CacheKind], begin: object) -> Verdict:
        kinds[:] = those
        caches = verdict.caches if those[0].format == "fp8" else verdict.caches[::-1]
        return replace(verdict, caches=caches)

    monkeypatch.setattr(command, "judge", judged)
    monkeypatch.setattr(command, "questions", lambda *given: verdict.asked)
    output = tmp_path / "ch10_quality.json"
    arguments = ["--device", "cpu", "--tokens", "32", "--output", str(output)]
    assert command.main([*arguments, "--variants"]) == 0
    assert (kinds[0], len(kinds), len(set(kinds))) == (CacheKind("fp8"), 6, 6)
    said, results = capsys.readouterr().out, json.loads(output.read_text())
    assert "passed fp8, Hadamard" in said
    assert "not passed" not in said
    assert (results["chapter"], results["judged"], results["passed"]) == ("ch10_quality", True, True)
    assert [one["judged"] for one in results["caches"]] == [True, False, False]
    assert [one["passed"] for one in results["caches"]] == [True, True, False]
    assert len(results["caches"][0]["flipped"]) == results["caches"][0]["flips"]
    assert command.main([*arguments, "--kv-cache", "nvfp4", "--no-hadamard"]) == 1
    assert kinds == [CacheKind("nvfp4", hadamard=False)]
    assert "not passed fp8: " in capsys.readouterr().out
    assert command.main([*arguments, "--model", str(tmp_path / "none")]) == 2
    assert json.loads(output.read_text())["judged"] is False
    assert "could not be judged: " in capsys.readouterr().err
