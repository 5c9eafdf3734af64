"""The stage of chapter 6: decode attention over a paged cache, one function, by whichever kernel is fastest or named.

`auto` chooses between chapter 5's kernel and this chapter's by the table in `dispatch.json`. The other names run one
implementation: ours, PyTorch's, or that of a library that happens to be installed. All are held against one oracle.
"""

from __future__ import annotations

from torch import Tensor

from chapters.ch06_split_attention.backends import BACKENDS, Call
from chapters.ch06_split_attention.dispatch import Plan, plan_for

__all__ = ["Plan", "backend_names", "paged_attention", "plan_for", "unavailable"]


# --8<-- [start:paged_attention]
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    backend: str = "auto",
    max_context: int | None = None,
    plan: Plan | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """`softmax(scale · q Kᵀ) V` of one new token a sequence. `q` and result: `[b, Hq, D]`.

    Args:
        q, k_cache, v_cache, block_table, context_lens, scale: as for
            `qwen_cuda.operators.paged_attention_grouped`.
        backend: one of `backend_names()`.
        max_context: the longest context of the batch, for the choice of a plan; by default
            what the table can hold. A longer one is computed as well, only more slowly. A CUDA
            graph needs the longest that it will ever meet.
        plan: the partitions, and who merges them, instead of what `plan_for` chooses. The same
            partitions give the same bits, by any merge; others, and so another batch size, may
            round differently.
        workspace: `plan.workspace(q, kv_heads)`, kept from call to call by whoever runs many.
            Without it one is made.
    Raises:
        ValueError: there is no such backend, or this machine lacks it; the sentence says why.
        RuntimeError: a kernel refuses an argument.
    """
    if reason := unavailable(backend):
        raise ValueError(reason)
    call = Call(q, k_cache, v_cache, block_table, context_lens, scale)
    if plan is None:
        held = block_table.shape[1] * k_cache.shape[1]
        longest = held if max_context is None else max_context
        plan = plan_for(q.shape[0], k_cache.shape[2], longest, q.device)
    return BACKENDS[backend].run(call, plan, workspace)


# --8<-- [end:paged_attention]


def backend_names() -> tuple[str, ...]:
    """Every name, whether this machine has it or not."""
    return tuple(BACKENDS)


def unavailable(backend: str) -> str | None:
    """Why this machine has no such backend, in one sentence; None when it has."""
    if backend not in BACKENDS:
        return f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}."
    return BACKENDS[backend].unavailable()
