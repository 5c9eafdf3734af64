"""Qwen3 on a quantised cache: right tokens, whatever the chunks and the company; blocks and bytes are accounted for.

Teacher-forced, as in chapter 9: the reference reads the text that the kernels wrote, over a cache of the same codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chapters.ch06_split_attention import dispatch
from chapters.ch06_split_attention.dispatch import Plan, Row
from chapters.ch06_split_attention.paged_engine import PagedEngine
from chapters.ch06_split_attention.tiny_story import BF16, FP16, FP32, PROMPT, TOKENIZER, few_plans, story, weights
from chapters.ch09_graph_capture.decoder import Decoder
from chapters.ch09_graph_capture.graph_engine import GraphEngine
from chapters.ch10_quantized_kv.cache_formats import (
    CASTS,
    KV_CACHES,
    cache_bytes_per_token,
    cache_format,
    cost_sentence,
)
from chapters.ch10_quantized_kv.quantized_cache import QuantizedKVCache
from chapters.ch10_quantized_kv.quantized_model import HADAMARD, QuantizedPagedModel
from chapters.ch10_quantized_kv.reference_cache import CodedKVCache
from qwen3_ref import QWEN3_0_6B, KVCache
from qwen3_ref.generate import Generation
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

GREEDY = SamplingParams()
NEAR = 0.25  # of logits: as in chapter 9; the reference has the same codes, so they add nothing
PROMPTS = [TOKENIZER.encode(text) for text in ("Once upon a time", "The cat", "One day, Tom and his dog went to", "A")]
TEXT = PROMPTS[2] * 6  # 54 tokens


def model(backend: Backend, name: str = "fp8", dtype: torch.dtype = BF16, **options: Any) -> QuantizedPagedModel:
    some = weights(dtype, backend.device)
    options = {"plans": few_plans, "simulated": backend.name == "sim", **options}
    return QuantizedPagedModel(some, cache_format(name, some.config), **options)


def told(some: PagedEngine, prompt: Sequence[int], tokens: int) -> list[int]:
    return story(some, prompt, tokens).run().token_ids


def reference_logits(text: Sequence[int], name: str, device: torch.device | str = "cpu", **options: Any) -> Tensor:
    """`[t, V]`, in float32, over a cache of codes, or a plain one."""
    some, sizes = weights(FP32, device), (1, len(text), FP32, device)
    coded = name in CASTS
    cache = CodedKVCache(some.config, *sizes, cast=CASTS[name], **options) if coded else KVCache(some.config, *sizes)
    with torch.inference_mode():
        return some(torch.tensor([list(text)], device=device), cache)[0]


@pytest.mark.parametrize("name", CASTS)
def test_the_kernels_tell_a_story_over_codes_that_the_reference_would_tell(
    registered_backend: Backend, name: str
) -> None:
    tokens = 10 if registered_backend.name == "sim" else 200
    text = told(GraphEngine(model(registered_backend, name), 320), PROMPT, tokens)
    logits = reference_logits([*PROMPT, *text], name, registered_backend.device)[len(PROMPT) - 1 : -1]
    chosen = torch.tensor(text, device=logits.device)[:, None]
    behind = logits.amax(-1) - logits.gather(1, chosen)[:, 0]
    assert float(behind.max()) < NEAR, f"token {int(behind.argmax())} is {float(behind.max())} behind"


@pytest.mark.parametrize("hadamard", [HADAMARD, None], ids=["hadamard", "plain"])
def test_every_token_attends_to_codes_whether_prompt_or_new(hadamard: Any) -> None:
    """In one chunk, in several, and token by token the logits are the reference's over FP4 codes: much nearer to those
    than codes are to no codes. With weights in float32, and Q, K and V in float16, few other codes are chosen."""
    with opened("cpu") as backend:
        some = model(backend, "fp4", FP32, cache_dtype=FP16, hadamard=hadamard)
        coded = reference_logits(TEXT, "fp4", hadamard=hadamard is not None, rounded=FP16)
        plain = reference_logits(TEXT, "bf16")
        moved = float((coded - plain)[20:].norm(dim=-1).mean())
        cache = some.new_cache(tokens=256, max_sequences=1)
        for chunk in (64, 9):
            got = some.prefill(cache, cache.allocate(), TEXT, chunk)
            assert float((got - coded[-1]).norm()) < moved / 2, f"chunks of {chunk}"
        sequence = cache.allocate()
        some.prefill(cache, sequence, TEXT[:20])
        rows = torch.stack([some.decode(cache, [sequence], [token])[0] for token in TEXT[20:]])
        assert float((rows - coded[20:]).norm(dim=-1).mean()) < moved / 2


def test_a_first_chunk_attends_to_the_bits_that_a_later_one_reads() -> None:
    with opened("cpu") as backend:
        for name in CASTS:
            some = model(backend, name)
            cache = some.new_cache(tokens=64, max_sequences=1)
            sequence = cache.allocate()
            batch = cache.append([sequence], [21])
            width = (some.config.num_attention_heads + 2 * some.config.num_key_value_heads) * 128
            qkv = torch.randn(21, width, generator=torch.Generator().manual_seed(1)).bfloat16()
            at_once = some._store(3, qkv, cache, batch.positions, batch.slot_mapping, cast_back=True)
            assert at_once is not None
            later = cache.load(3, batch.block_table[0], 21, BF16)
            assert_same_bits(at_once, torch.cat(later, dim=1))
            for one, wide in zip(later, cache.read(sequence, 3), strict=True):
                assert_same_bits(one, wide.bfloat16())


def test_chunks_and_a_kept_prefix_change_no_token_over_codes() -> None:
    with opened("cpu") as backend:
        some = GraphEngine(model(backend, "fp4"), 320)
        expected = told(some, TEXT, 40)
        some.chunk = 7
        assert told(some, TEXT, 40) == expected
        some.reset(19)
        run = Generation(some, TOKENIZER, TEXT[19:], 40, stop_ids=(), history=TEXT[:19]).run()
        assert run.token_ids == expected


def test_a_row_over_codes_tells_the_same_story_in_any_company() -> None:
    """Ragged: rows that begin at different times and differ in length, one at rest, and each alone."""
    with opened("cpu") as backend:
        some = model(backend)
        alone = [told(GraphEngine(some, 320), prompt, 20 + 9 * i) for i, prompt in enumerate(PROMPTS)]
        cache = some.new_cache(tokens=4 * 96, max_sequences=4, max_context=96)
        decoder = Decoder(some, cache, rows=4)
        runs = {row: decoder.start(row, PROMPTS[row], GREEDY, 20 + 9 * row) for row in (3, 0)}
        for _ in range(9):
            decoder.step()
        runs |= {row: decoder.start(row, PROMPTS[row], GREEDY, 20 + 9 * row) for row in (1, 2)}
        for row, expected in enumerate(alone):
            assert list(iter(lambda run=runs[row]: decoder.next(run), None)) == expected  # type: ignore[misc]
            decoder.finish(runs[row])
            cache.free(runs[row].sequence)
        assert cache.free_blocks == cache.num_blocks


def test_a_fork_shares_codes_until_it_writes() -> None:
    with opened("cpu") as backend:
        some = model(backend)
        cache = some.new_cache(tokens=6 * 16, max_sequences=2)
        one = cache.allocate()
        some.prefill(cache, one, TEXT[:20])
        other = cache.fork(one)
        assert cache.free_blocks == 4
        before = [cache.read(one, layer) for layer in range(some.config.num_hidden_layers)]
        some.decode(cache, [other], [TEXT[5]])
        for layer, kept in enumerate(before):
            for mine, theirs, was in zip(cache.read(one, layer), cache.read(other, layer), kept, strict=True):
                assert_same_bits(mine, was)
                assert_same_bits(theirs[:20], was)
        both = some.decode(cache, [one, other], [TEXT[20], TEXT[21]])
        fresh = cache.allocate()
        some.prefill(cache, fresh, TEXT[:20])
        assert_same_bits(some.decode(cache, [fresh], [TEXT[20]])[0], both[0])
        for sequence in (one, other, fresh):
            cache.free(sequence)
        assert cache.free_blocks == cache.num_blocks


class Calls(TorchDispatchMode):
    """Which of our operators a block calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "qwen_cuda":
            self.ours.append(func.name().partition("::")[2])
        return func(*args, **(kwargs or {}))


