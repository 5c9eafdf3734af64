"""Sequences decoded on the kernels: right tokens, whatever shares the batch, and room that is never overrun.

Teacher-forced: the reference in float32 reads the text that the kernels wrote. In bfloat16 a right computation may tip
what is nearly a tie; a kernel that is wrong tips more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import OutOfBlocks
from chapters.ch06_split_attention.tiny_story import BF16, FP32, PROMPT, TOKENIZER, few_plans, paged, story, weights
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decode_step import StepKind
from chapters.ch09_graph_capture.decoder import Decoder, Run
from chapters.ch09_graph_capture.graph_engine import GraphEngine
from chapters.ch09_graph_capture.step_graphs import StepGraphs
from qwen3_ref.generate import DrawingEngine, Generation, ReferenceEngine
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

GREEDY = SamplingParams()
NEAR = 0.25  # of logits: bfloat16 moves those of the tiny model less
PROMPTS = [TOKENIZER.encode(text) for text in ("Once upon a time", "The cat", "One day, Tom and his dog went to", "A")]


def engine(backend: Backend, **options: Any) -> GraphEngine:
    plans = options.pop("plans", few_plans)
    return GraphEngine(paged(backend, BF16, plans=plans), options.pop("max_context", 320), **options)


def told(some: GraphEngine, prompt: Sequence[int], tokens: int) -> list[int]:
    return story(some, prompt, tokens).run().token_ids


def margins(prompt: Sequence[int], tokens: Sequence[int], device: torch.device) -> Tensor:
    """How far the reference's best logit is above that of each token, `[tokens]`."""
    model = weights(FP32, device)
    ids = torch.tensor([[*prompt, *tokens]], device=device)
    with torch.inference_mode():
        logits = model(ids)[0, len(prompt) - 1 : -1].float()
    return logits.amax(-1) - logits.gather(1, ids[0, len(prompt) :, None])[:, 0]


def everything(decoder: Decoder, run: Run) -> list[int]:
    return list(iter(lambda: decoder.next(run), None))


@contextmanager
def cpu_engine(**options: Any) -> Iterator[GraphEngine]:
    with opened("cpu") as backend:
        yield engine(backend, **options)


def test_the_kernels_tell_a_story_that_the_reference_would_tell(registered_backend: Backend) -> None:
    """Over the borders of pages and from one partition to eight."""
    tokens = 40 if registered_backend.name == "sim" else 300
    some = engine(registered_backend)
    assert isinstance(some, DrawingEngine)
    behind = margins(PROMPT, told(some, PROMPT, tokens), registered_backend.device)
    assert float(behind.max()) < NEAR, f"token {int(behind.argmax())} is {float(behind.max())} behind"
    assert float((behind == 0).float().mean()) >= 0.97


def test_the_int8_head_tells_a_near_story() -> None:
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        some = GraphEngine(model, 320, w8_head=W8Head.of(model.head))
        assert float(margins(PROMPT, told(some, PROMPT, 200), backend.device).max()) < NEAR


def test_a_prompt_in_chunks_and_a_kept_prefix_change_no_token() -> None:
    with cpu_engine() as some:
        prompt = PROMPTS[2] * 4
        expected = told(some, prompt, 60)
        some.chunk = 5
        assert told(some, prompt, 60) == expected
        some.reset(11)
        run = Generation(some, TOKENIZER, prompt[11:], 60, stop_ids=(), history=prompt[:11]).run()
        assert run.token_ids == expected


def test_a_row_tells_the_same_story_in_any_company() -> None:
    """Four rows of different lengths, begun and ended at different times, and each alone."""
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        alone = [told(GraphEngine(model, 320), prompt, 30 + 9 * i) for i, prompt in enumerate(PROMPTS)]
        cache = model.new_cache(tokens=4 * 96, max_sequences=4, max_context=96)
        decoder = Decoder(model, cache, rows=4)
        runs = {row: decoder.start(row, PROMPTS[row], GREEDY, 30 + 9 * row) for row in (3, 0)}
        for _ in range(12):
            decoder.step()
        runs |= {row: decoder.start(row, PROMPTS[row], GREEDY, 30 + 9 * row) for row in (1, 2)}
        for row, expected in enumerate(alone):
            assert everything(decoder, runs[row]) == expected
            decoder.finish(runs[row])
        assert [cache.length(one) for one in cache.sequences] == [
            len(PROMPTS[row]) + len(alone[row]) - 1 for row in (3, 0, 1, 2)
        ]


