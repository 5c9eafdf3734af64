"""Prompts over codes that are filled up to one of a few lengths, as chapter 9's: on every backend, and as graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chapters.ch06_split_attention.tiny_story import BF16, FP16, FP32, TOKENIZER, few_plans, weights
from chapters.ch09_graph_capture.decoder import Decoder
from chapters.ch09_graph_capture.prompt_checks import check_padded, check_replays
from chapters.ch10_quantized_kv.cache_formats import CASTS, cache_format
from chapters.ch10_quantized_kv.quantized_model import QuantizedPagedModel
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

TEXT = TOKENIZER.encode("One day, Tom and his dog went to the park to play with a big red ball.") * 12
# Of the largest logit: a rounding of float16 ahead of the codes tips a few of them, and those of FP4 are further apart.
TIPPED = {"fp8": 2**-7, "fp4": 2**-5}

on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]


def model(backend: Backend, name: str, dtype: torch.dtype = FP32) -> QuantizedPagedModel:
    some = weights(dtype, backend.device)
    options: dict[str, Any] = {"plans": few_plans, "simulated": backend.name == "sim"}
    cache_dtype = FP16 if dtype == FP32 else dtype
    return QuantizedPagedModel(some, cache_format(name, some.config), cache_dtype=cache_dtype, **options)


@pytest.mark.parametrize("tokens", [2, 33, 130])
@pytest.mark.parametrize("name", CASTS)
def test_a_prompt_over_codes_that_is_filled_up_has_its_own_logits(
    registered_backend: Backend, name: str, tokens: int
) -> None:
    """Those that it has as it is. What codes of pads stand for is written, though the codes are not: it is no NaN."""
    some, prompt = model(registered_backend, name), TEXT[:tokens]
    cache = some.new_cache(tokens=160, max_sequences=1)
    sequence = cache.allocate()
    before = some.prefill(cache, sequence, prompt[:-1])
    after = some.decode(cache, [sequence], prompt[-1:])[0]
    check_padded(some, prompt, torch.stack((before, after)), TIPPED[name])


class TestOnAGpu:
    pytestmark = on_a_gpu

    @pytest.mark.parametrize("name", CASTS)
    def test_replayed_prompts_over_codes_have_the_bits_of_launches(self, name: str) -> None:
        with opened("cuda") as backend:
            check_replays(model(backend, name, BF16), [1, 127, 128, 129, 1025, 2000])

    @pytest.mark.parametrize("name", CASTS)
    def test_every_request_of_a_prompt_over_codes_tells_the_same_story(self, name: str) -> None:
        with opened("cuda") as backend:
            some, stories = model(backend, name, BF16), []
            for graphs in (True, False):
                decoder = Decoder(some, some.new_cache(tokens=400, max_sequences=1, max_context=400), graphs=graphs)
                for _ in range(3):
                    run = decoder.start(0, TEXT[:100], SamplingParams(), 60)
                    stories.append(list(iter(lambda run=run, one=decoder: one.next(run), None)))  # type: ignore[misc]
                    decoder.finish(run)
                    decoder.cache.free(run.sequence)
                assert decoder.prompts.graphs.captured == ((128,) if graphs else ())
            assert stories == stories[:1] * 6