def test_a_step_over_codes_is_five_launches_a_layer_and_two() -> None:
    with opened("cpu") as backend:
        some = model(backend)
        decoder = Decoder(some, some.new_cache(tokens=32, max_sequences=1))
        run = decoder.start(0, PROMPT, GREEDY, 5)
        with Calls() as calls:
            decoder.step()
        decoder.finish(run)
        assert len(calls.ours) == 5 * some.config.num_hidden_layers + 2
        assert calls.ours[:3] == ["decode_linear", "fused_decode_attention_quantized", "decode_linear"]


def test_a_budget_holds_more_tokens_of_fewer_bytes() -> None:
    config = weights(BF16).config
    budget = 1 << 20
    for name in CASTS:
        cache = QuantizedKVCache(config, cache_format(name, config), budget_bytes=budget, max_sequences=1)
        tokens = cache.num_blocks * cache.block_size
        assert cache.nbytes == tokens * cache_bytes_per_token(config, name) <= budget
        assert budget - cache.nbytes < cache.block_bytes
    wide = QuantizedKVCache(config, cache_format("fp8", config), tokens=65, block_size=32)
    assert (wide.num_blocks, wide.format.block_size, wide.k[0].shape[1]) == (3, 32, wide.format.block_bytes)
    per_token = [cache_bytes_per_token(QWEN3_0_6B, name) for name in KV_CACHES]
    assert per_token == [114_688, 59_136, 32_256]
    assert round(per_token[1] / per_token[0], 2) == 0.52, "what the chapter promises"
    sentence = cost_sentence(QWEN3_0_6B, "fp8")
    assert sentence == "KV cache: fp8, 59,136 bytes a token (bf16 114,688, fp4 32,256)."


