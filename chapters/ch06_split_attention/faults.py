"""Bugs planted into split attention, and what comes of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch06_split_attention.faults sync            write the reports into README.md
python -m chapters.ch06_split_attention.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chapters.ch06_split_attention.attention import paged_attention
from qwen3_ref.paged import paged_attention as reference
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.building import ROOT, Library
from qwen_cuda.loading import using
from qwen_cuda.operators import attention_workspace, paged_attention_split
from qwen_cuda.testing import quotations
from qwen_cuda.testing.backends import poisoned_memory
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
KERNEL = ROOT / "kernels" / "cuda" / "paged_attention_split.cu"
MERGE = "partition_merge.cuh"
PARTITION_SIZE, PARTITIONS, BLOCK_SIZE, DIM = 32, 4, 16, 128
SCALE = DIM**-0.5
CONTEXTS = (100, 40)  # of two calls with one workspace: four partitions have tokens, then two

# --8<-- [start:faults]
FAULTS = {
    "the first block merges": Fault(KERNEL, "== uint32_t(blocks - 1);", "== 0u;", MERGE),
    "the counter is not reset": Fault(
        KERNEL,
        "atomicInc(arrived, blocks - 1)",
        "atomicAdd(arrived, 1u)",
        MERGE,
    ),
    "partitions without tokens are merged": Fault(
        KERNEL,
        "merge_readers<kMergeBatch>(live, [&](int p) {\n        const int64_t",
        "merge_readers<kMergeBatch>(partials.partitions, [&](int p) {\n        const int64_t",
        MERGE,
    ),
}
CLUSTER_FAULT = Fault(
    KERNEL,
    "    cluster_arrive();\n    cluster_wait();\n",
    "",
    MERGE,
)
# --8<-- [end:faults]

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]


def arguments(context: int) -> Arguments:
    """Two query heads that share a KV head, one sequence, eight pages."""
    random = torch.Generator().manual_seed(context)
    pages = (8, BLOCK_SIZE, 1, DIM)
    q, k, v = (torch.randn(shape, generator=random).bfloat16() for shape in ((1, 2, DIM), pages, pages))
    return q, k, v, torch.arange(8, dtype=torch.int32)[None], torch.tensor([context], dtype=torch.int32), SCALE


def used_workspace() -> Tensor:
    """As another call may have left it: NaN, and counters of 0."""
    layout = WorkspaceLayout(1, 2, 1, DIM, PARTITIONS)
    workspace = torch.full((layout.size,), torch.nan)
    layout.parts(workspace).arrived.zero_()
    return workspace


def run(library: Library, of: Arguments, workspace: Tensor, merge: str = "last_block") -> Tensor:
    """`paged_attention_split` by the kernel of `library`, in the simulator. What it does not write is NaN."""
    cut = PARTITION_SIZE, PARTITIONS
    with using(library), poisoned_memory():
        out: Tensor = torch.ops.qwen_sim.paged_attention_split(*of, *cut, workspace, merge=merge)
    return out


def outcome(library: Library) -> list[str]:
    """What each of two calls gives: right, wrong, or NaN."""
    workspace, said = used_workspace(), []
    for context in CONTEXTS:
        of = arguments(context)
        out = run(library, of, workspace)
        good = torch.isclose(out.float(), reference(*of).float(), rtol=2**-6, atol=2**-6)
        said.append("NaN" if out.isnan().any() else "right" if good.all() else "wrong")
    return said


def planted() -> str:
    """A line for each bug: what the simulator, which checks every access, lets pass."""
    longest = max(map(len, FAULTS))
    lines = [
        f"{name:{longest}}   "
        + ", ".join(f"{c} tokens: {said}" for c, said in zip(CONTEXTS, outcome(fault.library), strict=True))
        for name, fault in FAULTS.items()
    ]
    return "\n".join(lines)


def no_barrier() -> str:
    """What the simulator says when a block of a cluster reads before the others have sent."""
    return sentence_of(lambda: run(CLUSTER_FAULT.library, arguments(100), used_workspace(), "cluster"))


def refusals() -> str:
    """A few calls that are refused, and how."""
    of = arguments(40)
    workspace = attention_workspace(of[0], 1, PARTITIONS)
    calls: tuple[Callable[[], object], ...] = (
        lambda: paged_attention_split(*of, 24, PARTITIONS, workspace),
        lambda: paged_attention_split(*of, PARTITION_SIZE, 0, workspace),
        lambda: paged_attention_split(*of, PARTITION_SIZE, 2 * PARTITIONS, workspace),
        lambda: paged_attention_split(*of, PARTITION_SIZE, PARTITIONS, workspace, merge="blocks"),
    )
    return "\n".join(sentence_of(call) for call in calls)


def backends() -> str:
    """What the dispatcher says of a backend that there is not."""
    try:
        paged_attention(*arguments(40), backend="flash")
    except ValueError as error:
        return str(error)
    raise AssertionError("There is a backend called flash now.")


def exercise() -> str:
    """What the starter of the exercise says."""
    library = Library("sim", (HERE / "exercise" / KERNEL.name,))
    return sentence_of(lambda: run(library, arguments(40), used_workspace()))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {
        "planted": planted(),
        "no_barrier": no_barrier(),
        "refusals": refusals(),
        "backends": backends(),
        "exercise": exercise(),
    }


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
