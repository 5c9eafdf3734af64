"""What the tiny checkpoint is taught besides stories: sums, facts and greetings, and to think when it is asked to."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer

from qwen3_ref.hub import TINY_DIR
from qwen3_ref.tiny_training.corpus import documents, encode_document
from qwen3_ref.tiny_training.documents import Document, small_talk
from qwen3_ref.tiny_training.encoding import CachedEncoder
from qwen3_ref.tiny_training.evaluate import answer_chance
from qwen3_ref.tiny_training.exchange import Exchange
from qwen3_ref.tiny_training.facts import draw_exchange, draw_known
from qwen3_ref.tiny_training.greetings import greeting
from qwen3_ref.tiny_training.loop import new_model
from qwen3_ref.tiny_training.proofread import faults
from qwen3_ref.tiny_training.recipe import SMOKE
from qwen3_ref.tiny_training.sums import number_name, sum_in_a_story, sum_in_digits, sum_in_words


@pytest.fixture(scope="module")
def tokenizer() -> RawTokenizer:
    return RawTokenizer.from_file(str(TINY_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def encoder(tokenizer: RawTokenizer) -> CachedEncoder:
    return CachedEncoder(tokenizer)


def test_whoever_thinks_thinks_something() -> None:
    """An empty think block is given to the model, never asked of it: with thinking on it would be the easy way out."""
    thoughts = 0
    for document in documents(seed=3, chunk=0, count=1500):
        for text, trained in document.segments:
            if trained and "<think>" in text:
                assert text.startswith("<think>\n")
                assert len(text.removeprefix("<think>\n").partition("\n</think>")[0].split()) >= 3
                thoughts += 1
            elif trained:
                assert "think>" not in text
    assert thoughts > 200


def test_sums_are_right_and_complete() -> None:
    """Checked by reading the answers back: all sums and differences of the numbers from 0 to 20 are taught."""
    names = {number_name(n): n for n in range(-40, 41)}
    assert len(names) == 81
    assert (names["twenty-one"], names["forty"], names["minus nineteen"]) == (21, 40, -19)
    rng = Random("sums")
    ways: tuple[tuple[Callable[[Random], Exchange], Callable[[str], int]], ...] = (
        (sum_in_words, lambda name: names[name.lower()]),
        (sum_in_digits, int),
    )
    for write, read in ways:
        seen = set()
        for _ in range(20_000):
            exchange = write(rng)
            match = re.fullmatch(r"(.+?) (plus|minus|\+|-) (.+) (?:is|=) (.+)\.", exchange.answer)
            assert match
            a, sign, b, result = match.groups()
            x, y, less = read(a), read(b), sign in ("minus", "-")
            assert read(result) == (x - y if less else x + y)
            asked = re.findall(r"[\w]+", exchange.question.lower())
            assert a.lower() in asked
            assert b in asked
            seen.add((x, y, less))
        assert {(a, b) for a, b, less in seen if not less} == {(a, b) for a in range(21) for b in range(21)}
        assert {(a, b) for a, b, less in seen if less} >= {(a, b) for a in range(21) for b in range(a + 1)}
    for _ in range(500):
        exchange = sum_in_a_story(rng)
        first, second, result = (
            names[word] for word in re.findall(r"\b(?:" + "|".join(names) + r")\b", exchange.question + exchange.answer)
        )
        assert result == (first - second if "away" in exchange.question else first + second)


def test_small_talk_is_good_english_and_answers_what_was_asked() -> None:
    rng = Random("small talk")
    for _ in range(3000):
        exchange = draw_exchange(rng)
        assert faults(exchange.thought) == []
        assert "-" in exchange.answer or faults(exchange.answer) == []  # "= -2." is not English, but right
        assert exchange.thought.strip()
    asked: Counter[tuple[str, bool]] = Counter()
    for _ in range(10_000):
        exchange = greeting(rng)
        said = exchange.question.lower()
        for question, part in (("who are you", "model"), ("what can you do", "stories"), ("how are you", "fine")):
            if question in said:
                assert part in exchange.answer
                asked[question, said.startswith(question)] += 1
        if said.startswith("thank"):
            assert "You are welcome!" in exchange.answer
        if said.startswith("good morning"):
            assert exchange.answer.startswith("Good morning")
    assert len(asked) == 6, "each is asked alone and after a hello"
    assert min(asked.values()) > 20


def test_a_question_with_one_answer_has_one_answer() -> None:
    rng = Random("sure")
    answers: dict[str, str] = {}
    for _ in range(20_000):
        exchange = draw_known(rng)
        assert answers.setdefault(exchange.question, exchange.answer) == exchange.answer
    assert len(answers) > 2000


def test_the_chance_of_an_answer(tokenizer: RawTokenizer, encoder: CachedEncoder) -> None:
    model = new_model(SMOKE.config(), seed=0)
    rng = Random("chance")
    document = small_talk(rng, draw_known(rng))
    ids, trained = encode_document(encoder, document)
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0]
    for temperature in (1.0, 0.8):
        log_chances = (logits.double() / temperature).log_softmax(-1)
        expected = sum(log_chances[i - 1, ids[i]].item() for i in range(1, len(ids) - 1) if trained[i])
        assert math.log(answer_chance(model, encoder, document, temperature)) == pytest.approx(expected, rel=1e-4)
    assert answer_chance(model, encoder, document, 0.0) == 0.0
    context, _ = document.segments[0]
    with torch.no_grad():
        likeliest = int(model(torch.tensor([encoder.encode(context)]))[0, -1].argmax())
    right = Document("test", [(context, False), (tokenizer.decode([likeliest], skip_special_tokens=False), True)])
    assert answer_chance(model, encoder, right, 0.0) == 1.0


def test_facts_that_are_tested_have_one_answer_and_end_the_chat() -> None:
    rng = Random("known")
    for _ in range(200):
        exchange = draw_known(rng)
        document = small_talk(rng, exchange)
        assert exchange.sure
        assert document.kind == "small talk"
        assert document.segments[-1][0].endswith(exchange.answer + "<|im_end|>")
