"""The end-to-end benchmark, on the tiny model and a CPU: a small run, its bytes, and no time for wrong tokens."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch10_quantized_kv.cache_formats import CASTS, cache_bytes_per_token
from chapters.ch11_generator import benchmark
from chapters.ch11_generator.end_to_end import ours, stopwatch, work
from chapters.ch11_generator.end_to_end import subject as subject_module
from chapters.ch11_generator.end_to_end.catalogue import PEERS, YARDSTICKS, catalogue
from chapters.ch11_generator.end_to_end.contender import Answer, CannotRun, Contender
from chapters.ch11_generator.end_to_end.measurement import Measurement
from chapters.ch11_generator.end_to_end.right_tokens import Judge
from chapters.ch11_generator.end_to_end.stopwatch import Samples, measured
from chapters.ch11_generator.end_to_end.subject import Request, Subject, load
from chapters.ch11_generator.end_to_end.work import Work
from qwen3_ref import QWEN3_0_6B
from qwen3_ref.cost import decode_cost, kv_bytes_per_token, prefill_cost
from qwen3_ref.hub import TINY_DIR, ModelSource
from qwen_cuda.benchmarking import Report, WrongAnswer
from qwen_cuda.building import KERNELS
from qwen_cuda.building.sources import Reader, gather
from qwen_cuda.testing.benchmarks import CPU, results_of_a_run

pytestmark = pytest.mark.usefixtures("operators", "quick_ceilings")
SMALL = ("--device", "cpu", "--contexts", "8", "--new-tokens", "4", "--rounds", "2")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load("tiny", CPU)


@pytest.fixture(scope="module")
def request_of_tiny(subject: Subject) -> Request:
    return Request(subject, subject.prompt(9), 5, 64)


@pytest.fixture(scope="module")
def right(request_of_tiny: Request) -> list[int]:
    return catalogue()["reference"].make(request_of_tiny)(5)


def test_a_small_run_times_whole_requests_and_decoding_side_by_side(tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path, *SMALL, "--only", "paged", "transformers")
    cases = {(case["op"], case["variant"]): case for case in data["cases"]}
    variants = [*YARDSTICKS, "paged", "transformers"]
    assert set(cases) == {(op, name) for op in ("request", "decode", "first_token") for name in variants}
    for (op, _), case in cases.items():
        assert ("tok_s" in case, "us" in case) == (op != "first_token", op == "first_token")
        assert case["shape"] == {"model": "tiny", "prompt": 8, "new_tokens": 4}
        assert case["bytes"] > 0
    extra = data["end_to_end"]
    pairs = {(one["of"], one["over"]) for one in extra["ratios"]}
    assert pairs == {(ours.W8, ours.OURS), (ours.OURS, "transformers"), (ours.W8, "transformers")}
    assert extra["model"]["name"] == "tiny"
    assert extra["model"]["weights"] == "checkpoint"
    assert extra["memory"] == [], "there is no GPU to ask"
    assert extra["runs"][0]["only"] == ["paged", "transformers"]
    assert data["provenance"]["transformers"]


def test_a_run_that_is_cut_short_keeps_the_prompts_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Measurement.run

    def until_the_last(self: Measurement, request: Request, *rest: Any) -> None:
        if len(request.prompt) == 7:
            raise KeyboardInterrupt
        whole(self, request, *rest)

    monkeypatch.setattr(Measurement, "run", until_the_last)
    output = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        benchmark.main([*SMALL, "--contexts", "5", "6", "7", "--only", "reference", "--output", str(output)])
    data = json.loads(output.read_text())
    assert {case["shape"]["prompt"] for case in data["cases"]} == {5, 6}
    assert len(data["end_to_end"]["runs"]) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--contexts", "0"], "--contexts holds 0; a prompt has at least 1 token."),
        (["--new-tokens", "1"], "--new-tokens is 1; it must be at least 2."),
        (["--rounds", "0"], "--rounds is 0; it must be at least 1."),
        (["--contexts", "2040"], "make 2056 tokens; --max-length leaves room for 2048."),
        (["--max-length", "9000", "--model", "random-0.6b", "--contexts", "9999"], "leaves room for 9000."),
        (["--only", "nobody"], "--only names 'nobody'; it must be one of ours, ours_w8_head,"),
        (["--model", ""], "the model is an empty string"),
    ],
)
def test_a_bad_option_of_the_benchmark_is_refused_in_a_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    subject: Subject,
) -> None:  # fmt: skip
    if "random-0.6b" in options:  # its weights take seconds to draw
        large = Subject("random-0.6b", "random", subject.model)
        monkeypatch.setattr(type(large), "config", QWEN3_0_6B)
        monkeypatch.setattr(benchmark, "load", lambda *given: large)
    assert benchmark.main(["--device", "cpu", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_everybody_who_needs_a_gpu_says_so(subject: Subject) -> None:
    known = catalogue()
    sentences = {name: one.unavailable(subject) for name, one in known.items()}
    assert {name for name, sentence in sentences.items() if sentence is None} == {
        *YARDSTICKS, *ours.CODED.values(), "ours_split", "paged", "paged_grouped", "reference", "transformers",
    }  # fmt: skip
    assert all(sentence.endswith("is left out: it needs a GPU.") for sentence in sentences.values() if sentence)
    assert {row.variant for row in (*ours.CHAIN, *ours.ABLATIONS)} == set(known) - set(PEERS)


def test_each_kernel_of_a_decode_step_can_be_launched_without_pdl() -> None:
    for library in ours.libraries_without_pdl():
        reader = Reader(library.edits)
        gather(library.sources[0], (KERNELS / "cuda" / "include",), reader)
        reader.check_all_planted()


def test_bytes_of_a_request_are_those_of_its_prompt_and_steps(request_of_tiny: Request) -> None:
    config, found = request_of_tiny.subject.config, Work.of(request_of_tiny)
    assert found.prefill_bytes == prefill_cost(config, 9).bytes
    assert found.decode_bytes == sum(decode_cost(config, n).bytes for n in (9, 10, 11, 12))
    assert found.token_bytes == round(found.decode_bytes / 4)
    head = request_of_tiny.subject.model.head_weight
    int8 = W8Head.of(head).nbytes
    assert work.int8_head_bytes(config) == int8
    assert found.token_bytes - Work.of(request_of_tiny, int8_head=True).token_bytes == head.nbytes - int8
    cached = 9 + 10 + 11 + 12 + 4  # read by the four steps, and written
    for name, per_token in ((name, cache_bytes_per_token(config, name)) for name in CASTS):
        coded, spared = Work.of(request_of_tiny, kv_cache=name), kv_bytes_per_token(config) - per_token
        assert found.decode_bytes - coded.decode_bytes == cached * spared
        assert found.prefill_bytes - coded.prefill_bytes == 9 * spared
    case, ceilings = {"bytes": 2_000_000}, {"read_gbps": 4000.0}
    assert work.floor_tok_s(case, ceilings) == pytest.approx(2e6)


def test_the_judge_excuses_rounding_and_nothing_else(request_of_tiny: Request, right: list[int]) -> None:
    judge = Judge(request_of_tiny.subject)
    assert judge.complaint(request_of_tiny, right) is None
    assert judge.complaint(request_of_tiny, right[:1]) is None
    wrong = [*right[:2], (right[2] + 1) % 4096, *right[3:]]
    for int8_head in (False, True):
        said = judge.complaint(request_of_tiny, wrong, int8_head)
        assert said is not None
        assert "behind the best logit; rounding explains" in said
    assert judge.complaint(request_of_tiny, [4096]) == "it gave the token 4096, and the model has 0 to 4095"
    judge._leads = dict.fromkeys(judge._leads, float("nan"))
    assert judge.complaint(request_of_tiny, right) is not None


def test_the_first_token_of_the_int8_head_is_the_16_bit_ones(
    request_of_tiny: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from the prompt. With another int8 head all others must change, and it must not."""
    one = W8Head.of(request_of_tiny.subject.model.head_weight.roll(1, 0))
    monkeypatch.setitem(request_of_tiny.subject.kept, "w8_head", one)
    int8 = catalogue()[ours.W8]
    tokens, judge = int8.make(request_of_tiny)(5), Judge(request_of_tiny.subject)
    assert judge.complaint(request_of_tiny, tokens, int8_head=True) is None
    assert judge.complaint(request_of_tiny, tokens) is not None
    assert judge.complaint(request_of_tiny, tokens[:1]) is None


