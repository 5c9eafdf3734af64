"""The generation loop: what stops it, what it shows, and what it counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch01_math_reference.model_checks import their_greedy_tokens
from chapters.ch01_math_reference.scripted_engine import ScriptedEngine
from chapters.ch01_math_reference.twins import SHAPES, make_twins
from qwen3_ref import KVCache, Qwen3
from qwen3_ref.generate import Generation, ReferenceEngine, StopFilter, generate
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_pretrained(TINY_DIR)
(END,) = TOKENIZER.encode("<|im_end|>")
PROMPT = [5, 6, 7]


def run(text: str | list[int], max_new_tokens: int = 500, stop: Sequence[str] = (), **options: int) -> Generation:
    """A generation whose engine draws `text` (or token ids), then the stop token."""
    ids = TOKENIZER.encode(text) if isinstance(text, str) else text
    engine = ScriptedEngine([*ids, END], eos_token_ids=(END,), **options)
    return generate(engine, TOKENIZER, PROMPT, max_new_tokens, stop=stop).run()


def first_stop(text: str, stop: Sequence[str]) -> str | None:
    """What may be shown of `text`, by the definition: up to the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return text[: min(starts)]
    return None


def test_a_stop_token_ends_the_answer_and_is_not_shown() -> None:
    answer = run("Once upon a time")
    assert (answer.text, answer.finish_reason) == ("Once upon a time", "stop")
    assert answer.token_ids == [*TOKENIZER.encode("Once upon a time"), END]


def test_several_stop_tokens_and_ones_own() -> None:
    ids = TOKENIZER.encode("one two three")
    assert len(ids) >= 3
    engine = ScriptedEngine(ids, eos_token_ids=(9, ids[2]))
    answer = generate(engine, TOKENIZER, PROMPT, 50).run()
    assert (answer.token_ids, answer.finish_reason) == (ids[:3], "stop")
    engine.reset()
    answer = Generation(engine, TOKENIZER, PROMPT, 50, stop_ids=[ids[1]]).run()
    assert (answer.token_ids, answer.text) == (ids[:2], TOKENIZER.decode(ids[:1]))
    engine.reset()
    assert len(Generation(engine, TOKENIZER, PROMPT, 50, stop_ids=[]).run().token_ids) == 50


@pytest.mark.parametrize("stop", ["time", "n a t", " upon", "Once", "e", "once", "timeless", "Once upon a time"])
def test_a_stop_string_is_never_shown_nor_what_follows(stop: str) -> None:
    text = "Once upon a time there was"
    answer = run(text, stop=[stop])
    shown = first_stop(text, [stop])
    assert answer.text == (text if shown is None else shown)
    assert answer.finish_reason == "stop"
    assert (END in answer.token_ids) == (shown is None), "drawing ends with the stop string"


def test_a_stop_string_may_cross_tokens_and_start_inside_one() -> None:
    ids = TOKENIZER.encode("Once upon a time")
    texts = [TOKENIZER.token(i) for i in ids]
    for left, right in pairwise(texts):
        stop = left[-1] + right[0]
        answer = run("Once upon a time", stop=[stop])
        assert answer.text == "Once upon a time".split(stop)[0]


def test_the_beginning_of_a_stop_string_is_held_back_then_given() -> None:
    """Text that only looks like a stop string comes out late, but whole."""
    ids = [i for word in ("a", " b", " c", "!") for i in TOKENIZER.encode(word)]
    engine = ScriptedEngine([*ids, END], eos_token_ids=(END,))
    pieces = list(generate(engine, TOKENIZER, PROMPT, 50, stop=["b c d", "c!?"]))
    assert [piece.text for piece in pieces][:4] == ["a", " ", "", "b "]
    assert "".join(piece.text for piece in pieces) == "a b c!"
    answer = run("a b c", max_new_tokens=len(TOKENIZER.encode("a b c")), stop=["b c d"])
    assert (answer.text, answer.finish_reason) == ("a b c", "length")


LETTERS = st.text("ab😀", max_size=12)


