"""What the paged engine refuses, and that nothing is lost by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import OutOfBlocks, PagedKVCache
from chapters.ch06_split_attention import paged_model
from chapters.ch06_split_attention.paged_engine import PagedEngine
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch06_split_attention.tiny_story import BF16, FP32, PROMPT, paged, weights
from qwen3_ref.model import Qwen3
from qwen_cuda.testing.backends import Backend


def snapshot(cache: PagedKVCache) -> Any:
    held = {one: (cache.length(one), cache.block_table(one)) for one in cache.sequences}
    return cache.free_blocks, held, [[x.tolist() for x in cache.read(one, 5)] for one in cache.sequences]


def test_a_full_cache_is_refused_and_nothing_is_lost(reference: Callable[[int], list[int]]) -> None:
    model = paged(Backend("cpu"))
    text = PROMPT + reference(60)
    cache = model.new_cache(tokens=48, max_sequences=2)
    one, other = cache.allocate(), cache.allocate()
    model.prefill(cache, one, text[:16])
    model.prefill(cache, other, text[:32])
    before = snapshot(cache)
    for call in (
        lambda: model.decode(cache, [one], [text[16]]),
        lambda: model.decode(cache, [one, other], [text[16], text[32]]),
        lambda: model.prefill(cache, one, text[16:40], chunk=4),
    ):
        with pytest.raises(OutOfBlocks, match=r"^\d more blocks are needed and 0 of 3 are free: free a sequence, or "):
            call()
        assert snapshot(cache) == before
    cache.free(other)
    assert int(model.prefill(cache, one, text[16:40]).argmax()) == text[40]


@pytest.mark.parametrize("failing", ["later_chunk_attention", "linear"])
def test_a_failure_on_the_way_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, reference: Callable[[int], list[int]], failing: str
) -> None:
    """Such as memory that runs out in a second chunk."""
    text = PROMPT + reference(40)
    engine = PagedEngine(paged(Backend("cpu")), 64, chunk=8)
    engine.prefill(text[:20])
    before = snapshot(engine.cache)

    def fails(*arguments: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(paged_model, failing, fails)
        with pytest.raises(torch.OutOfMemoryError):
            engine.prefill(text[20:40])
        if failing == "linear":
            with pytest.raises(torch.OutOfMemoryError):
                engine.decode(text[20])
    assert snapshot(engine.cache) == before
    assert int(engine.decode(text[20]).argmax()) == text[21]


def refused(sentence: str, call: Callable[[], object], error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match="^" + re.escape(sentence)):
        call()


def test_what_makes_no_sense_is_a_sentence() -> None:
    model = paged(Backend("cpu"))
    block = model.new_cache(tokens=16).block_bytes
    refused("max_context is 0; it must be from 1 to 2048, the model's positions.", lambda: PagedEngine(model, 0))
    refused("max_context is 2049; it must be from 1 to 2048", lambda: PagedEngine(model, 2049))
    refused("max_context is 33; it must be from 1 to 32, which the model and the cache allow.",
            lambda: PagedEngine(model, 33, budget_bytes=3 * block - 1))  # fmt: skip
    refused(f"budget_bytes is {block - 1}; one block of 16 tokens takes {block} bytes.",
            lambda: PagedEngine(model, 10, budget_bytes=block - 1))  # fmt: skip
    refused("chunk is 0; it must be at least 1.", lambda: PagedEngine(model, 8, chunk=0))
    engine = PagedEngine(model, 8)
    engine.prefill([1, 2, 3])
    refused("sequence 0 has 3 tokens; with 6 more it would be longer than max_context, 8.",
            lambda: engine.prefill([5] * 6))  # fmt: skip
    refused("sequence 0 is to get 0 tokens; it must be at least 1.", lambda: engine.prefill([]))
    for token in (-1, 4096):
        refused(f"token_ids holds {token}; the model has tokens 0 to 4095.", lambda token=token: engine.decode(token))  # type: ignore[misc]
    refused("length is 4; it must be from 0 to 3, the tokens held.", lambda: engine.reset(4))
    refused("token_ids has 1 tokens for 2 sequences; each needs one.", lambda: model.decode(engine.cache, [0, 1], [1]))
    refused("chunk is 0; it must be at least 1.", lambda: model.prefill(engine.cache, 0, [1], chunk=0))
    assert engine.length == 3


def test_a_model_or_a_choice_that_cannot_be_is_a_sentence() -> None:
    tiny = weights(BF16)
    small = Qwen3.random(replace(tiny.config, head_dim=64))
    refused("head_dim of the model is 64; the kernels of chapter 4 take 128.", lambda: PagedModel(small))
    refused("attention is 'fast'; it must be one of fused, auto, ", lambda: PagedModel(tiny, attention="fast"))
    refused("cache_dtype is torch.float32; it must be torch.bfloat16 or torch.float16.",
            lambda: PagedModel(tiny, cache_dtype=FP32))  # fmt: skip
    refused("simulated is given for attention 'split' on cpu; the simulator runs 'fused' on a CPU.",
            lambda: PagedModel(tiny, attention="split", simulated=True))  # fmt: skip
    if not torch.cuda.is_available():
        refused("backend flashinfer ", lambda: PagedModel(tiny, attention="flashinfer"))
    assert (PagedModel(tiny).cache_dtype, PagedModel(weights(FP32)).cache_dtype) == (BF16, BF16)


def test_packing_leaves_the_model_as_it_was() -> None:
    """The same numbers, and none of them held twice."""
    model = weights(BF16)
    tokens = torch.tensor([PROMPT])
    before = model(tokens)
    PagedModel(model)
    assert torch.equal(model(tokens), before)
    for layer in model.model.layers:
        attention: Any = layer.self_attn
        parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
        assert parts[0].untyped_storage().nbytes() == sum(part.nbytes for part in parts)
