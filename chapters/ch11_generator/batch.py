"""Several prompts at once: decoded together, each answer as it would be alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chapters.ch11_generator.request import Request
from qwen3_ref.generate import Generation
from qwen3_ref.tokenizer import Tokenizer

if TYPE_CHECKING:  # the operators, which it imports, are built when they are imported
    from chapters.ch09_graph_capture.batch_rows import BatchRow


def answer_together(
    requests: Sequence[Request], rows: Sequence[BatchRow], tokenizer: Tokenizer, stop: Sequence[str]
) -> list[Generation]:
    """Runs all requests to their ends, one row each.

    The seconds of a generation, `prefill_s` and `decode_s`, are those from the batch's start to its first token and on
    to its last: what the others did meanwhile is in them.
    """
    start, runs = time.perf_counter(), []
    for one, row in zip(requests, rows, strict=True):
        runs.append(Generation(row, tokenizer, one.ids, one.max_new_tokens, one.sampling, stop))
        row.begin(one.ids, one.sampling, one.max_new_tokens)
    told: dict[int, list[float]] = {}  # of each run, the times of its tokens
    going = dict(enumerate(runs))
    while going:
        for number, run in list(going.items()):
            if next(iter(run), None) is None:
                del going[number]
                first, *_, last = told[number] * 2
                run.prefill_s, run.decode_s = first - start, last - first
                continue
            told.setdefault(number, []).append(time.perf_counter())
    return runs
