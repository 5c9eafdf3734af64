"""The unpatched model and patched ones side by side: ms per decoded token and per prefill, in alternating order.

Everybody runs on the same weights, in turn within each round; rounds alternate between the order and its reverse. A
round of decoding is a block of tokens: the k-th block of each model appends to a cache of the same length. What is
compared is the median of a block with the unpatched model's of the same round.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from chapters.ch03_swiglu.drop_in.configurations import TIMED, UNPATCHED, patched_copy
from chapters.ch03_swiglu.drop_in.models import Subject
from chapters.ch03_swiglu.drop_in.pairs import Speedup
from chapters.ch03_swiglu.drop_in.runners import MODES, Mode, Runner, operators_per_step, runner
from qwen_cuda.benchmarking import Case, Quantiles, Report

PROMPTS = (128, 512, 1024)
TOKENS = 128
BLOCK = 16  # tokens of a round
ROUNDS = TOKENS // BLOCK
PREFILLS = 3  # of a round

Samples = dict[str, list[float]]  # by configuration, one value for each round, ms


@dataclass(frozen=True)
class Comparison:
    """One configuration against the unpatched model."""

    op: str
    mode: str
    prompt: int
    configuration: str
    rounds: int
    speedup: Speedup


class Speed:
    """Measures, adds its cases to a report, and keeps what the pairs say."""

    def __init__(self, report: Report, subject: Subject, rounds: int, begin: Callable[[str], None]) -> None:
        self._report, self._subject, self._rounds, self._begin = report, subject, rounds, begin
        self.comparisons: list[Comparison] = []
        self.operators: dict[str, int] = {}
        self._models = {UNPATCHED: subject.model}
        self._models |= {one.name: patched_copy(subject.model, one, "hf") for one in TIMED}

    def run(self, modes: Sequence[Mode], prompts: Sequence[int]) -> None:
        """Adds cases for each mode and prompt. A mode that this model cannot run in is left out, with a note."""
        short = self._subject.random_prompt(4)
        self.operators = {name: operators_per_step(model, short) for name, model in self._models.items()}
        for mode in modes:
            try:
                with torch.no_grad():
                    self._mode(mode, prompts)
            except (RuntimeError, NotImplementedError) as error:
                if mode == "eager":
                    raise
                self._report.warn(f"{mode}: left out, it says: {str(error).strip().splitlines()[0]}")
            torch.cuda.empty_cache()

    def to_dict(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "block_tokens": BLOCK,
            "operators_per_step": self.operators,
            "comparisons": [asdict(one) for one in self.comparisons],
        }

    def _mode(self, mode: Mode, prompts: Sequence[int]) -> None:
        for length in prompts:
            runners = {name: runner(mode, model, length + TOKENS) for name, model in self._models.items()}
            self._begin(f"decode, {mode}, prompt of {length}")
            self._add("decode", mode, length, self._decode(runners, length))
            self._begin(f"prefill, {mode}, {length} tokens")
            self._add("prefill", mode, length, self._prefill(runners, length))

    def _decode(self, runners: dict[str, Runner], length: int) -> Samples:
        prompt = self._subject.random_prompt(length)
        samples: Samples = {name: [] for name in runners}
        for one in runners.values():
            one.start(prompt)
            one.steps(2)
        for number in range(self._rounds):
            if number % (TOKENS // BLOCK) == 0:  # the caches are full, or not yet as they shall be
                for one in runners.values():
                    one.start(prompt)
            with _undisturbed():
                for name in _order(runners, number):
                    samples[name].append(statistics.median(runners[name].steps(BLOCK)))
        return samples

    def _prefill(self, runners: dict[str, Runner], length: int) -> Samples:
        prompt = self._subject.random_prompt(length)
        samples: Samples = {name: [] for name in runners}
        for one in runners.values():
            one.prefills(prompt, 1)
        for number in range(self._rounds):
            with _undisturbed():
                for name in _order(runners, number):
                    samples[name].append(statistics.median(runners[name].prefills(prompt, PREFILLS)))
        return samples

    def _add(self, op: str, mode: Mode, length: int, samples: Samples) -> None:
        nbytes, flops = work(self._subject.model, op, length)
        shape: dict[str, int | str] = {"model": self._subject.name, "mode": mode, "prompt": length}
        dtype = str(self._subject.dtype).removeprefix("torch.")
        for name, times in samples.items():
            us = Quantiles.of([ms * 1e3 for ms in times])
            self._report.add(Case(op, name, shape, dtype, "cold", bytes=nbytes, flops=flops, us=us))
            if name != UNPATCHED:
                speedup = Speedup.of(samples[UNPATCHED], times)
                self.comparisons.append(Comparison(op, mode, length, name, len(times), speedup))


def modes_for(device: torch.device) -> tuple[Mode, ...]:
    """A CPU has no CUDA graphs."""
    return MODES if device.type == "cuda" else ("eager",)


def work(model: Any, op: str, length: int) -> tuple[int, int]:
    """Bytes that must be read, and operations of the products with weights, which are a floor.

    Every weight is read once (the embedding's only where it is the head too), and for a decode step the cache.
    """
    config = model.config
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    weights = {id(weight): weight for weight in model.parameters() if weight is not embedding or weight is head}
    nbytes = sum(weight.nbytes for weight in weights.values())
    matrices = sum(weight.numel() for weight in weights.values() if weight.dim() == 2 and weight is not head)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * head.element_size()
    tokens = length if op == "prefill" else 1
    cached = 0 if op == "prefill" else per_token * (length + TOKENS // 2)
    return nbytes + cached, 2 * (matrices * tokens + head.numel())


def _order(runners: dict[str, Runner], number: int) -> list[str]:
    """There and back: whatever drifts hits all alike."""
    names = list(runners)
    return names[::-1] if number % 2 else names


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Python collects its garbage before the round, and not within a sample of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
