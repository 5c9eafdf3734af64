"""Bugs planted into the linear layer, and what the simulator says of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch07_decode_gemv.faults sync            write the reports into README.md
python -m chapters.ch07_decode_gemv.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwen_cuda.building import ROOT, Library
from qwen_cuda.loading import using
from qwen_cuda.operators import decode_linear
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
KERNEL = ROOT / "kernels" / "cuda" / "decode_linear.cu"

# --8<-- [start:faults]
FAULTS = {
    "one meeting place": Fault(KERNEL, "turn ^= 1;", "", header="row_turns.cuh"),
    "up is not normed": Fault(
        HERE / "steps" / "v1_warp_per_row.cu",
        "(warp_sum(up) * scale)",
        "warp_sum(up)",
    ),
}
# --8<-- [end:faults]


def numbers(*shape: int, seed: int = 0, by: float = 1.0) -> Tensor:
    """Normal numbers in bfloat16."""
    return (by * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).bfloat16()


def run(library: Library, x: Tensor, weight: Tensor, **around: Any) -> Tensor:
    """`decode_linear` by the kernel of `library`, in the simulator."""
    with using(library):
        out: Tensor = torch.ops.qwen_sim.decode_linear(x, weight, **around)
    return out


def meeting() -> str:
    """What the simulator says when the sums of two turns share a place: rows of 18 segments, for blocks of 6 warps."""
    given = numbers(1, 4608), numbers(8, 4608, seed=1)
    return sentence_of(lambda: run(FAULTS["one meeting place"].library, *given))


def refusals() -> str:
    """A few calls that the operator refuses, and how."""
    x, weight = torch.ones(1, 16).bfloat16(), torch.ones(6, 16).bfloat16()
    calls: tuple[Callable[[], object], ...] = (
        lambda: decode_linear(x.expand(9, 16), weight),
        lambda: decode_linear(x, weight.float()),
        lambda: decode_linear(x, weight[::2]),
        lambda: decode_linear(x, weight, silu_mul=True, residual=torch.ones(1, 3).bfloat16()),
        lambda: decode_linear(x, weight, residual=torch.ones(1, 6)),
    )
    return "\n".join(sentence_of(call) for call in calls)


def exercise() -> str:
    """What the starter of the exercise says."""
    starter = Library("sim", (HERE / "exercise" / "decode_linear.cu",))
    return sentence_of(lambda: run(starter, numbers(1, 8), numbers(2, 8)))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {"meeting": meeting(), "refusals": refusals(), "exercise": exercise()}


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