@given(text=LETTERS, stop=st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3), data=st.data())
def test_the_stop_filter_equals_its_definition_however_the_text_is_cut(
    text: str, stop: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    filtered, shown = StopFilter(stop), ""
    want = first_stop(text, stop)
    for a, b in pairwise([0, *cuts, len(text)]):
        shown += filtered.push(text[a:b])
        assert text.startswith(shown), "nothing is shown that is taken back later"
        # All is shown that is certain: what is held back begins a stop string.
        held = text[len(shown) : b]
        assert filtered.stopped or not held or any(one.startswith(held) for one in stop)
    assert filtered.stopped == (want is not None)
    assert shown + filtered.flush() == (text if want is None else want)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(0, 4095).filter(lambda i: i != END), max_size=14),
    stop=st.lists(st.sampled_from(["a", "th", " ", "\ufffd", "e s"]), max_size=2),
    limit=st.integers(0, 16),
)
def test_pieces_add_up_to_the_text_of_the_tokens(ids: list[int], stop: list[str], limit: int) -> None:
    engine = ScriptedEngine([*ids, END], eos_token_ids=(END,))
    generation = generate(engine, TOKENIZER, PROMPT, limit, stop=stop)
    pieces = list(generation)
    assert "".join(piece.text for piece in pieces) == generation.text
    assert [piece.token_id for piece in pieces] == generation.token_ids == [*ids, END][: len(pieces)]
    whole = TOKENIZER.decode(ids[:limit])
    shown = first_stop(whole, stop)
    assert generation.text == (whole if shown is None else shown)
    if shown is not None or len(ids) < limit:
        assert generation.finish_reason == "stop"
    else:
        assert generation.finish_reason == "length"
        assert len(pieces) == limit


def test_no_piece_ends_inside_a_character() -> None:
    text = "The 🦊 said 你好 to 👩‍👩‍👧‍👦."
    ids = TOKENIZER.encode(text)
    pieces = list(generate(ScriptedEngine([*ids, END], eos_token_ids=(END,)), TOKENIZER, PROMPT, 500))
    assert all("\ufffd" not in piece.text for piece in pieces)
    assert "".join(piece.text for piece in pieces) == text
    fox = TOKENIZER.encode("🦊")
    assert run(fox[:-1]).text == "\ufffd"  # a character that the stop token cuts is shown as such
    assert run(fox, max_new_tokens=len(fox) - 1).text == "\ufffd"  # and so is one that the limit cuts


def test_zero_new_tokens_only_prefill() -> None:
    engine = ScriptedEngine([1])
    answer = generate(engine, TOKENIZER, PROMPT, 0).run()
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([], "", "length")
    assert (engine.prefilled, engine.decoded) == ([PROMPT], [])


def test_the_token_limit_draws_no_token_in_vain() -> None:
    engine = ScriptedEngine([11, 12, 13, 14])
    answer = generate(engine, TOKENIZER, PROMPT, 3).run()
    assert (answer.token_ids, answer.finish_reason) == ([11, 12, 13], "length")
    assert engine.decoded == [11, 12], "the last token needs no forward pass"


def test_a_full_context_ends_the_answer() -> None:
    """The last token drawn needs no place in the cache: a prompt that fills it still gets one."""
    for prompt_length, drawn in ((3, 6), (7, 2), (8, 1)):
        engine = ScriptedEngine([11] * 20, max_context=8)
        answer = generate(engine, TOKENIZER, [5] * prompt_length, 100).run()
        assert (len(answer.token_ids), answer.finish_reason) == (drawn, "length")
        assert engine.length == 8


def test_the_engine_is_reset_by_generate_and_kept_by_generation() -> None:
    engine = ScriptedEngine([11] * 9, max_context=8)
    generate(engine, TOKENIZER, PROMPT, 2).run()
    assert engine.length == 4
    Generation(engine, TOKENIZER, [5], 1).run()
    assert engine.length == 5
    with pytest.raises(ValueError, match="the prompt has 4 tokens; the context of 8 has room for 3"):
        Generation(engine, TOKENIZER, [5] * 4, 1)
    generate(engine, TOKENIZER, [5] * 8, 1).run()


