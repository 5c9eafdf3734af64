"""Bugs planted into the ladder, and what the simulator says of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch05_grouped_attention.faults sync            write the reports into README.md
python -m chapters.ch05_grouped_attention.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qwen_cuda.building import Edit, Library
from qwen_cuda.loading import using
from qwen_cuda.operators import paged_attention_grouped
from qwen_cuda.operators.paged_attention import check_block_table
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEPS = HERE / "steps"
BLOCK_SIZE = 16


def planted(step: str, edit: Edit) -> Library:
    """The step with a bug in it or in one of its headers, in the simulator that checks every access."""
    return Library("sim", (STEPS / step,), "checked", (edit,))


# --8<-- [start:faults]
FAULTS = {
    "rescale": planted(
        "v1_head_by_head.cu",
        Edit("v1_head_by_head.cu", "o[i] = o[i] * factor + weight", "o[i] = o[i] + weight"),
    ),
    "infinity": planted(
        "v3_vector_unrolled.cu",
        Edit("online_softmax.cuh", "kNoScore = -3.402823466e+38f", "kNoScore = -INFINITY"),
    ),
    "barrier": planted(
        "v4_several_warps.cu",
        Edit("v4_several_warps.cu", "__syncthreads();  // the head before has been read by all", ""),
    ),
}
# --8<-- [end:faults]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]


def of_scores(scores: Tensor, values: Tensor, group: int = 1) -> Inputs:
    """Arguments of attention whose scores are `scores: [t]`, rounded to bfloat16, for each head of one group.

    `values: [t, 128]` are those of the one KV head. The query is 1 in its first dimension and 0 elsewhere, and
    the key of a token has its score there.
    """
    pages = -(-len(scores) // BLOCK_SIZE)
    k, v = (torch.zeros(pages * BLOCK_SIZE, 128) for _ in range(2))
    k[: len(scores), 0], v[: len(scores)] = scores, values
    q = torch.eye(1, 128).expand(1, group, 128)
    caches = (cache.bfloat16().view(pages, BLOCK_SIZE, 1, 128) for cache in (k, v))
    table, lens = torch.arange(pages).int()[None], torch.tensor([len(scores)]).int()
    return q.bfloat16().contiguous(), *caches, table, lens, 1.0  # type: ignore[return-value]


def run(library: Library, inputs: Inputs) -> Tensor:
    """`paged_attention_grouped` by the kernel of `library`, in the simulator."""
    with using(library):
        out: Tensor = torch.ops.qwen_sim.paged_attention_grouped(*inputs)
    return out


def barrier() -> str:
    """What the simulator says when a fast warp may write its share of the next head while others still read."""
    return sentence_of(lambda: run(FAULTS["barrier"], of_scores(torch.zeros(64), torch.ones(64, 128), group=2)))


def refusals() -> str:
    """A few calls that the operator refuses, and how."""
    q, k, v, table, lens, scale = of_scores(torch.zeros(20), torch.ones(20, 128), group=4)
    calls: tuple[Callable[[], object], ...] = (
        lambda: paged_attention_grouped(q.float(), k, v, table, lens, scale),
        lambda: paged_attention_grouped(q.repeat(1, 3, 1), k, v, table, lens, scale),
        lambda: paged_attention_grouped(q, k[:, :12].contiguous(), v[:, :12].contiguous(), table, lens, scale),
        lambda: paged_attention_grouped(q, k, v, table.long(), lens, scale),
    )
    return "\n".join(sentence_of(call) for call in calls)


def table() -> str:
    """What `check_block_table` says of an entry that the kernels would skip."""
    try:
        check_block_table(torch.tensor([[4, -1]]).int(), torch.tensor([20]).int(), num_blocks=8, block_size=BLOCK_SIZE)
    except ValueError as error:
        return str(error)
    raise AssertionError("The table went through; it was to be refused.")


def exercise() -> str:
    """What the starter of the exercise says."""
    starter = Library("sim", (HERE / "exercise" / "paged_attention.cu",))
    return sentence_of(lambda: run(starter, of_scores(torch.zeros(3), torch.ones(3, 128))))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {"barrier": barrier(), "refusals": refusals(), "table": table(), "exercise": exercise()}


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
