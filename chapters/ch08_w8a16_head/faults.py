"""Bugs planted into the int8 head, and what comes of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch08_w8a16_head.faults sync            write the reports into README.md
python -m chapters.ch08_w8a16_head.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quantize import quantize_w8
from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.operators import argmax_workspace, head_argmax, w8a16_linear
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEPS = HERE / "steps"
COLUMNS = 130  # the last word of a row has two bytes

# --8<-- [start:faults]
FAULTS = {
    "tail": Fault(
        STEPS / "v1_four_bytes_a_lane.cu",
        "j < 4 && j < k - c",
        "j < 4",
    ),
    "unsigned": Fault(
        STEPS / "v1_four_bytes_a_lane.cu",
        "static_cast<float>(int8_t(word >> 8 * j))",
        "static_cast<float>(uint8_t(word >> 8 * j))",
    ),
}
# --8<-- [end:faults]


def operands() -> tuple[Tensor, Tensor, Tensor]:
    """`x: [1, 130]`, and a head of 8 rows with one scale each."""
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(8, COLUMNS, generator=random)
    return torch.randn(1, COLUMNS, generator=random).bfloat16(), *quantize_w8(weight, None)


def run(library: Library, of: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """`w8a16_linear` by the kernel of `library`, in the simulator: float32 `[b, n]`."""
    with using(library):
        out: Tensor = torch.ops.qwen_sim.w8a16_linear(*of, out_dtype=torch.float32)
    return out


def tail() -> str:
    """What the simulator says when the last word of a row reads four elements of x."""
    return sentence_of(lambda: run(FAULTS["tail"].library, operands()))


def unsigned() -> str:
    """What the first logits become when bytes have no sign; the simulator has nothing to say."""
    of = operands()
    lines = []
    for name, out in (
        ("signed", w8a16_linear(*of, out_dtype=torch.float32)),
        ("unsigned", run(FAULTS["unsigned"].library, of)),
    ):
        lines.append(f"{name:8}  " + "  ".join(f"{value:8.2f}" for value in out[0, :4].tolist()))
    return "\n".join(lines)


def refusals() -> str:
    """A few calls that are refused, and how."""
    x, qweight, scales = torch.ones(1, 64), torch.ones(4, 64, dtype=torch.int8), torch.ones(4, 2)
    calls: tuple[Callable[[], object], ...] = (
        lambda: w8a16_linear(torch.ones(9, 64), qweight, scales),
        lambda: w8a16_linear(x, qweight, scales.bfloat16()),
        lambda: w8a16_linear(x, qweight, torch.ones(4, 4)),
        lambda: head_argmax(x, torch.ones(4, 64), workspace=argmax_workspace("cpu")),
    )
    return "\n".join(sentence_of(call) for call in calls)


def unquantisable() -> str:
    """What the quantiser says to a weight that holds a NaN."""
    weight = torch.ones(4, 256)
    weight[2, 200] = torch.nan
    try:
        quantize_w8(weight)
    except ValueError as error:
        return str(error)
    raise AssertionError("a NaN was quantised")


def exercise() -> str:
    """What the starter of the exercise says."""
    library = Library("sim", (HERE / "exercise" / "w8a16_linear.cu",))
    return sentence_of(lambda: run(library, operands()))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {
        "tail": tail(),
        "unsigned": unsigned(),
        "refusals": refusals(),
        "unquantisable": unquantisable(),
        "exercise": exercise(),
    }


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
