"""One request length after the other: who is ready and right is timed, and what came out goes into a report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from chapters.ch03_swiglu.drop_in.pairs import Speedup
from chapters.ch11_generator.end_to_end.catalogue import PEERS
from chapters.ch11_generator.end_to_end.contender import Answer, CannotRun, Contender
from chapters.ch11_generator.end_to_end.ours import OURS, W8
from chapters.ch11_generator.end_to_end.right_tokens import Judge
from chapters.ch11_generator.end_to_end.stopwatch import Samples, measured
from chapters.ch11_generator.end_to_end.subject import Request
from chapters.ch11_generator.end_to_end.work import Work
from qwen_cuda.benchmarking import Case, Report, WrongAnswer

REQUEST, DECODE, FIRST = "request", "decode", "first_token"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast `of` is as `over`, by rounds of one run in which both took part; 95 % interval."""

    op: str
    prompt: int
    of: str
    over: str
    rounds: int
    speedup: Speedup


@dataclass(frozen=True)
class Memory:
    """Bytes on the device for one contender, beside the weights that all share: held between requests, and at most."""

    variant: str
    prompt: int
    held_bytes: int
    peak_bytes: int


@dataclass
class Measurement:
    """Adds cases to a report and keeps what stands beside them."""

    report: Report
    judge: Judge
    rounds: int
    ratios: list[Ratio] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def run(self, request: Request, contenders: Sequence[Contender], begin: Callable[[str], None]) -> None:
        """Checks and times everybody on one request.

        Raises:
            WrongAnswer: one of ours gives wrong tokens. A peer that does is left out with a note.
        """
        if request.subject.device.type == "cuda":
            torch.compiler.reset()  # the sizes of the last request must not make this one's dynamic
        request.subject.prepare()
        ready: dict[str, Answer] = {}
        by_name = {one.name: one for one in contenders}
        for one in contenders:
            begin(f"prompt {len(request.prompt):,}: {one.name}")
            answer = self._ready(request, one)
            if answer is not None:
                ready[one.name] = answer
        begin(f"prompt {len(request.prompt):,}: all in turn")
        timed = {name: (answer, by_name[name].inside) for name, answer in ready.items()}
        samples = measured(timed, request.new_tokens, request.subject.device, self.rounds)
        for name, taken in samples.items():
            self.report.add(*self._cases(request, by_name[name], taken))
        self.ratios += _ratios(request, samples)

    def to_dict(self) -> dict[str, Any]:
        """For the results."""
        return {
            "bounds": self.judge.bounds,
            "memory": [asdict(one) for one in self.memory],
            "ratios": [asdict(one) for one in self.ratios],
        }

    def _ready(self, request: Request, one: Contender) -> Answer | None:
        """Its answers, once two of them have been right: they also warm up. None, with a note, if it cannot run."""
        where = f"{one.name}, prompt {len(request.prompt):,}"
        meter = _Meter(request.subject.device)
        try:
            with one.inside():
                answer = one.make(request)
                for tokens in (answer(request.new_tokens), answer(1), answer(request.new_tokens)):
                    if len(tokens) not in (1, request.new_tokens):
                        wrong: str | None = f"it gave {len(tokens)} tokens in place of {request.new_tokens}"
                    else:
                        wrong = self.judge.complaint(request, tokens, one.int8_head, one.kv_cache)
                    if wrong:
                        raise WrongAnswer(f"{where}: {wrong}.")
        except torch.OutOfMemoryError:
            self.report.note(f"{where}: left out, the device's memory is full.")
            _give_back(request.subject.device)
            return None
        except WrongAnswer as error:
            if not one.peer:
                raise
            self.report.warn(f"{error} It gets no time.")
            return None
        except Exception as error:
            if not one.peer and not isinstance(error, CannotRun):  # another's may fail in any way, of any version
                raise
            self.report.note(f"{where}: left out, it says: {_said(error, request)}")
            return None
        if one.metered and (used := meter.read()) is not None:
            head = request.subject.w8_head().nbytes if one.int8_head else 0
            self.memory.append(Memory(one.name, len(request.prompt), *(nbytes + head for nbytes in used)))
        return answer

    def _cases(self, request: Request, one: Contender, taken: Samples) -> Iterator[Case]:
        subject = request.subject
        work = Work.of(request, one.int8_head, one.kv_cache)
        shape: dict[str, int | str] = {
            "model": subject.name, "prompt": len(request.prompt), "new_tokens": request.new_tokens,
        }  # fmt: skip
        dtype = str(subject.model.dtype).removeprefix("torch.")
        # The tiny model's weights stay in a processor's cache.
        cache: Literal["cold", "warm"] = "warm" if subject.name == "tiny" else "cold"
        both = work.prefill_bytes + work.decode_bytes, work.prefill_flops + work.decode_flops
        yield Case(REQUEST, one.name, shape, dtype, cache, bytes=both[0], flops=both[1], tok_s=taken.whole)
        if taken.decode is not None:
            flops = round(work.decode_flops / work.steps)
            yield Case(DECODE, one.name, shape, dtype, cache, bytes=work.token_bytes, flops=flops, tok_s=taken.decode)
        elif work.steps:
            self.report.note(f"{one.name}, prompt {len(request.prompt):,}: the clock cannot tell its decoding.")
        yield Case(
            FIRST, one.name, shape, dtype, cache, bytes=work.prefill_bytes, flops=work.prefill_flops, us=taken.first_us
        )


def _ratios(request: Request, samples: dict[str, Samples]) -> Iterator[Ratio]:
    """Of whole requests and of decoding: int8 over bf16 of ours, and either over each peer."""
    pairs = [(W8, OURS), *((mine, peer) for mine in (OURS, W8) for peer in PEERS)]
    for of, over in pairs:
        if of not in samples or over not in samples:
            continue
        a, b = samples[of], samples[over]
        both = sorted(set(a.rounds) & set(b.rounds))
        for op, mine, theirs in ((REQUEST, a.whole_s, b.whole_s), (DECODE, a.decode_s, b.decode_s)):
            fast = [mine[a.rounds.index(number)] for number in both]
            slow = [theirs[b.rounds.index(number)] for number in both]
            if both and min(*fast, *slow) > 0:
                yield Ratio(op, len(request.prompt), of, over, len(both), Speedup.of(slow, fast))


def _said(error: Exception, request: Request) -> str:
    """Its first line. Results hold no local path."""
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    temporary = request.subject.kept.get("folder")
    for folder in (request.subject.directory, temporary.name if temporary else None):
        line = line.replace(str(folder), "…") if folder else line
    return line


class _Meter:
    """What is taken of a GPU's memory from here on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            _give_back(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def read(self) -> tuple[int, int] | None:
        """Held now, and the most since; None without a GPU."""
        if self._device.type != "cuda":
            return None
        now, most = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        return max(0, now - self._before), max(0, most - self._before)


def _give_back(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
