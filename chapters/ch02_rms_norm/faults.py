"""Bugs planted into the ladder, and what the simulator says of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch02_rms_norm.faults sync            write the reports into README.md
python -m chapters.ch02_rms_norm.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from qwen_cuda.building import BuildError, Edit, Library
from qwen_cuda.loading import using
from qwen_cuda.operators import add_rms_norm_, rms_norm

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
_REPORT = re.compile(r"^<!-- report: (?P<name>[\w-]+) -->\n```message\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fault:
    """A bug in one step of the ladder: `old` becomes `new`. It shows on an x of shape `[rows, hidden]`."""

    step: str
    old: str
    new: str
    rows: int = 2
    hidden: int = 1000

    @property
    def library(self) -> Library:
        """The step with the bug, in the simulator that checks every access."""
        file = f"{self.step}.cu"
        return Library("sim", (HERE / "steps" / file,), "checked", (Edit(file, self.old, self.new),))


# --8<-- [start:faults]
FAULTS = {
    "barrier": Fault(
        "v2_block_per_row",
        "  __syncthreads();  // partial[0] is complete before all threads read it\n",
        "",
    ),
    "bounds": Fault(
        "v2_block_per_row",
        "i < args.hidden; i += kThreads) {\n    const float value",
        "i <= args.hidden; i += kThreads) {\n    const float value",
    ),
    "mask": Fault("v3_warp_shuffle", "0xffffffffu", "0x0000ffffu"),
}
# --8<-- [end:faults]


def report(fault: Fault) -> str:
    """What the simulator says when the kernel with the bug runs.

    Raises:
        AssertionError: it says nothing.
    """
    x = torch.randn(fault.rows, fault.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    with using(fault.library):
        return sentence_of(lambda: torch.ops.qwen_sim.rms_norm(x, torch.ones_like(x[0]), 1e-6))


def refusals() -> str:
    """A few calls that the operators refuse, and how."""
    x, weight = torch.ones(2, 8), torch.ones(8)
    calls: tuple[Callable[[], object], ...] = (
        lambda: rms_norm(x.double(), weight.double(), 1e-6),
        lambda: rms_norm(x, weight[:7], 1e-6),
        lambda: rms_norm(x, weight.bfloat16(), 1e-6),
        lambda: rms_norm(x.T, weight[:2], 1e-6),
        lambda: rms_norm(x, weight, -1.0),
        lambda: add_rms_norm_(x, x, weight, 1e-6),
    )
    return "\n".join(sentence_of(call) for call in calls)


def exercise() -> str:
    """What the starter of the exercise says."""
    with using(Library("sim", (HERE / "exercise" / "rms_norm.cu",))):
        return sentence_of(lambda: torch.ops.qwen_sim.rms_norm(torch.ones(1, 8), torch.ones(8), 1e-6))


def sentence_of(call: Callable[[], object]) -> str:
    """The message of the error that `call` raises.

    Raises:
        AssertionError: it raises none.
        BuildError: the kernel could not even be built.
    """
    try:
        call()
    except BuildError:
        raise
    except RuntimeError as error:
        return str(error)
    raise AssertionError("The call went through; it was to be refused.")


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {name: report(fault) for name, fault in FAULTS.items()} | {"refusals": refusals(), "exercise": exercise()}


def filled(lesson: str) -> str:
    """The lesson with each report as it must be.

    Raises:
        KeyError: it asks for a report that there is not.
    """
    texts = reports()
    return _REPORT.sub(lambda m: f"<!-- report: {m['name']} -->\n```message\n{texts[m['name']].rstrip()}\n```", lesson)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verb = parser.add_subparsers(dest="verb", required=True).add_parser("sync")
    verb.add_argument("--check", action="store_true", help="write nothing, fail when the lesson is stale")
    check = parser.parse_args(argv).check
    lesson = LESSON.read_text(encoding="utf-8")
    current = filled(lesson)
    if current == lesson:
        return 0
    print("stale, run sync:" if check else "wrote", LESSON, file=sys.stderr)
    if not check:
        LESSON.write_text(current, encoding="utf-8")
    return int(check)


if __name__ == "__main__":
    raise SystemExit(main())
