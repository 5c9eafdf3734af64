"""The texts on which a model is judged, and their tokens.

They must be texts that the model was not trained on: a model is surest of what it knows by heart, and what it is sure
of no rounding changes. For the tiny checkpoint they are held-out stories (`held_out_stories.py`), for other models
passages that were written for this gate: `passages.json` has stories, code, mathematics, dialogues, lists, and four
languages besides English.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from qwen3_ref.tokenizer import Tokenizer

PASSAGES = Path(__file__).with_name("passages.json")
HELD_OUT_STORIES = Path(__file__).with_name("held_out_stories.json")

CONTEXT = 16
"""Tokens that begin each text and are read only: without a context a model's first guesses are near-ties."""
LEAST_TEXTS, LEAST_TOKENS = 20, 32
TOKENS = 64  # judged in each text, unless the user asks for another number


class GateError(ValueError):
    """A model or a text that cannot be judged. The message is a sentence for the user."""


@dataclass(frozen=True)
class Texts:
    """Passages, the name of their file, and a digest by which two results can be known to be of the same texts."""

    name: str
    passages: tuple[str, ...]

    @property
    def digest(self) -> str:
        return blake2b(json.dumps(self.passages).encode(), digest_size=8).hexdigest()


def read_texts(path: Path) -> Texts:
    """A file with one passage per line, or with a JSON list of passages (which may then have lines of their own).

    Raises:
        GateError: it cannot be read, holds something else, holds a passage twice, or too few of them.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise GateError(f"{path} cannot be read: {reason}.") from None
    passages = _listed(path, content) if content.lstrip().startswith("[") else content.split("\n")
    passages = [passage for passage in passages if passage.strip()]
    if len(passages) < LEAST_TEXTS:
        raise GateError(f"{path} holds {len(passages)} passages; at least {LEAST_TEXTS} are needed for a judgement.")
    if len(set(passages)) < len(passages):
        twice = next(passage for passage in passages if passages.count(passage) > 1)
        raise GateError(f"{path} holds a passage more than once, which proves nothing more: {_beginning(twice)}.")
    return Texts(path.name, tuple(passages))


def encode(texts: Texts, tokenizer: Tokenizer, tokens: int, vocab_size: int) -> list[list[int]]:
    """The first `CONTEXT + tokens` token ids of each text.

    Raises:
        GateError: a text is shorter, or has a token that the model lacks.
    """
    wanted = CONTEXT + tokens
    found = []
    for number, passage in enumerate(texts.passages, start=1):
        ids = tokenizer.encode(passage)
        if len(ids) < wanted:
            raise GateError(
                f"passage {number} of {texts.name} has {len(ids)} tokens; {CONTEXT} to read and {tokens} to judge make "
                f"{wanted}, so lengthen it, or ask for fewer with --tokens: {_beginning(passage)}."
            )
        ids = ids[:wanted]
        if max(ids) >= vocab_size:
            raise GateError(
                f"passage {number} of {texts.name} has the token {max(ids)}, but the model's vocabulary ends at "
                f"{vocab_size - 1}: this tokenizer belongs to another model."
            )
        found.append(ids)
    return found


def _listed(path: Path, content: str) -> Sequence[str]:
    try:
        passages = json.loads(content)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GateError(f"{path} begins with [ and is no JSON list: {error}.") from None
    for number, passage in enumerate(passages, start=1):
        if not isinstance(passage, str):
            raise GateError(f"{path}: element {number} of the list is a {type(passage).__name__}; it must be a string.")
    return list(passages)


def _beginning(passage: str) -> str:
    """The first words, on one line."""
    words = " ".join(passage.split())
    return repr(words if len(words) <= 40 else words[:39] + "…")
