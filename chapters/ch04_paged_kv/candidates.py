"""Everybody who takes part in chapter 4's benchmark: our operator, the steps of the ladder, and the peers.

A set of operands holds what the operator takes, with 16 heads of Q and 8 of K and V as in Qwen3-0.6B, and `out`, as
large as `qkv`, for the copy of the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwen3_ref import functional
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM, cos_sin_table
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import ulp

OP = "qk_norm_rope_cache_write"
EPS, THETA = 1e-6, 1e6
HEADS, KV_HEADS, BLOCK_SIZE = 16, 8, 16
COLUMNS = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LEAST_POSITIONS = 4096  # rows of cos_sin: one that fits into a cache whole would be no table of a model
STEPS = Path(__file__).with_name("steps")
ULPS = 0.55  # one rounding; the float32 work before it is less than a twentieth of that
# They round four times before the sum of the turn: the normed head, its product with the weight, cosine and sine, and
# the products with those. √2 · 4 + 1 halves of an ulp are 3.3.
PEER_ULPS = 3.5
ARGUMENTS = ("qkv", "q_weight", "k_weight", "cos_sin", "positions", "slot_mapping", "k_cache", "v_cache")


def work(tokens: int, dtype: torch.dtype) -> Work:
    """The least traffic: qkv in and as much out, a row of cos_sin and two indices a token, the weights once."""
    nbytes = tokens * (2 * COLUMNS * dtype.itemsize + 4 * HEAD_DIM + 16) + 2 * HEAD_DIM * dtype.itemsize
    shape: dict[str, int | str] = {"tokens": tokens, "heads": HEADS, "kv_heads": KV_HEADS}
    return Work(OP, shape, str(dtype).removeprefix("torch."), nbytes, bandwidth="copy")


def operands(tokens: int, dtype: torch.dtype, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only: a sequence in blocks of any order, and empty caches."""
    num_blocks = -(-tokens // BLOCK_SIZE)
    table = cos_sin_table(max(tokens, LEAST_POSITIONS), THETA, device)

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)
        at_host = torch.Generator().manual_seed(number)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator)

        first = int(torch.randint(len(table) - tokens + 1, (), generator=at_host))
        blocks = torch.randperm(num_blocks, generator=at_host).to(device)
        at = torch.arange(tokens, device=device)
        return {
            "qkv": normal(tokens, COLUMNS).to(dtype),
            "q_weight": (normal(HEAD_DIM) * 0.25 + 1).to(dtype),
            "k_weight": (normal(HEAD_DIM) * 0.25 + 1).to(dtype),
            "cos_sin": table.clone(),
            "positions": at + first,
            "slot_mapping": blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE,
            "k_cache": torch.zeros(num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype=dtype, device=device),
            "v_cache": torch.zeros(num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype=dtype, device=device),
            "out": torch.full((tokens, COLUMNS), torch.nan, dtype=dtype, device=device),
        }

    return make


def truth(of: Operands) -> Sequence[Tensor]:
    """q and both caches in float64, on the operands' device."""
    given = [of[name].double() if of[name].is_floating_point() else of[name] for name in ARGUMENTS]
    q, _ = REFERENCES[OP](*given, EPS, HEADS)
    return [q, *(cache.clone() for cache in given[-2:])]


def error(got: Tensor, truth: Tensor) -> Tensor:
    """In ulps at the length of the element's pair, (r, r + 64), which the rotation keeps.

    A small element of a rotated pair is a difference of larger numbers; its own ulps would measure their cancellation.
    """
    length = torch.hypot(*truth.chunk(2, dim=-1)).repeat(*[1] * (truth.dim() - 1), 2)
    return (got.double() - truth).abs() / ulp(length, got.dtype)


def ours() -> Variant:
    return Variant("ours", _ours, ulps=ULPS, error=error)


def ladder() -> Iterator[Variant]:
    """Our operator, pointed at each step's kernel."""
    for library in step_libraries():
        step = library.name.partition("_")[0]
        yield Variant("ours", _ours, step, ULPS, inside=partial(using, library), error=error)


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def peers(vllm: Vllm | None) -> Iterator[Variant]:
    """Others' kernels, but for compiled ones."""
    if vllm is not None:
        yield Variant("vllm", partial(_vllm, vllm), ulps=PEER_ULPS, peer=True, error=error)
    yield Variant("torch_eager", _eager, ulps=PEER_ULPS, peer=True, error=error)


def compiled() -> Variant:
    """torch.compile of the eager form, its kernels tuned for this one shape."""
    torch.compiler.reset()  # beyond a number of shapes it would fall back to eager without a word
    run = torch.compile(_eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    return Variant("torch_compile", run, ulps=PEER_ULPS, peer=True, error=error)


def copy_of_the_bytes() -> Variant:
    """The driver's copy of qkv, a yardstick: as many bytes in and out."""
    return Variant("copy", _copy, ulps=0.0, truth=lambda of: [of["qkv"].double()])


def _ours(of: Operands) -> list[Tensor]:
    q, _ = torch.ops.qwen_cuda.qk_norm_rope_cache_write(*(of[name] for name in ARGUMENTS), EPS, HEADS)
    return [q, of["k_cache"], of["v_cache"]]


def _copy(of: Operands) -> list[Tensor]:
    return [of["out"].copy_(of["qkv"])]


def _heads(qkv: Tensor) -> Sequence[Tensor]:
    """Q, K and V as `[t, heads, 128]`."""
    return qkv.unflatten(1, (-1, HEAD_DIM)).split((HEADS, KV_HEADS, KV_HEADS), dim=1)


def cache_operators() -> Any:
    """vLLM's operators for caches, a namespace of their own."""
    return torch.ops._C_cache_ops


def _vllm(vllm: Vllm, of: Operands) -> list[Tensor]:
    """Norm and rotation in place in qkv, then the write: two launches."""
    qkv = of["qkv"]
    vllm.ops.fused_qk_norm_rope(
        qkv, HEADS, KV_HEADS, KV_HEADS, HEAD_DIM, EPS, of["q_weight"], of["k_weight"], of["cos_sin"], True,
        of["positions"],
    )  # fmt: skip
    q, k, v = _heads(qkv)
    one = of["cos_sin"][0, 0]  # the scales of a quantised cache, which this one is not: never read
    cache_operators().reshape_and_cache_flash(k, v, of["k_cache"], of["v_cache"], of["slot_mapping"], "auto", one, one)
    return [q, of["k_cache"], of["v_cache"]]


# --8<-- [start:eager]
def _eager(of: Operands) -> list[Tensor]:
    """As the modules of transformers, operation by operation, and an indexed write."""
    q, k, v = _heads(of["qkv"])
    cos, sin = of["cos_sin"][of["positions"]][:, None].to(q.dtype).chunk(2, dim=-1)
    q = functional.apply_rope(functional.rms_norm(q, of["q_weight"], EPS, "hf"), cos, sin)
    k = functional.apply_rope(functional.rms_norm(k, of["k_weight"], EPS, "hf"), cos, sin)
    for cache, heads in ((of["k_cache"], k), (of["v_cache"], v)):
        cache.view(-1, KV_HEADS, HEAD_DIM)[of["slot_mapping"]] = heads
    return [q, of["k_cache"], of["v_cache"]]


# --8<-- [end:eager]