@pytest.mark.parametrize("kv_cache", CASTS)
def test_answers_over_codes_are_judged_by_a_model_over_codes(request_of_tiny: Request, kv_cache: str) -> None:
    one, judge = catalogue()[ours.CODED[kv_cache]], Judge(request_of_tiny.subject)
    tokens = one.make(request_of_tiny)(5)
    assert judge.complaint(request_of_tiny, tokens, kv_cache=one.kv_cache) is None
    assert list(judge.bounds) == [f"9, {kv_cache}"]
    wrong = [*tokens[:2], (tokens[2] + 1) % 4096, *tokens[3:]]
    assert judge.complaint(request_of_tiny, wrong, kv_cache=one.kv_cache) is not None
    hidden = [judge._hidden(judge._model, request_of_tiny, tokens, name) for name in ("bf16", one.kv_cache)]
    assert not torch.equal(*hidden)


def test_without_a_hub_random_weights_of_its_shape_stand_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(QWEN3_0_6B, vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    source = ModelSource(TINY_DIR, "tiny", "No hub answers. The tiny model runs instead.")
    monkeypatch.setattr(subject_module, "resolve_model", lambda name, **options: source)
    monkeypatch.setattr(subject_module, "QWEN3_0_6B", small)
    said: list[str] = []
    found = load("auto", CPU, said.append)
    assert (found.name, found.weights, found.directory) == ("random-0.6b", "random", None)
    assert said == ["No hub answers. Random weights of its shape run instead."]


def contender(name: str, tokens: list[int], **more: Any) -> Contender:
    return Contender(name, name, lambda request: lambda new_tokens: tokens[:new_tokens], **more)


def measurement(request: Request) -> Measurement:
    return Measurement(Report("ch11_generator", CPU, quick=True), Judge(request.subject), rounds=1)


def test_wrong_tokens_get_no_time(request_of_tiny: Request, right: list[int]) -> None:
    wrong = [right[0] + 1, *right[1:]]
    mine = measurement(request_of_tiny)
    for bad in (wrong, right[:3]):
        with pytest.raises(WrongAnswer, match=r"ours, prompt 9: (one of its tokens is|it gave 3 tokens in place of 5)"):
            mine.run(request_of_tiny, [contender("ours", bad)], lambda what: None)
    mine.run(request_of_tiny, [contender("a", right), contender("b", wrong, peer=True)], lambda what: None)
    assert {case.variant for case in mine.report.cases} == {"a"}
    (note,) = (note for note in mine.report.notes if note.startswith("b, prompt 9: one of its tokens"))
    assert note.endswith("It gets no time.")


def test_a_peer_that_fails_is_left_out_and_ours_is_not(request_of_tiny: Request, right: list[int]) -> None:
    def fails(request: Request) -> Answer:
        raise KeyError(f"no file in {request.subject.directory}")

    mine = measurement(request_of_tiny)
    mine.run(request_of_tiny, [contender("a", right), Contender("b", "b", fails, peer=True)], lambda what: None)
    assert "b, prompt 9: left out, it says: KeyError: 'no file in …'" in mine.report.notes
    with pytest.raises(KeyError):
        mine.run(request_of_tiny, [Contender("ours", "ours", fails)], lambda what: None)

    def has_no_graphs(request: Request) -> Answer:
        raise CannotRun("CUDA graphs are off")

    mine.run(request_of_tiny, [Contender("ours", "ours", has_no_graphs)], lambda what: None)
    assert mine.report.notes[-1] == "ours, prompt 9: left out, it says: CannotRun: CUDA graphs are off"


def test_the_slow_take_part_in_few_rounds_and_all_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []

    def answer(name: str, seconds: float, new_tokens: int) -> list[int]:
        order.append(f"{name}{new_tokens}")
        now[0] += seconds * new_tokens
        return [0] * new_tokens

    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    ready = {name: (partial(answer, name, seconds), nullcontext) for name, seconds in (("a", 0.5), ("b", 0.001))}
    found = measured(ready, 4, CPU, rounds=5)
    assert order[:8] == ["a1", "a4", "b1", "b4", "b1", "b4", "a1", "a4"]
    assert (found["a"].rounds, found["b"].rounds) == ([0, 1, 2], [0, 1, 2, 3, 4])
    decode = found["b"].decode
    assert decode is not None
    assert decode.median == pytest.approx(1000)
    assert found["a"].whole.median == pytest.approx(2.0)
    assert found["a"].first_us.median == pytest.approx(5e5)
    assert Samples(4, [0], [1.0], [0.9]).decode is None, "noise is no rate"


def test_two_models_on_the_same_weights_share_packed_ones(subject: Subject) -> None:
    first, second = subject.paged(), subject.paged("split")
    assert first is not second
    for a, b in zip(first.layers, second.layers, strict=True):
        assert a.qkv.data_ptr() == b.qkv.data_ptr()
        assert torch.equal(a.gate_up, b.gate_up)
        assert a.gate_up.shape == b.gate_up.shape
