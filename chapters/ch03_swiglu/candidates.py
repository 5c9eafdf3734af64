"""Everybody who takes part in chapter 3's benchmark of silu_mul: our operator, the steps of the ladder, and the peers.

A set of operands holds `gate_up: [rows, 2 · size]`, `out: [rows, size]` for those who write into a given tensor, and
`room`, half as large as gate_up and out together: the copy of as many bytes goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from qwen3_ref import functional
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.testing.references import REFERENCES

STEPS = Path(__file__).with_name("steps")
# One rounding of the output's format errs by half an ulp. Float32 work before it counts only where the output is
# float32: about 10 roundings (silu_mul_checks.py derives it).
ULPS = {torch.bfloat16: 1.0, torch.float16: 1.0, torch.float32: 16.0}
# Two roundings: half an ulp of SiLU is a whole ulp of a product that lies lower in its binade.
PEER_ULPS = 1.0


def work(rows: int, size: int, dtype: torch.dtype) -> Work:
    """The least traffic: gate and up are read, out is written."""
    shape: dict[str, int | str] = {"rows": rows, "size": size}
    nbytes = 3 * rows * size * dtype.itemsize
    return Work("silu_mul", shape, str(dtype).removeprefix("torch."), nbytes, bandwidth="copy")


def operands(rows: int, size: int, dtype: torch.dtype, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only; `room`, of which `out` is a part, holds NaN."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)
        gate_up = torch.empty((rows, 2 * size), device=device).normal_(generator=generator).to(dtype)
        room = torch.full((3 * rows * size // 2,), torch.nan, dtype=dtype, device=device)
        return {"gate_up": gate_up, "room": room, "out": room[: rows * size].view(rows, size)}

    return make


def truth(of: Operands) -> Sequence[Tensor]:
    """The answer in float64, on the operands' device."""
    return [REFERENCES["silu_mul"](of["gate_up"].double())]


def ours(dtype: torch.dtype) -> Iterator[Variant]:
    """The operator as it is, and in Hugging Face's order of roundings."""
    yield Variant("ours", _silu_mul, ulps=ULPS[dtype])
    yield Variant("ours_hf_rounding", _silu_mul_hf, ulps=ULPS[dtype] + PEER_ULPS)


def ladder(dtype: torch.dtype) -> Iterator[Variant]:
    """Our operator, pointed at the kernel of each step."""
    for library in step_libraries():
        step = library.name.partition("_")[0]
        yield Variant("ours", _silu_mul, step, ULPS[dtype], inside=partial(using, library))


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def peers(dtype: torch.dtype, vllm: Vllm | None) -> Iterator[Variant]:
    """Others' kernels, but for compiled ones. PyTorch launches two: on views of the packed rows, and on two tensors."""
    of_peer = partial(Variant, ulps=ULPS[dtype] + PEER_ULPS, peer=True)
    if vllm is not None and hasattr(vllm.ops, "silu_and_mul"):
        yield of_peer("vllm", partial(_vllm, vllm))
    yield of_peer("torch_eager", _eager)
    yield of_peer("torch_eager_unpacked", _eager_unpacked, truth=_truth_unpacked)


def copy_of_the_bytes() -> Variant:
    """The driver's copy of as many bytes as silu_mul reads and writes, half of them read and half written."""
    return Variant("copy", _copy, ulps=0.0, truth=lambda of: [_copied(of).double()])


def compiled(dtype: torch.dtype) -> Variant:
    """torch.compile of the eager form, its kernel tuned for this one shape."""
    torch.compiler.reset()  # beyond a number of shapes it would fall back to eager without a word
    run = torch.compile(_eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    return Variant("torch_compile", run, ulps=ULPS[dtype] + PEER_ULPS, peer=True)


def _silu_mul(of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.silu_mul(of["gate_up"])]


def _silu_mul_hf(of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.silu_mul(of["gate_up"], hf_rounding=True)]


def _vllm(vllm: Vllm, of: Operands) -> list[Tensor]:
    vllm.ops.silu_and_mul(of["out"], of["gate_up"])
    return [of["out"]]


def _eager(of: Operands) -> list[Tensor]:
    """As the module of transformers, operation by operation."""
    gate, up = of["gate_up"].chunk(2, dim=-1)
    return [functional.swiglu(gate, up, "hf")]


def _eager_unpacked(of: Operands) -> list[Tensor]:
    return [functional.swiglu(*_unpacked(of["gate_up"]), "hf")]


def _truth_unpacked(of: Operands) -> list[Tensor]:
    return [functional.swiglu(*_unpacked(of["gate_up"].double()), "fused")]


def _unpacked(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """The same memory as two dense matrices `[rows, size]`."""
    gate, up = gate_up.view(2, gate_up.shape[0], -1)
    return gate, up


def _copy(of: Operands) -> list[Tensor]:
    return [of["room"].copy_(_copied(of))]


def _copied(of: Operands) -> Tensor:
    return of["gate_up"].view(-1)[: of["room"].numel()]
