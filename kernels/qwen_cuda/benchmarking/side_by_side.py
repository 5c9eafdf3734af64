"""Variants of one operation on the same operands: each is checked against float64, then all are timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from qwen_cuda.benchmarking.ceilings import Bandwidth
from qwen_cuda.benchmarking.graphs import Cache, Inside, Player, Recording, graph_timing, player_for
from qwen_cuda.benchmarking.operands import Operands, Rotation
from qwen_cuda.benchmarking.report import Case, Report
from qwen_cuda.benchmarking.timing import Quantiles
from qwen_cuda.testing.ulp import ulp_error

Truth = Callable[[Operands], Sequence[Tensor]]
Error = Callable[[Tensor, Tensor], Tensor]  # of an answer, beside the truth, in units in the last place


class WrongAnswer(RuntimeError):
    """A variant is wrong; no time of it means anything."""


@dataclass(frozen=True)
class Work:
    """What the variants of an operation do on one shape: what their cases have in common. Fields as in `Case`."""

    op: str
    shape: dict[str, int | str]
    dtype: str
    bytes: int
    flops: int = 0
    bandwidth: Bandwidth = "read"

    def case(self, variant: Variant, cache: Cache, us: Quantiles, device: torch.device) -> Case:
        nodes = int(device.type == "cuda")  # whatever it is, it is one kernel at the least
        nbytes = self.bytes if cache == "cold" else 0  # a cache does not bring them at the speed of memory
        return Case(
            self.op, variant.name, self.shape, self.dtype, cache, variant.step, nbytes, self.flops,
            bandwidth=self.bandwidth, nodes=nodes, us=us,
        )  # fmt: skip

    def __str__(self) -> str:
        return ", ".join([self.op, *(f"{name} {size}" for name, size in self.shape.items()), self.dtype])


@dataclass(frozen=True)
class Variant:
    """One way to compute an operation.

    Attributes:
        name, step: as in `Case`.
        run: computes with a set of operands and returns the tensors that hold the answer, which may be among them.
        ulps: how far the answer may be from float64, in units in the last place of its dtype.
        peer: somebody else's; when it refuses a shape it is left out with a note.
        inside: what is entered while it is called or recorded, such as `loading.using(library)`.
        truth: its own right answer, for a yardstick that computes something else, such as a copy of the same bytes.
        error: how far is measured. By default in ulps of each element; where large numbers cancel, those of what they
            were are what counts.
    """

    name: str
    run: Callable[[Operands], Sequence[Tensor]]
    step: str | None = None
    ulps: float = 1.0
    peer: bool = False
    inside: Inside = nullcontext
    truth: Truth | None = None
    error: Error = ulp_error

    @property
    def label(self) -> str:
        return self.name if self.step is None else f"{self.name} {self.step}"


def side_by_side(
    report: Report,
    work: Work,
    variants: Sequence[Variant],
    rotation: Rotation,
    truth: Truth,
    *,
    caches: Sequence[Cache] = ("cold",),
    budget_s: float = 0.05,
    player: Player | None = None,
) -> None:
    """Checks the variants, times them, and adds a case for each of them and each of `caches` to the report.

    Args:
        truth: the answer for a set of operands in float64, on the operands' device; it changes none of them.
    Raises:
        WrongAnswer: a variant differs from the truth by more than its `ulps`. Nothing has been timed then.
    """
    used = player or player_for(report.device)
    try:
        want = truth(rotation.sets[0])
        right = [one for one in variants if _is_right(report, one, rotation.sets[0], want, used, str(work))]
        del want
        calls = {one.label: [partial(one.run, operands) for operands in rotation.sets] for one in right}
        inside = {one.label: one.inside for one in right}
        for cache in caches if right else ():
            times = graph_timing(
                calls,
                report.device,
                cache=cache,
                again=rotation.overflows,
                inside=inside,
                budget_s=budget_s,
                player=used,
            )
            report.add(*(work.case(one, cache, times[one.label], report.device) for one in right))
    finally:
        if player is None:
            used.close()


def check(variant: Variant, operands: Operands, want: Sequence[Tensor], player: Player, where: str) -> None:
    """Holds an answer against the truth twice: called, and replayed as it is timed. `operands` stay as they are.

    Each time all that the variant writes holds NaN before, integers their largest, and a NaN is wrong. A kernel that
    is launched on another stream than the current one is not in the recording, and found out here.

    Raises:
        WrongAnswer: an element is further from the truth than `variant.ulps`, a shape differs, or an answer is missing.
    """
    mine = {name: tensor.clone() for name, tensor in operands.items()}
    with variant.inside():
        compare(variant, variant.run(mine), want, f"{where}, {variant.label}, called")
        _restore(mine, operands)
        recording = player.record([partial(variant.run, mine)], keep=1)
    try:
        for tensor in _answer(recording):
            tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
        _restore(mine, operands)  # after the NaN: an answer in place is an operand
        player.replay(recording)
        compare(variant, _answer(recording), want, f"{where}, {variant.label}, replayed")
    finally:
        recording.release()


def compare(variant: Variant, answer: Sequence[Tensor], want: Sequence[Tensor], where: str) -> None:
    """Raises WrongAnswer unless each tensor of `answer` lies within the variant's ulps of `want`, float64."""
    shapes = [list(tensor.shape) for tensor in answer], [list(tensor.shape) for tensor in want]
    if shapes[0] != shapes[1]:
        raise WrongAnswer(f"{where}: the shapes are {shapes[0]}; they must be {shapes[1]}.")
    for number, (got, truth) in enumerate(zip(answer, want, strict=True), 1):
        worst = float(variant.error(got, truth).max())  # the largest of numbers among which there is NaN is NaN
        if not worst <= variant.ulps:
            which = f"output {number} is" if len(answer) > 1 else "it is"
            raise WrongAnswer(f"{where}: {which} {worst:.4g} ulp from float64; {variant.ulps:g} are allowed.")


def _is_right(
    report: Report, variant: Variant, operands: Operands, want: Sequence[Tensor], player: Player, where: str
) -> bool:
    try:
        check(variant, operands, variant.truth(operands) if variant.truth else want, player, where)
    except (WrongAnswer, torch.OutOfMemoryError):
        raise
    except (RuntimeError, NotImplementedError) as error:
        if not variant.peer:
            raise
        report.note(f"{where}: {variant.label} is left out, it says: {str(error).strip().splitlines()[0]}")
        return False
    return True


def _answer(recording: Recording) -> Sequence[Tensor]:
    (answer,) = recording.outputs
    assert isinstance(answer, Sequence)
    return answer


def _restore(mine: Operands, operands: Operands) -> None:
    for name, tensor in operands.items():
        mine[name].copy_(tensor)
