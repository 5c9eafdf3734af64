"""Prompts that are filled up to one of a few lengths: the logits of the prompt itself, and the errors of `prefill`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from chapters.ch04_paged_kv.paged_cache import Batch, OutOfBlocks, PagedKVCache
from chapters.ch06_split_attention import paged_model
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch06_split_attention.tiny_story import FP16, FP32, PROMPT, TOKENIZER, paged, weights
from chapters.ch09_graph_capture import prompt_graphs
from chapters.ch09_graph_capture.decoder import Decoder
from chapters.ch09_graph_capture.prompt_checks import assert_near, check_padded
from chapters.ch09_graph_capture.prompt_graphs import CUDNN_FROM, LONGEST, PromptGraphs, padded_length
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

TEXT = TOKENIZER.encode("One day, Tom and his dog went to the park to play with a big red ball.") * 12
ROUNDING = 2 * 2**-11  # of the largest logit: as in chapter 6, two right computations with Q, K and V in float16


def expected(prompt: Sequence[int], device: torch.device) -> Tensor:
    """The reference's last two logits, in float32: `[2, V]`."""
    with torch.inference_mode():
        return weights(FP32, device)(torch.tensor([list(prompt)], device=device))[0, -2:]


@given(st.integers(1, LONGEST))
def test_a_length_is_the_next_of_a_few(tokens: int) -> None:
    length = padded_length(tokens)
    assert tokens <= length <= LONGEST
    assert length - tokens < max(128, tokens / 2), "at most a third is computed for nobody"
    assert padded_length(length) == length
    assert length == LONGEST or padded_length(length + 1) > length


def test_lengths_are_few() -> None:
    lengths = sorted({padded_length(tokens) for tokens in range(1, LONGEST + 1)})
    assert lengths == [*range(128, 1025, 128), *range(1536, 4097, 512), *range(5120, 8193, 1024)]


@pytest.mark.parametrize("tokens", [2, 33, 128, 130])
def test_a_prompt_that_is_filled_up_has_its_own_logits(registered_backend: Backend, tokens: int) -> None:
    prompt = TEXT[:tokens]
    check_padded(paged(registered_backend), prompt, expected(prompt, registered_backend.device), ROUNDING)


def one_back(tokens: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Batch, Tensor]:
    return tokens, batch, last - 1


def of_the_last_pad(tokens: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Batch, Tensor]:
    return tokens, batch, torch.full_like(last, len(tokens) - 1)


def pads_in_slot_0(tokens: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Batch, Tensor]:
    return tokens, Batch(batch.positions, batch.slot_mapping.clamp(min=0), *rest(batch)), last


def pads_go_on(tokens: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Batch, Tensor]:
    slots = batch.slot_mapping[0] + torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
    return tokens, Batch(batch.positions, slots, *rest(batch)), last


def pads_ahead(tokens: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Batch, Tensor]:
    return tokens.roll(len(tokens) - 1 - int(last)), batch, torch.full_like(last, len(tokens) - 1)


