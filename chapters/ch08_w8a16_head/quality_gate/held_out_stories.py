"""Writes held_out_stories.json: stories of the tiny checkpoint's grammar on which it was not trained.

    python -m chapters.ch08_w8a16_head.quality_gate.held_out_stories

A hash of its text decides whether a story is held out, whatever seed has drawn it: see `Document.held_out`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from chapters.ch08_w8a16_head.quality_gate.prompts import HELD_OUT_STORIES
from qwen3_ref.tiny_training.corpus import documents

KIND = "plain story"
SEED = 8
COUNT = 24


def stories() -> Iterator[str]:
    """Held-out stories without end."""
    chunk = 0
    while True:
        yield from (one.text for one in documents(SEED, chunk) if one.held_out and one.kind == KIND)
        chunk += 1


def written() -> str:
    """What the file must hold: a JSON list, one story per line."""
    drawn = stories()
    lines = [json.dumps(next(drawn), ensure_ascii=False) for _ in range(COUNT)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    HELD_OUT_STORIES.write_text(written(), encoding="utf-8")
