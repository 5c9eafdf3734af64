"""Bugs planted into the ladder, and what the simulator says of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch03_swiglu.faults sync            write the reports into README.md
python -m chapters.ch03_swiglu.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.operators import rms_norm, silu_mul
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEPS = HERE / "steps"

# --8<-- [start:faults]
FAULTS = {
    "bounds": Fault(
        STEPS / "v2_vector_loads.cu",
        "if (q >= packs) return;",
        "if (q > packs) return;",
    ),
    "stride": Fault(
        STEPS / "v2_vector_loads.cu",
        "row * args.gate_up_stride",
        "row * 2 * args.size",
    ),
}
# --8<-- [end:faults]


def run(library: Library, gate_up: Tensor) -> Tensor:
    """`silu_mul` by the kernel of `library`, in the simulator."""
    with using(library):
        out: Tensor = torch.ops.qwen_sim.silu_mul(gate_up)
    return out


def bounds() -> str:
    """What the simulator says when one thread too many takes part in a row."""
    return sentence_of(lambda: run(FAULTS["bounds"].library, torch.ones(2, 2 * 3072).bfloat16()))


def heads() -> str:
    """What the norm says to the query heads of several tokens, as a view of packed rows."""
    qkv = torch.ones(4, 4096).bfloat16()
    q = qkv[:, :2048].view(4, 16, 128)
    return sentence_of(lambda: rms_norm(q, torch.ones(128).bfloat16(), 1e-6))


def refusals() -> str:
    """A few calls that the operator refuses, and how."""
    gate_up = torch.ones(4, 8)
    calls: tuple[Callable[[], object], ...] = (
        lambda: silu_mul(gate_up.double()),
        lambda: silu_mul(gate_up[:, :7]),
        lambda: silu_mul(gate_up.T),
        lambda: silu_mul(torch.ones(4, 3, 8)[:, :2]),
    )
    return "\n".join(sentence_of(call) for call in calls)


def exercise() -> str:
    """What the starter of the exercise says."""
    return sentence_of(lambda: run(Library("sim", (HERE / "exercise" / "silu_mul.cu",)), torch.ones(1, 8)))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {"heads": heads(), "bounds": bounds(), "refusals": refusals(), "exercise": exercise()}


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