def rest(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.block_table, batch.context_lens


@pytest.mark.parametrize("bug", [one_back, of_the_last_pad, pads_in_slot_0, pads_go_on, pads_ahead])
def test_a_mixed_up_pad_or_index_is_seen(bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("cpu") as backend:
        model, prompt = paged(backend), TEXT[:34]
        first_chunk = model.first_chunk

        def wrong(cache: PagedKVCache, tokens: Tensor, batch: Batch, last: Tensor) -> Tensor:
            return first_chunk(cache, *bug(tokens, batch, last))

        monkeypatch.setattr(model, "first_chunk", wrong)
        with pytest.raises(AssertionError):
            check_padded(model, prompt, expected(prompt, backend.device), ROUNDING)


def test_pads_that_are_attended_to_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True).transpose(0, 1)

    monkeypatch.setattr(paged_model, "first_chunk_attention", not_causal)
    with opened("cpu") as backend, pytest.raises(AssertionError, match="of the largest logit"):
        check_padded(paged(backend), TEXT[:34], expected(TEXT[:34], backend.device), ROUNDING)


def test_a_cache_of_fewer_slots_than_a_length_is_filled_up_to_its_end() -> None:
    with opened("cpu") as backend:
        model = paged(backend)
        cache = model.new_cache(tokens=48, max_sequences=1)
        logits = PromptGraphs(model, cache).padded(cache.allocate(), TEXT[:41])
        assert_near(logits, expected(TEXT[:41], backend.device)[1], ROUNDING)


def test_only_what_begins_a_sequence_in_one_chunk_is_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that on a GPU alone. What `prefill` refuses, it gets."""
    with opened("cpu") as backend:
        model = paged(backend)
        cache = model.new_cache(tokens=64, max_sequences=1)
        prompts, empty, begun = PromptGraphs(model, cache), cache.allocate(), cache.allocate()
        cache.append([begun], [3])
        monkeypatch.setattr(prompts, "padded", lambda sequence, tokens: "padded")
        monkeypatch.setattr(model, "prefill", lambda cache, sequence, tokens, chunk: f"prefill {chunk}")
        assert prompts(empty, [1], 5) == "prefill 5"
        monkeypatch.setattr(model, "device", torch.device("cuda"))
        cases = {5: "padded", 6: "prefill 5", 0: "prefill 5"}
        assert {count: prompts(empty, [1] * count, 5) for count in cases} == cases
        assert prompts(begun, [1], 5) == "prefill 5"
        assert prompts(empty, [1], 0) == "prefill 0"
        assert prompts(empty, [1] * LONGEST, 2 * LONGEST) == "padded"
        assert prompts(empty, [1] * (LONGEST + 1), 2 * LONGEST) == f"prefill {2 * LONGEST}"


def test_the_length_alone_chooses_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    preferred: dict[int, bool] = {}
    kernels = prompt_graphs.attention_kernels

    def noted(tokens: Tensor, prefer_cudnn: bool) -> Any:
        preferred[len(tokens)] = prefer_cudnn
        return kernels(tokens, prefer_cudnn)

    monkeypatch.setattr(prompt_graphs, "attention_kernels", noted)
    with opened("cpu") as backend:
        model = paged(backend)
        monkeypatch.setattr(model, "first_chunk", lambda *arguments: torch.zeros(model.config.vocab_size))
        prompts = PromptGraphs(model, model.new_cache(tokens=LONGEST, max_sequences=1))
        for tokens in (1, 1025, 3584, 3585, 4097, LONGEST):
            prompts.graphs(padded_length(tokens))
    assert preferred == {128: False, 1536: False, 3584: False, CUDNN_FROM: True, 5120: True, LONGEST: True}


def snapshot(cache: PagedKVCache) -> Any:
    return cache.free_blocks, {one: (cache.length(one), cache.block_table(one)) for one in cache.sequences}


def sentence(call: Callable[[], object]) -> tuple[type[BaseException], str]:
    with pytest.raises((ValueError, OutOfBlocks)) as refused:
        call()
    return refused.type, str(refused.value)


def test_what_is_refused_is_refused_as_by_prefill_and_changes_nothing() -> None:
    with opened("cpu") as backend:
        model = paged(backend)
        cache = model.new_cache(tokens=64, max_sequences=2, max_context=48)
        cache.append([cache.allocate()], [20])
        prompts, empty, before = PromptGraphs(model, cache), cache.allocate(), snapshot(cache)
        vocab = model.config.vocab_size
        for tokens in ([1, vocab, -1], [-1], [1, 2**70], [1] * 33, [1] * 49):
            ours = sentence(lambda tokens=tokens: prompts.padded(empty, tokens))  # type: ignore[misc]
            assert ours == sentence(lambda tokens=tokens: model.prefill(cache, empty, tokens))  # type: ignore[misc]
            assert snapshot(cache) == before
        unknown = sentence(lambda: prompts.padded(empty, [0, vocab, -1]))
        assert unknown == (ValueError, f"token_ids holds {vocab}; the model has tokens 0 to {vocab - 1}.")
        for call, refused in {
            (lambda: prompts(empty, [])): "sequence 1 is to get 0 tokens; it must be at least 1.",
            (lambda: prompts(empty, [1], 0)): "chunk is 0; it must be at least 1.",
            (lambda: prompts(7, [1])): "sequence 7 is not in the cache: it was never allocated.",
        }.items():
            assert sentence(call) == (ValueError, refused)
            assert snapshot(cache) == before


def test_a_prompt_that_fails_on_the_way_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    with opened("cpu") as backend:
        model = paged(backend)
        cache = model.new_cache(tokens=64, max_sequences=1)
        prompts, sequence = PromptGraphs(model, cache), cache.allocate()
        before = snapshot(cache)
        with monkeypatch.context() as patch:
            patch.setattr(PagedModel, "first_chunk", fails)
            with pytest.raises(torch.OutOfMemoryError):
                prompts.padded(sequence, PROMPT)
        assert snapshot(cache) == before
        assert_near(prompts.padded(sequence, TEXT[:20]), expected(TEXT[:20], backend.device)[1], ROUNDING)


def test_a_decoder_computes_its_prompts_by_graphs_and_tells_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU they are filled up only here. Float16 tips no choice of this story, as chapter 6 shows."""
    with opened("cpu") as backend:
        model, told = paged(backend, FP16), []
        for padded in (False, True):
            decoder = Decoder(model, model.new_cache(tokens=96, max_sequences=1))
            if padded:
                monkeypatch.setattr(
                    PromptGraphs, "__call__", lambda one, sequence, ids, chunk: one.padded(sequence, ids)
                )
            run = decoder.start(0, PROMPT, SamplingParams(), 40)
            told.append(list(iter(lambda run=run, decoder=decoder: decoder.next(run), None)))  # type: ignore[misc]
        assert told[0] == told[1]
        assert len(told[0]) == 40