def test_the_penalty_sees_the_prompt_the_answer_and_the_history() -> None:
    class Flat(ScriptedEngine):
        def _append(self, tokens: int) -> torch.Tensor:
            self._length += tokens
            return torch.tensor([3.0, 2.9, 2.8, 2.7, 0.1])

    sampling = SamplingParams(repetition_penalty=10.0)
    engine = Flat([], vocab_size=5)
    assert generate(engine, TOKENIZER, [0], 3, sampling).run().token_ids == [1, 2, 3]
    engine.reset()
    assert Generation(engine, TOKENIZER, [0], 2, sampling, history=[1]).run().token_ids == [2, 3]


def test_figures_count_the_model_and_not_the_reader() -> None:
    class Slow(ScriptedEngine):
        def prefill(self, token_ids: Sequence[int]) -> torch.Tensor:
            time.sleep(0.05)
            return super().prefill(token_ids)

        def decode(self, token_id: int) -> torch.Tensor:
            time.sleep(0.02)
            return super().decode(token_id)

    generation = generate(Slow([11] * 9), TOKENIZER, PROMPT, 4)
    assert generation.finish_reason is None
    for _ in generation:
        time.sleep(0.3)
    assert 0.05 <= generation.prefill_s < 1.2  # which the reader takes in all
    assert 0.06 <= generation.decode_s < 1.2


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty; it must hold at least one token"),
        ([5] * 1001, {}, "the prompt has 1001 tokens; the context of 1000 has room for 1000"),
        ([4096], {}, "the prompt holds token ids outside 0 to 4095"),
        ([-1], {}, "the prompt holds token ids outside 0 to 4095"),
        ([5], {"max_new_tokens": -1}, "max_new_tokens is -1; it must be at least 0"),
        ([5], {"stop": [""]}, "stop holds an empty string"),
        ([5], {"stop": "END"}, "stop is the string 'END'; it must be a list of strings"),
    ],
)
def test_bad_requests_are_refused_before_any_work(prompt: list[int], options: dict[str, object], message: str) -> None:
    engine = ScriptedEngine([11])
    with pytest.raises(ValueError, match=message):
        Generation(engine, TOKENIZER, prompt, **{"max_new_tokens": 3, **options})  # type: ignore[arg-type]
    assert engine.prefilled == []


def test_the_reference_engine_draws_what_transformers_draws(tmp_path_factory: pytest.TempPathFactory) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        twins = make_twins(tmp_path_factory.mktemp("twins"), SHAPES["group2-untied"], dtype, seed=8)
        prompt = twins.tokens(1, 9, seed=8)
        engine = ReferenceEngine(twins.ours, 100)
        answer = generate(engine, TOKENIZER, prompt[0].tolist(), 40).run()
        assert answer.token_ids == their_greedy_tokens(twins.theirs, prompt, 40)


def test_the_reference_engine_speaks_the_engines_language() -> None:
    config = SHAPES["group1-tied"]
    model = Qwen3.random(config, dtype=torch.bfloat16)
    engine = ReferenceEngine(model, 6)
    cache = KVCache(config, 1, 6, torch.bfloat16)
    with torch.no_grad():
        want = [model(torch.tensor([part]), cache)[0, -1].float() for part in ([3, 4, 5], [7])]
    got = [engine.prefill([3, 4, 5]), engine.decode(7)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert got[0].dtype == torch.float32
    assert got[0].shape == (config.vocab_size,)
    engine.reset(3)
    assert engine.length == 3
    assert torch.equal(engine.decode(7), want[1]), "a rewound engine continues as if nothing had followed"
    for length in (5, -1):
        with pytest.raises(ValueError, match=f"length is {length}; it must be from 0 to 4"):
            engine.reset(length)
    for max_context in (0, config.max_position_embeddings + 1):
        with pytest.raises(ValueError, match=f"max_context is {max_context}; it must be from 1 to"):
            ReferenceEngine(model, max_context)


def test_sampled_answers_repeat_with_their_seed() -> None:
    model = Qwen3.random(SHAPES["group1-tied"])

    def answer(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=seed)
        return generate(ReferenceEngine(model, 60), TOKENIZER, PROMPT, 30, sampling).run().token_ids

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)
