"""Bugs planted into advance_decode, and what comes of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch09_graph_capture.faults sync            write the reports into README.md
python -m chapters.ch09_graph_capture.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chapters.ch09_graph_capture.advance_checks import FOUR, Rows
from qwen_cuda.building import ROOT, Library
from qwen_cuda.loading import load_operators, using
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
KERNEL = ROOT / "kernels" / "cuda" / "advance_decode.cu"
ONE = Rows(ids=(5,), lens=(15,), table=((1, 2),), hidden=40)  # the last token of a page

# --8<-- [start:faults]
FAULTS = {
    "race": Fault(KERNEL, "  __syncthreads();  // all have read context_lens\n", ""),
    "overrun": Fault(KERNEL, "index < a.max_blocks", "index <= a.max_blocks"),
    "early": Fault(KERNEL, "int(position / a.block_size)", "int((position + 1) / a.block_size)"),
}
# --8<-- [end:faults]


def run(library: Library, rows: Rows, steps: int = 1) -> dict[str, Tensor]:
    """`advance_decode` by the kernel of `library`, in the simulator, so many times: the tensors by name."""
    tensors = dict(zip(rows.names, rows.tensors(), strict=True))
    with using(library):
        for _ in range(steps):
            torch.ops.qwen_sim.advance_decode(*tensors.values(), rows.num_blocks, rows.block_size)
    return tensors


def race() -> str:
    """How much of the embedding arrives when nobody waits before the new length is written.

    The simulator runs the threads of a block in turn, so thread 0 has written before the others read. That matters for
    the last token of a row alone: with one token more the others think that the row rests.
    """
    lines = []
    for length in (13, 14, 15):
        h = run(FAULTS["race"].library, replace(ONE, lens=(length,)))["h"][0]
        arrived = int((h != 0).sum())
        lines.append(f"token {length + 1} of a room of 16: {arrived:2} of {len(h)} columns are the embedding's")
    return "\n".join(lines)


def overrun() -> str:
    """What it says when a full table is looked up one column too far."""
    return sentence_of(lambda: run(FAULTS["overrun"].library, replace(ONE, lens=(16,))))


def early() -> str:
    """Slots of four tokens around the end of a page, right and with the bug; the simulator has nothing to say."""
    rows = replace(ONE, lens=(5,))
    lines = []
    for name, library in (("right", Library("sim", (KERNEL,), "checked")), ("early", FAULTS["early"].library)):
        slots = [int(run(library, rows, steps)["slot_mapping"]) for steps in range(1, 5)]
        lines.append(f"{name}  " + "  ".join(f"{slot:3}" for slot in slots))
    return "\n".join(lines)


def refusals() -> str:
    """A few calls that are refused, and how."""
    load_operators()

    def call(**changed: Any) -> Callable[[], object]:
        tensors = dict(zip(FOUR.names, FOUR.tensors(), strict=True)) | changed
        return lambda: torch.ops.qwen_cuda.advance_decode(*tensors.values(), FOUR.num_blocks, FOUR.block_size)

    calls = (
        call(ids=torch.zeros(4, dtype=torch.int32)),
        call(context_lens=torch.zeros(3, dtype=torch.int32)),
        call(history=torch.zeros(1, 24, dtype=torch.int64).expand(4, -1)),
        call(h=torch.zeros(4, 39)),
    )
    return "\n".join(sentence_of(one) for one in calls)


def exercise() -> str:
    """What the starter of the exercise says."""
    library = Library("sim", (HERE / "exercise" / KERNEL.name,))
    return sentence_of(lambda: run(library, ONE))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {
        "race": race(),
        "overrun": overrun(),
        "early": early(),
        "refusals": refusals(),
        "exercise": exercise(),
    }


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
