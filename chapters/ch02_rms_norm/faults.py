"""Bugs planted into the ladder, and what the simulator says of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch02_rms_norm.faults sync            write the reports into README.md
python -m chapters.ch02_rms_norm.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.operators import add_rms_norm_, rms_norm
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEPS = HERE / "steps"

# --8<-- [start:faults]
FAULTS = {
    "barrier": Fault(
        STEPS / "v2_block_per_row.cu",
        "  __syncthreads();  // partial[0] is complete before all threads read it\n",
        "",
    ),
    "bounds": Fault(
        STEPS / "v2_block_per_row.cu",
        "i < args.hidden; i += kThreads) {\n    const float value",
        "i <= args.hidden; i += kThreads) {\n    const float value",
    ),
    "mask": Fault(STEPS / "v3_warp_shuffle.cu", "0xffffffffu", "0x0000ffffu"),
}
# --8<-- [end:faults]


def report(fault: Fault, rows: int = 2, hidden: int = 1000) -> str:
    """What the simulator says when the kernel with the bug runs on an x of shape `[rows, hidden]`.

    Raises:
        AssertionError: it says nothing.
    """
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
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


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {name: report(fault) for name, fault in FAULTS.items()} | {"refusals": refusals(), "exercise": exercise()}


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
