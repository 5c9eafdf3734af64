"""Everybody who takes part in chapter 2's benchmark: our operators, the steps of the ladder, and the peers.

A set of operands holds `x` and, for add_rms_norm, `residual`: `[rows, hidden]`; `weight: [hidden]`; and for rms_norm
`out: [rows, hidden]`, for those who write into a given tensor.
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
from qwen_cuda.loading import load, using
from qwen_cuda.testing.references import REFERENCES

EPS = 1e-6
OPS = ("rms_norm", "add_rms_norm")
STEPS = Path(__file__).with_name("steps")
# One rounding of the output's format errs by half an ulp. Float32 work before it counts only where the output is
# float32: up to 8 roundings, and those of the longest chain of the sum (rms_norm_checks.py derives it).
ULPS = {torch.bfloat16: 1.0, torch.float16: 1.0, torch.float32: 16.0}
# Peers round to the output's format up to three times: the sum, the normed row, the product with the weight. Half an
# ulp of one of them is a whole ulp of a result that lies lower in its binade.
PEER_ULPS = 3.0


def work(op: str, rows: int, hidden: int, dtype: torch.dtype) -> Work:
    """The least traffic: x is read and out is written, for add_rms_norm residual too; the weight is read once."""
    moved = {"rms_norm": 2, "add_rms_norm": 4}[op]
    nbytes = (moved * rows + 1) * hidden * dtype.itemsize
    shape: dict[str, int | str] = {"rows": rows, "hidden": hidden}
    return Work(op, shape, str(dtype).removeprefix("torch."), nbytes, bandwidth="copy")


def operands(op: str, rows: int, hidden: int, dtype: torch.dtype, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only; `out` holds NaN."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).to(dtype)

        made = {"x": normal(rows, hidden), "weight": (normal(hidden).float() * 0.25 + 1).to(dtype)}
        if op == "add_rms_norm":
            return made | {"residual": normal(rows, hidden)}
        return made | {"out": torch.full((rows, hidden), torch.nan, dtype=dtype, device=device)}

    return make


def truth(op: str, of: Operands) -> Sequence[Tensor]:
    """The answer in float64, on the operands' device."""
    if op == "rms_norm":
        return [REFERENCES[op](of["x"].double(), of["weight"].double(), EPS)]
    return list(REFERENCES[op](of["x"].double(), of["residual"].double(), of["weight"].double(), EPS))


def ours(op: str, dtype: torch.dtype) -> Iterator[Variant]:
    """The operators as they are: `ours` is the form of the hot path, which for the fused one is in place."""
    if op == "rms_norm":
        yield Variant("ours", _rms_norm, ulps=ULPS[dtype])
        yield Variant("ours_in_place", _rms_norm_in_place, ulps=ULPS[dtype])
    else:
        yield Variant("ours", _add_rms_norm_in_place, ulps=ULPS[dtype])
        yield Variant("ours_out_of_place", _add_rms_norm, ulps=ULPS[dtype])
        yield Variant("ours_unfused", _unfused, ulps=ULPS[dtype] + PEER_ULPS)  # it norms the rounded sum


def ladder(op: str, dtype: torch.dtype) -> Iterator[Variant]:
    """Each step that has this operator: our operator, pointed at the step's kernel."""
    run = _rms_norm if op == "rms_norm" else _add_rms_norm_in_place
    for library in step_libraries():
        if op in load(library).launchers:
            step = library.name.partition("_")[0]
            yield Variant("ours", run, step, ULPS[dtype], inside=partial(using, library))


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def peers(op: str, dtype: torch.dtype, vllm: Vllm | None) -> Iterator[Variant]:
    """Others' kernels, but for compiled ones."""
    of_peer = partial(Variant, ulps=ULPS[dtype] + PEER_ULPS, peer=True)
    if vllm is not None:
        yield of_peer("vllm", partial(_vllm, op, vllm))
    if op == "rms_norm":
        yield of_peer("torch_rms_norm", _torch_rms_norm)
    yield of_peer("torch_eager", _eager(op))


def copy_of_the_bytes() -> Variant:
    """The driver's copy of what rms_norm reads and writes, a yardstick: no norm can be much faster."""
    return Variant("copy", _copy, ulps=0.0, truth=lambda of: [of["x"].double()])


def compiled(op: str, dtype: torch.dtype) -> Variant:
    """torch.compile of the eager form, its kernels tuned for this one shape."""
    torch.compiler.reset()  # beyond a number of shapes it would fall back to eager without a word
    run = torch.compile(_eager(op), dynamic=False, mode="max-autotune-no-cudagraphs")
    return Variant("torch_compile", run, ulps=ULPS[dtype] + PEER_ULPS, peer=True)


def _rms_norm(of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.rms_norm(of["x"], of["weight"], EPS)]


def _rms_norm_in_place(of: Operands) -> list[Tensor]:
    torch.ops.qwen_cuda.rms_norm_(of["x"], of["weight"], EPS)
    return [of["x"]]


def _add_rms_norm(of: Operands) -> list[Tensor]:
    return list(torch.ops.qwen_cuda.add_rms_norm(of["x"], of["residual"], of["weight"], EPS))


def _add_rms_norm_in_place(of: Operands) -> list[Tensor]:
    torch.ops.qwen_cuda.add_rms_norm_(of["x"], of["residual"], of["weight"], EPS)
    return [of["x"], of["residual"]]


def _unfused(of: Operands) -> list[Tensor]:
    """An addition, then our norm: two launches, and the sum goes through memory."""
    total = torch.add(of["x"], of["residual"])
    return [torch.ops.qwen_cuda.rms_norm(total, of["weight"], EPS), total]


def _vllm(op: str, vllm: Vllm, of: Operands) -> list[Tensor]:
    if op == "rms_norm":
        vllm.ops.rms_norm(of["out"], of["x"], of["weight"], EPS)
        return [of["out"]]
    vllm.ops.fused_add_rms_norm(of["x"], of["residual"], of["weight"], EPS)
    return [of["x"], of["residual"]]


def _copy(of: Operands) -> list[Tensor]:
    return [of["out"].copy_(of["x"])]


def _torch_rms_norm(of: Operands) -> list[Tensor]:
    return [torch.nn.functional.rms_norm(of["x"], of["weight"].shape, of["weight"], EPS)]


def _eager(op: str) -> Callable[[Operands], list[Tensor]]:
    return _eager_rms_norm if op == "rms_norm" else _eager_add_rms_norm


def _eager_rms_norm(of: Operands) -> list[Tensor]:
    """As the module of transformers, operation by operation."""
    return [functional.rms_norm(of["x"], of["weight"], EPS, "hf")]


def _eager_add_rms_norm(of: Operands) -> list[Tensor]:
    total = of["x"] + of["residual"]
    return [functional.rms_norm(total, of["weight"], EPS, "hf"), total]