def test_plans_are_those_that_were_measured_in_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Row(8, 4096, 64, 7), Row(8, 4096, 64, 2, "fused_decode_attention", "cluster")
    monkeypatch.setattr(dispatch, "table", lambda: {"sm_90": rows})
    monkeypatch.setattr(dispatch, "_device", lambda kind, index: ("sm_90", 132))
    with opened("cpu") as backend:
        for name in ("fp8", "fp4"):
            plans = model(backend, name, plans=None).plans
            assert plans(1, 8, 1000, torch.device("cuda")) == Plan(64, 2, "cluster")


def test_what_a_quantised_model_cannot_be_is_a_sentence() -> None:
    def refused(sentence: str, call: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match="^" + re.escape(sentence)):
            call()

    with opened("cpu"):
        tiny = weights(BF16)
        config, form = tiny.config, cache_format("fp8", tiny.config)
        heads = config.num_key_value_heads
        refused("the format of the cache is 'fp6'; it must be one of fp8, fp4.", lambda: cache_format("fp6", config))
        refused(f"the format has {heads + 1} heads of 128 elements; the model has {heads} KV heads of 128.",
                lambda: QuantizedPagedModel(tiny, replace(form, heads=heads + 1)))  # fmt: skip
        refused(f"the format has 1 heads of 512 elements; the model has {heads} KV heads of 128.",
                lambda: QuantizedKVCache(config, replace(form, heads=1, head_dim=512), tokens=16))  # fmt: skip
        refused("format.alignment is 8; it must be 16 or more, for loads of 16 bytes.",
                lambda: QuantizedPagedModel(tiny, replace(form, alignment=8)))  # fmt: skip
        some = QuantizedPagedModel(tiny, form)
        refused("block_size is 12; it must be a power of two from 8 to 256.",
                lambda: some.new_cache(tokens=64, block_size=12))  # fmt: skip
        block = some.new_cache(tokens=16).block_bytes
        refused(f"budget_bytes is {block - 1}; one block of 16 tokens takes {block} bytes.",
                lambda: PagedEngine(some, 10, budget_bytes=block - 1))  # fmt: skip
        plain = super(QuantizedPagedModel, some).new_cache(tokens=16)
        refused("the cache is not quantised; this model takes those of its own new_cache.",
                lambda: some.prefill(plain, plain.allocate(), PROMPT))  # fmt: skip