def steps_of(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on how many steps are enqueued at a time: as with graphs, though each runs as it is."""
    enqueued: list[int] = []
    run = type(decoder.graphs).__call__

    def noted(graphs: StepGraphs, kind: StepKind) -> None:
        enqueued.append(kind.steps)
        graphs.enabled = False
        run(graphs, kind)
        graphs.enabled = True

    decoder.graphs.enabled = True
    monkeypatch.setattr(type(decoder.graphs), "__call__", noted)
    return enqueued


def test_steps_follow_each_other_while_a_plan_and_the_room_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """And change no token, though rows begin and end in between."""
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        one, two = PROMPTS[1], PROMPTS[0]
        expected = [told(GraphEngine(model, 96), prompt, 40) for prompt in (one, two)]
        decoder = Decoder(model, model.new_cache(tokens=192, max_sequences=2, max_context=96), rows=2)
        enqueued = steps_of(decoder, monkeypatch)
        run = decoder.start(0, one, GREEDY, 40)
        assert everything(decoder, run) == expected[0]
        # 39 steps at contexts of 3 to 41. From 21 on there is another plan, whose first step is alone, too.
        assert enqueued == [1, 4, 4, 4, 4, 1, 1, 4, 4, 4, 4, 4]
        decoder.finish(run)
        run = decoder.start(0, one, GREEDY, 40)
        tokens = [decoder.next(run) for _ in range(9)]
        other = decoder.start(1, two, GREEDY, 40)
        assert [tokens + everything(decoder, run), everything(decoder, other)] == expected


def test_a_row_can_be_used_again_and_its_last_story_is_gone() -> None:
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        expected = told(GraphEngine(model, 320), PROMPTS[1], 20)
        decoder = Decoder(model, cache := model.new_cache(tokens=128, max_sequences=2, max_context=64), rows=2)
        for _ in range(3):
            run = decoder.start(1, PROMPTS[1], GREEDY, 20)
            assert everything(decoder, run) == expected
            decoder.finish(run)
            cache.free(run.sequence)
        assert cache.free_blocks == cache.num_blocks


@pytest.mark.parametrize("tokens", [1, 2, 11, 12, 13])
def test_a_full_context_ends_the_story_as_the_reference_does(tokens: int) -> None:
    """A prompt that leaves room for 0 … 12 more, and the last page full or not."""
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        prompt = (PROMPTS[2] * 9)[: 49 - tokens]
        ours = Generation(GraphEngine(model, 48), TOKENIZER, prompt, 99, stop_ids=()).run()
        theirs = Generation(ReferenceEngine(weights(BF16), 48), TOKENIZER, prompt, 99, stop_ids=()).run()
        assert len(ours.token_ids) == len(theirs.token_ids) == tokens
        assert ours.finish_reason == theirs.finish_reason == "length"


def test_an_engine_knows_what_it_holds_after_any_end() -> None:
    """Left in the middle, at its end, and when the next run takes over while the first waits."""
    with cpu_engine() as some:
        some.reset()
        with closing(some.tokens(PROMPT, GREEDY, (), 30)) as first:
            head = list(islice(first, 7))
            assert some.length == len(PROMPT) + 7
        assert some.length == len(PROMPT) + 7
        some.reset(len(PROMPT) + 4)
        again = list(some.tokens(head[4:], GREEDY, [*PROMPT, *head[:4]], 3))
        assert some.length == len(PROMPT) + 7 + 2, "the last token has been drawn and not computed"
        some.reset()
        one = some.tokens(PROMPT, GREEDY, (), 30)
        assert list(islice(one, 3)) == head[:3]
        some.reset()
        two = some.tokens(PROMPT, GREEDY, (), 30)
        assert list(islice(two, 3)) == head[:3]
        assert next(one, None) is None, "a run that lost its row has ended"
        assert list(islice(two, 4)) == head[3:7]
        assert len(again) == 3


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("after", [0, 3], ids=["of the prompt", "of a step"])
def test_logits_that_are_no_numbers_end_a_run_with_a_sentence(broken: float, after: int) -> None:
    with cpu_engine() as some:
        whole = some.model.head
        run = some.tokens(PROMPT, GREEDY, (), 30)
        list(islice(run, after))
        some.model.head = whole.detach().clone()
        some.model.head[5] = broken
        with pytest.raises(ValueError, match="the largest logit is not finite; the model's weights or activations"):
            list(run)
        some.model.head = whole
        assert len(told(some, PROMPT, 5)) == 5, "the engine can be used again"


def test_what_does_not_fit_is_refused_and_the_engine_goes_on() -> None:
    with opened("cpu") as backend:
        model = paged(backend, BF16, plans=few_plans)
        cache = model.new_cache(tokens=64, max_sequences=2, max_context=64)
        decoder = Decoder(model, cache, rows=2)
        run = decoder.start(0, PROMPT, GREEDY, 40)
        with pytest.raises(OutOfBlocks):
            decoder.start(1, PROMPT, GREEDY, 40)
        assert len(cache.sequences) == 1
        with pytest.raises(ValueError, match="row 0 is in use; finish it first"):
            decoder.start(0, PROMPT, GREEDY, 4)
        with pytest.raises(ValueError, match="new_tokens is 0; it must be at least 1"):
            decoder.start(1, PROMPT, GREEDY, 0)
        with pytest.raises(ValueError, match=r"longer than max_context, 64"):
            decoder.start(1, PROMPT, GREEDY, 64)
        assert len(cache.sequences) == 1
        assert len(everything(decoder, run)) == 40
        with pytest.raises(ValueError, match="rows is 3; it must be from 1 to 2"):
            Decoder(model, cache, rows=3)
        with pytest.raises(ValueError, match=r"the model is torch.float32 and its cache torch.float16; the kernels of"):
            GraphEngine(paged(backend, FP32), 64)
