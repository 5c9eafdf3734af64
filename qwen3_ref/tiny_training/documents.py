"""The documents that the model is trained on: stories, facts, and chats in Qwen3's format.

A document is a list of segments, some of which are context only: the model reads them, but is not trained to write
them. That is all of a chat but the last answer. (An empty think block is context too: with thinking switched off it is
given to the model, and with thinking switched on the model shall always think.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from random import Random

from qwen3_ref.tiny_training import greetings
from qwen3_ref.tiny_training.exchange import Exchange
from qwen3_ref.tiny_training.facts import draw_exchange, draw_fact, draw_known, lead
from qwen3_ref.tiny_training.general_words import GENERAL_WORDS, TOPICS
from qwen3_ref.tiny_training.grammar import pick
from qwen3_ref.tiny_training.needles import draw_needles
from qwen3_ref.tiny_training.plots import Story, write_story

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
_HELD_OUT = 64  # one story in so many is never trained on


@dataclass
class Document:
    """Segments of text, and for each whether the model is trained to write it.

    Attributes:
        kind: which of the generators below wrote it.
        splittable: whether it may be held out. Documents without a story are too few in number to spare one.
    """

    kind: str
    segments: list[tuple[str, bool]] = field(default_factory=list)
    splittable: bool = True

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.segments)

    @property
    def held_out(self) -> bool:
        """Decided by the text alone: the same document is held out, or not, whatever seed has drawn it."""
        digest = blake2b(self.text.encode(), digest_size=2).digest()
        return self.splittable and int.from_bytes(digest, "big") % _HELD_OUT == 0


@dataclass
class Chat:
    """A conversation that ends with an answer. Renders what the chat template renders, a hundred times faster."""

    turns: list[tuple[str, str]] = field(default_factory=list)

    def say(self, role: str, content: str) -> None:
        self.turns.append((role, content))

    def ask(self, question: str, answer: str) -> None:
        """A turn of the past: a question with its answer, without a thought."""
        self.say("user", question)
        self.say("assistant", answer)

    def finish(self, kind: str, answer: str, thought: str | None) -> Document:
        """The document in which the model has to write `answer` after `thought` (None: thinking is off)."""
        context = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in self.turns)
        context += "<|im_start|>assistant\n"
        if thought is None:
            context += EMPTY_THOUGHT
        else:
            answer = f"<think>\n{thought}\n</think>\n\n{answer}"
        return Document(kind, [(context, False), (answer + "<|im_end|>", True)])


_SYSTEM = (
    "You are a helpful assistant.",
    "You are a storyteller.",
    "You tell little stories.",
    "You are a friendly storyteller. Use simple words.",
    "Answer in short sentences.",
    "You are a small model that tells stories to children.",
)
_REQUESTS = (
    "Tell me a story {}.",
    "Tell me a short story {}.",
    "Please tell me a story {}.",
    "Can you tell me a story {}?",
    "Write a story {}.",
    "Write a short story {}.",
    "I want to hear a story {}.",
    "A story {}, please.",
)
_ANY_STORY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "A story, please.",
    "Can you tell a story?",
)
_NEXT_STORY = ("Tell me another story.", "Another one, please.", "And now a story {}.", "Now tell me a story {}.")


def casual(rng: Random, text: str) -> str:
    """Sometimes what a hasty user would type: small letters, no full stop."""
    return text.lower().rstrip(".!? ") if rng.random() < 0.12 else text


def _new_chat(rng: Random) -> Chat:
    chat = Chat()
    if rng.random() < 0.2:
        chat.say("system", pick(rng, _SYSTEM, 0.5))
    return chat


def _thought(rng: Random, thought: str) -> str | None:
    return thought if rng.random() < 0.5 else None


def _request(rng: Random, story: Story, first: bool = True) -> str:
    if not first:
        form = pick(rng, _NEXT_STORY, 0.4)
    else:
        form = pick(rng, _ANY_STORY, 0.5) if rng.random() < 0.12 else pick(rng, _REQUESTS, 0.5)
    return casual(rng, form.format(story.subject))


def _plan(story: Story) -> str:
    return f"The story is {story.subject}. {story.plan}"


def _plain_story(rng: Random) -> Document:
    text = write_story(rng).text
    if rng.random() < 0.08:  # from the middle, so that a prompt may begin there too
        text = text.partition("\n\n")[2] or text
    return Document("plain story", [(text, True)])


def _story_on_request(rng: Random) -> Document:
    chat = _new_chat(rng)
    if rng.random() < 0.06:  # the model has offered a story, and the user says yes
        chat.ask(*greetings.offer(rng))
        story = write_story(rng)
        chat.say("user", casual(rng, pick(rng, greetings.YES, 0.5)))
        return chat.finish("story on request", story.text, _thought(rng, _plan(story)))
    first = True
    while rng.random() < 0.12:
        past = write_story(rng)
        chat.ask(_request(rng, past, first), past.text)
        first = False
    story = write_story(rng)
    if rng.random() < 0.05:
        topic = rng.choice(TOPICS if rng.random() < 0.5 else GENERAL_WORDS)
        chat.say("user", casual(rng, pick(rng, _REQUESTS, 0.5).format(f"about {topic}")))
        answer = f"I do not know a story about {topic}, but I know this one.\n\n{story.text}"
        return chat.finish("story on request", answer, _thought(rng, "I do not know that. I tell another story."))
    chat.say("user", _request(rng, story, first))
    return chat.finish("story on request", story.text, _thought(rng, _plan(story)))


def _question_about_given_story(rng: Random) -> Document:
    chat, story = _new_chat(rng), write_story(rng)
    question, answer = rng.choice(story.questions)
    if rng.random() < 0.3:
        chat.say("user", f"{question}\n\n{story.text}")
    else:
        chat.say("user", f"{story.text}\n\n{question}")
    return chat.finish("question about a given story", answer, _thought(rng, "I look at the story. " + answer))


def _question_about_told_story(rng: Random) -> Document:
    chat, story = _new_chat(rng), write_story(rng)
    chat.ask(_request(rng, story), story.text)
    questions = rng.sample(story.questions, rng.randint(1, min(3, len(story.questions))))
    for question, answer in questions[:-1]:
        chat.ask(casual(rng, question), answer)
    question, answer = questions[-1]
    chat.say("user", casual(rng, question))
    return chat.finish("question about a told story", answer, _thought(rng, "I look at the story. " + answer))


def small_talk(rng: Random, exchange: Exchange) -> Document:
    """A chat that ends with `exchange`, often right at its start."""
    chat = _new_chat(rng)
    while rng.random() < 0.3:
        past = draw_exchange(rng)
        chat.ask(casual(rng, lead(rng, past)), past.answer)
    return _last_exchange(rng, chat, exchange)


def _last_exchange(rng: Random, chat: Chat, exchange: Exchange) -> Document:
    chat.say("user", casual(rng, lead(rng, exchange)))
    document = chat.finish("small talk", exchange.answer, _thought(rng, exchange.thought))
    document.splittable = False
    return document


def _small_talk(rng: Random) -> Document:
    if rng.random() < 0.01:  # the model has offered a story, and the user says no
        chat = _new_chat(rng)
        chat.ask(*greetings.offer(rng))
        return _last_exchange(rng, chat, greetings.declined(rng))
    return small_talk(rng, draw_exchange(rng))


def _plain_facts(rng: Random) -> Document:
    """Many facts on end: every token teaches one, where a chat spends most of its tokens on questions."""
    count = rng.randint(4, 40)
    if rng.random() < 0.5:
        text = " ".join(draw_fact(rng).answer for _ in range(count))
    else:
        known = [draw_known(rng) for _ in range(count)]
        text = "\n\n".join(f"Question: {exchange.question}\nAnswer: {exchange.answer}" for exchange in known)
    return Document("plain facts", [(text, True)], splittable=False)


def _needle_in_chat(rng: Random) -> Document:
    """Something is told, then much else is said, then it is asked for."""
    chat, needles = _new_chat(rng), draw_needles(rng)
    chat.ask(needles.told, needles.noted)
    for _ in range(pick(rng, (1, 2, 3, 0, 4, 5), 0.7)):
        if rng.random() < 0.6:
            story = write_story(rng)
            chat.ask(_request(rng, story), story.text)
        else:
            exchange = draw_exchange(rng)
            chat.ask(casual(rng, lead(rng, exchange)), exchange.answer)
    chat.say("user", casual(rng, needles.question))
    return chat.finish("needle in a chat", needles.answer, _thought(rng, needles.thought))


def _needle_in_text(rng: Random) -> Document:
    """Something stands between stories, and is asked for at the end."""
    needles = draw_needles(rng)
    parts = [write_story(rng).text for _ in range(pick(rng, (1, 2, 3, 4, 5), 0.7))]
    parts.insert(rng.randint(0, len(parts) - 1) if rng.random() < 0.7 else 0, needles.told)
    if rng.random() < 0.4:
        text = "\n\n".join(parts)
        return Document(
            "needle in a text", [(f"{text}\n\nQuestion: {needles.question}\nAnswer: {needles.answer}", True)]
        )
    chat = _new_chat(rng)
    chat.say("user", "\n\n".join([*parts, needles.question]))
    return chat.finish("needle in a text", needles.answer, _thought(rng, needles.thought))


_WEIGHTED: tuple[tuple[Callable[[Random], Document], float], ...] = (
    (_plain_story, 0.24),
    (_small_talk, 0.31),
    (_story_on_request, 0.20),
    (_question_about_told_story, 0.07),
    (_question_about_given_story, 0.055),
    (_needle_in_chat, 0.055),
    (_needle_in_text, 0.045),
    (_plain_facts, 0.025),
)
_KINDS = [kind for kind, _ in _WEIGHTED]
_CUMULATIVE = list(accumulate(weight for _, weight in _WEIGHTED))


def write_document(rng: Random) -> Document:
    """One document of a kind drawn at random."""
    return rng.choices(_KINDS, cum_weights=_CUMULATIVE)[0](rng)
