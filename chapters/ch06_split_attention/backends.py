"""The implementations behind `paged_attention`: ours, PyTorch's, FlashInfer's and vLLM's, each by its name.

A backend gets a `Call`, the plan and perhaps a workspace. What is not ours prepares its arguments here, on every call:
whoever times a library times its own function, as the benchmark does, and not this preparation.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.candidates import run_vllm, vllm_caches
from chapters.ch06_split_attention.dispatch import Plan
from qwen3_ref.paged import paged_attention as reference_attention
from qwen_cuda.benchmarking.peers import Vllm, vllm
from qwen_cuda.operators import attention_workspace, check_block_table, paged_attention_grouped, paged_attention_split


class Call(NamedTuple):
    """The arguments of an attention. `q: [b, Hq, D]`, caches `[num_blocks, block_size, Hkv, D]`."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor  # [b, max_blocks] int32
    context_lens: Tensor  # [b] int32
    scale: float


FLASHINFER_BYTES = 128 * 2**20  # the workspace that its documentation asks for
Run = Callable[[Call, Plan, Tensor | None], Tensor]


@dataclass(frozen=True)
class AttentionBackend:
    """`run` computes; `unavailable` says in a sentence why it cannot here, or None."""

    run: Run
    unavailable: Callable[[], str | None] = lambda: None


def _reference(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    return reference_attention(*call)


def _grouped(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    return paged_attention_grouped(*call)


def _split(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    if workspace is None:
        workspace = attention_workspace(call.q, call.k_cache.shape[2], plan.partitions)
    return paged_attention_split(*call, plan.partition_size, plan.partitions, workspace, merge=plan.merge)


def _auto(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    return (_grouped if plan.partitions == 1 else _split)(call, plan, workspace)


def dense(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values as one dense tensor each, and which positions count: `[b, Hkv, t, D]` twice, `[b, t]` bool.

    t is what a row of the table holds. Positions that do not count are 0: a masked weight of 0 times NaN is NaN.
    """
    block_size, num_blocks = call.k_cache.shape[1], call.k_cache.shape[0]
    there = ((call.block_table >= 0) & (call.block_table < num_blocks)).repeat_interleave(block_size, 1)
    positions = torch.arange(there.shape[1], device=call.q.device)
    counts = there & (positions < call.context_lens[:, None])
    blocks = call.block_table.long().clamp(0, max(num_blocks - 1, 0))
    k, v = (
        torch.where(counts[:, None, :, None], cache[blocks].flatten(1, 2).transpose(1, 2), 0)
        for cache in (call.k_cache, call.v_cache)
    )
    return k, v, counts


def _sdpa(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    k, v, counts = dense(call)
    out = torch.nn.functional.scaled_dot_product_attention(
        call.q[:, :, None], k, v, counts[:, None, None], scale=call.scale, enable_gqa=True
    )[:, :, 0]
    return torch.where(counts.any(1)[:, None, None], out, 0)


class FlashInferTables(NamedTuple):
    """A block table as FlashInfer wants it: the pages of all sequences one after the other."""

    indptr: Tensor  # [b + 1] int32: where the pages of a sequence begin
    indices: Tensor  # [pages] int32
    last_page_len: Tensor  # [b] int32: tokens in the last page, 1 to block_size


def flashinfer_tables(block_table: Tensor, context_lens: Tensor, block_size: int) -> FlashInferTables:
    """Made on the CPU, where FlashInfer plans. A sequence without tokens gets one page that is read and not used."""
    table, lens = block_table.cpu(), context_lens.cpu().long()
    pages = (lens.clamp(min=1) + block_size - 1) // block_size
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), pages.cumsum(0))).int()
    rows = [
        table[s, :count] if lens[s] > 0 else torch.zeros(1, dtype=torch.int32) for s, count in enumerate(pages.tolist())
    ]
    indices = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int32)
    return FlashInferTables(indptr, indices, ((lens.clamp(min=1) - 1) % block_size + 1).int())


def check_for_peers(call: Call) -> None:
    """Others' kernels follow the table wherever it leads: what ours skip is refused here. Waits for the device.

    Raises:
        ValueError: a needed entry is no block, or a context is negative or longer than its row of the table.
    """
    check_block_table(call.block_table, call.context_lens, *call.k_cache.shape[:2])


def flashinfer_wrapper(call: Call, module: Any | None = None) -> Any:
    """FlashInfer's paged decode, planned for the tables of `call`: its `run(q, (k_cache, v_cache))` can be captured."""
    check_for_peers(call)
    library = module or importlib.import_module("flashinfer")
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(FLASHINFER_BYTES, dtype=torch.uint8, device=call.q.device), "NHD"
    )
    wrapper.plan(
        *flashinfer_tables(call.block_table, call.context_lens, call.k_cache.shape[1]),
        call.q.shape[1],
        call.k_cache.shape[2],
        call.q.shape[2],
        call.k_cache.shape[1],
        q_data_type=call.q.dtype,
        kv_data_type=call.k_cache.dtype,
        sm_scale=call.scale,
    )
    return wrapper


def _flashinfer(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    out = flashinfer_wrapper(call).run(call.q.contiguous(), (call.k_cache, call.v_cache))
    return torch.where(call.context_lens[:, None, None] > 0, out, 0)


def flashinfer_unavailable() -> str | None:
    """Why FlashInfer cannot take part, in a sentence; None when it can."""
    if importlib.util.find_spec("flashinfer") is None:
        return "backend flashinfer is not there: install flashinfer-python, or choose auto."
    return None if torch.cuda.is_available() else "backend flashinfer needs a GPU, and PyTorch sees none: choose auto."


def vllm_run(peer: Vllm, call: Call) -> Tensor:
    """vLLM's paged_attention_v1, on copies of the caches in its own layout."""
    check_for_peers(call)
    k, v = vllm_caches(call.k_cache, call.v_cache)
    longest = call.block_table.shape[1] * call.k_cache.shape[1]
    q = call.q.contiguous()
    return run_vllm(peer, torch.empty_like(q), q, k, v, call.block_table, call.context_lens, call.scale, longest)


def _vllm(call: Call, plan: Plan, workspace: Tensor | None) -> Tensor:
    peer = vllm()
    assert isinstance(peer, Vllm), peer
    out = vllm_run(peer, call)
    return torch.where(call.context_lens[:, None, None] > 0, out, 0)


def _vllm_unavailable() -> str | None:
    if not torch.cuda.is_available():
        return "backend vllm needs a GPU, and PyTorch sees none: choose auto."
    peer = vllm()
    if isinstance(peer, str):
        return f"backend vllm is not there: {peer}"
    if not hasattr(peer.ops, "paged_attention_v1"):
        return f"backend vllm is not there: {peer.version} registers no paged_attention_v1."
    return None


BACKENDS: dict[str, AttentionBackend] = {
    "auto": AttentionBackend(_auto),
    "grouped": AttentionBackend(_grouped),
    "split": AttentionBackend(_split),
    "reference": AttentionBackend(_reference),
    "sdpa": AttentionBackend(_sdpa),
    "flashinfer": AttentionBackend(_flashinfer, flashinfer_unavailable),
    "vllm": AttentionBackend(_vllm, _vllm_unavailable),
}
