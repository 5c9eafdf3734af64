"""The peers of the end-to-end benchmark give right tokens, as far as a CPU can tell: no graph, fake vLLM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from chapters.ch11_generator import fake_vllm
from chapters.ch11_generator.end_to_end import compiled_peer, transformers_peers, vllm_engine, vllm_operators
from chapters.ch11_generator.end_to_end.compiled_peer import CompiledModel
from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.right_tokens import Judge
from chapters.ch11_generator.end_to_end.step_graph import answering
from chapters.ch11_generator.end_to_end.subject import Request, Subject, load
from chapters.ch11_generator.end_to_end.vllm_operators import VllmModel
from qwen3_ref.weights import load_weights
from qwen_cuda.benchmarking.peers import Vllm, flash_attention
from qwen_cuda.testing.benchmarks import CPU

pytestmark = pytest.mark.usefixtures("operators")
NEW = 9
FAKE = Vllm(fake_vllm.Operators, "fake")


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(load("tiny", CPU))


@pytest.fixture(scope="module")
def asked(judge: Judge) -> Request:
    return Request(judge._subject, judge._subject.prompt(14), NEW, 64)


def check(judge: Judge, asked: Request, answer: Answer) -> None:
    """Whole, of one token, and again: what a request leaves behind must not matter."""
    whole = answer(NEW)
    assert len(whole) == NEW
    assert judge.complaint(asked, whole) is None
    assert answer(1) == whole[:1]
    assert answer(NEW) == whole


@pytest.mark.parametrize("attention", get_args(compiled_peer.Attention))
def test_the_layer_that_is_compiled_is_a_layer_of_qwen3(judge: Judge, asked: Request, attention: Any) -> None:
    peer = CompiledModel(asked, attention, compiler=lambda function: function)
    check(judge, asked, answering(peer, asked, graph=False))


def test_one_layer_is_compiled_for_all(judge: Judge, asked: Request) -> None:
    """As a whole, and once: another graph for each layer would soon be given up for eager."""
    torch.compiler.reset()
    graphs = CompileCounter()
    peer = CompiledModel(asked, "products", compiler=partial(torch.compile, backend=graphs, fullgraph=True))
    check(judge, asked, answering(peer, asked, graph=False))
    assert graphs.frame_count == 2, "a layer and the head"


def test_of_two_ways_to_compile_the_one_that_works_takes_part(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    class Peer(CompiledModel):
        def __init__(self, request: Request, attention: Any) -> None:
            if attention == failing:
                raise RuntimeError("it does not compile\nat all")
            super().__init__(request, attention, compiler=lambda function: function)

    answers: Callable[..., Answer] = lambda peer, request, graph: answering(peer, request, graph=False)  # noqa: E731
    monkeypatch.setattr(compiled_peer, "CompiledModel", Peer)
    monkeypatch.setattr(compiled_peer, "answering", answers)
    said: list[str] = []
    failing = "sdpa"
    assert len(compiled_peer.fastest(asked, said.append)(3)) == 3
    assert said == ["torch_compile, prompt 14: attention by products of products."]
    monkeypatch.setattr(compiled_peer, "answering", lambda *given, **more: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError, match=r"sdpa: it does not compile; products: no"):
        compiled_peer.fastest(asked, said.append)


@pytest.mark.parametrize("attention", get_args(vllm_operators.Attention))
def test_vllms_operators_are_given_what_they_want(
    judge: Judge, asked: Request, attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_operators, "cache_operators", lambda: fake_vllm.Caches)
    peer = VllmModel(asked, FAKE, attention, fake_vllm.Flash)
    check(judge, asked, answering(peer, asked, graph=False))


def test_vllms_own_attention_stands_in_where_flash_attention_is_missing(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_operators, "vllm", lambda: FAKE)
    monkeypatch.setattr(vllm_operators, "cache_operators", lambda: fake_vllm.Caches)
    monkeypatch.setattr(vllm_operators, "answering", lambda peer, request, graph: answering(peer, request, False))
    said: list[str] = []
    for flash, end in (
        (fake_vllm.Flash, "attention by FlashAttention-3."),
        (SimpleNamespace(fwd=lambda: None), "lambda>() takes 0 positional arguments but 37 were given"),
        ("FlashAttention-3 is not there.", "FlashAttention-3 is not there."),
    ):
        monkeypatch.setattr(vllm_operators, "flash_attention", lambda flash=flash: flash)
        assert len(vllm_operators.in_one_graph(asked, said.append)(2)) == 2
        assert said[-1].endswith(end), said[-1]
    assert all("attention by paged_attention_v1" in sentence for sentence in said[1:])


def test_flash_attention_says_why_it_is_missing(tmp_path: Any) -> None:
    assert "vllm is not installed" in str(flash_attention({}))
    assert "holds no _vllm_fa3_C.abi3.so" in str(flash_attention({"QWEN_PEERS": str(tmp_path)}))
    (tmp_path / "_vllm_fa3_C.abi3.so").write_text("no library")
    said = str(flash_attention({"QWEN_PEERS": str(tmp_path)}))
    assert "it does not load" in said
    assert str(tmp_path) not in said


@pytest.mark.parametrize("make", [transformers_peers.eager, transformers_peers.compiled])
def test_transformers_answers_with_a_growing_and_with_a_static_cache(
    judge: Judge, asked: Request, make: Callable[[Request], Answer]
) -> None:
    check(judge, asked, make(asked))


def test_vllms_engine_runs_random_weights_from_a_folder(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine for all requests, which reads the weights that everybody has."""
    started: list[dict[str, Any]] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            started.append(options)

        def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> Any:
            assert prompts[0]["prompt_token_ids"] == list(asked.prompt)
            assert sampling["temperature"] == 0.0
            ids = list(range(sampling["max_tokens"]))
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=dict))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    random = Subject("random-0.6b", "random", asked.subject.model)
    request = Request(random, asked.prompt, NEW, 64)
    assert vllm_engine.engine(request)(3) == [0, 1, 2]
    assert vllm_engine.engine(request)(1) == [0]
    assert len(started) == 1
    assert started[0]["max_model_len"] == 64
    saved = load_weights(random.folder(), random.config, torch.bfloat16)
    assert all(torch.equal(saved[name], tensor) for name, tensor in random.model.state_dict().items() if name in saved)
    random.kept["folder"].cleanup()


def test_vllms_engine_says_that_it_is_not_installed() -> None:
    assert vllm_engine.unavailable() == "vllm_engine is left out: vllm is not installed."
