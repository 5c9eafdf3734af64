"""What the operators refuse, each by its sentence, and what they accept although it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch02_rms_norm.rms_norm_checks import EPS
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp

BF16 = torch.bfloat16
BASE = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(1)).to(BF16)


def x() -> Tensor:
    return BASE[0, :, :8].clone()


def residual() -> Tensor:
    return BASE[1, :, :8].clone()


def weight() -> Tensor:
    return BASE[2, 0, :8].clone()


SHARED = BASE[:2].clone()  # a tensor of which two arguments are parts
OVERLAPPING = BASE.clone().as_strided((4, 8), (4, 1))

# What all four operators refuse in x and weight, and how the sentence begins after the operator's name.
X: list[tuple[str, Any, str]] = [
    ("float64", x().double(), "x has dtype Double; it must be float32, float16 or bfloat16."),
    ("integers", x().int(), "x has dtype Int; it must be float32, float16 or bfloat16."),
    ("no dimension", x()[0, 0], "x has no dimension; it must have shape [..., hidden]."),
    ("no elements in a row", x()[:, :0], "x has shape [4, 0]; its last dimension must not be empty."),
    ("transposed", BASE[0, :, :4].t(), "x has strides [1, 16]; the elements of a row must lie side by side"),
    ("every other element", BASE[0, :, ::2], "x has strides [16, 2]; the elements of a row must lie side by side"),
    (
        "uneven rows",
        BASE[:, :2, :8],
        "x has shape [6, 2, 8] and strides [64, 16, 1]; its rows must lie at one distance",
    ),
    ("repeated blocks", BASE[0, :2, :8].expand(3, 2, 8), "x has shape [3, 2, 8] and strides [0, 16, 1]; its rows must"),
    (
        "repeated rows",
        BASE[0, :2, None, :8].expand(2, 3, 8),
        "x has shape [2, 3, 8] and strides [16, 0, 1]; its rows must",
    ),
]
WEIGHT: list[tuple[str, Any, str]] = [
    ("too short", weight()[:7], "weight has shape [7]; it must be [8], the last dimension of x."),
    ("too long", BASE[0, 0], "weight has shape [16]; it must be [8], the last dimension of x."),
    ("two dimensions", weight()[None], "weight has shape [1, 8]; it must be [8], the last dimension of x."),
    ("no dimension", weight()[0], "weight has shape []; it must be [8], the last dimension of x."),
    ("gaps", BASE[0, 0, ::2], "weight has gaps between its elements; pass weight.contiguous()."),
    ("one element repeated", weight()[:1].expand(8), "weight has gaps between its elements; pass weight.contiguous()."),
    ("another dtype", weight().float(), "weight has dtype Float and x BFloat16; they must have one dtype."),
]
RESIDUAL: list[tuple[str, Any, str]] = [
    ("fewer rows", residual()[:3], "residual has shape [3, 8] and x [4, 8]; they must have one shape."),
    ("to be broadcast", residual()[:1], "residual has shape [1, 8] and x [4, 8]; they must have one shape."),
    ("another dtype", residual().half(), "residual has dtype Half and x BFloat16; they must have one dtype."),
    (
        "transposed",
        BASE[0].flatten()[:32].view(8, 4).t(),
        "residual has strides [1, 4]; the elements of a row must lie",
    ),
    ("no elements in a row", residual()[:, :0], "residual has shape [4, 0]; its last dimension must not be empty."),
]
NUMBERS = [("negative", -1e-6, "-1e-06"), ("NaN", float("nan"), "nan"), ("infinite", float("inf"), "inf")]
# Only where the argument is written.
WRITTEN: list[tuple[str, str, tuple[Any, ...], str]] = [
    (
        "rows overlap",
        "rms_norm_",
        (OVERLAPPING, weight()),
        "x has strides [4, 1]; it is written, so its rows must not overlap",
    ),
    (
        "rows are one",
        "rms_norm_",
        (x()[:1].expand(4, 8), weight()),
        "x has strides [0, 1]; it is written, so its rows must",
    ),
    ("weight inside x", "rms_norm_", (SHARED[0, :, :8], SHARED[0, 0, 8:]), "x and weight share memory; x is written"),
    ("weight is a row", "rms_norm_", (SHARED[0, :, :8], SHARED[0, 0, :8]), "x and weight share memory; x is written"),
    (
        "sum overlaps",
        "add_rms_norm_",
        (x(), OVERLAPPING, weight()),
        "residual has strides [4, 1]; it is written, so its",
    ),
    ("x is residual", "add_rms_norm_", (SHARED[0], SHARED[0], BASE[0, 0]), "x and residual share memory; x is written"),
    ("parts of one", "add_rms_norm_", (SHARED[0, :, :8], SHARED[0, :, 8:], weight()), "x and residual share memory"),
    (
        "weight in residual",
        "add_rms_norm_",
        (x(), SHARED[0, :, :8], SHARED[0, 0, 8:]),
        "residual and weight share memory",
    ),
]


def refused(backend: Backend, name: str, arguments: tuple[Any, ...], sentence: str, eps: float = EPS) -> None:
    """The operator raises the sentence after its name, and touches no argument."""
    given = placed(arguments, torch.device(backend.device))
    before = [tensor.clone() for tensor in given]
    with pytest.raises(RuntimeError) as failure:
        getattr(backend.namespace, name)(*given, eps)
    said = str(failure.value)
    assert said.startswith(f"{name.rstrip('_')}: {sentence}"), said
    for tensor, kept in zip(given, before, strict=True):
        assert_same_bits(tensor, kept)


def calls(first: Tensor, weights: Tensor) -> list[tuple[str, tuple[Tensor, ...]]]:
    """All four operators with these arguments; the residual fits x."""
    other = torch.zeros_like(first, memory_format=torch.contiguous_format) if first.numel() else first
    return [(name, (first, weights)) for name in ("rms_norm", "rms_norm_")] + [
        (name, (first, other, weights)) for name in ("add_rms_norm", "add_rms_norm_")
    ]


@pytest.mark.parametrize(("value", "sentence"), [case[1:] for case in X], ids=[case[0] for case in X])
def test_x_is_refused(registered_backend: Backend, value: Tensor, sentence: str) -> None:
    for name, arguments in calls(value, weight()):
        refused(registered_backend, name, arguments, sentence)


@pytest.mark.parametrize(("value", "sentence"), [case[1:] for case in WEIGHT], ids=[case[0] for case in WEIGHT])
def test_weight_is_refused(registered_backend: Backend, value: Tensor, sentence: str) -> None:
    for name, arguments in calls(x(), value):
        refused(registered_backend, name, arguments, sentence)


@pytest.mark.parametrize(("value", "sentence"), [case[1:] for case in RESIDUAL], ids=[case[0] for case in RESIDUAL])
def test_residual_is_refused(registered_backend: Backend, value: Tensor, sentence: str) -> None:
    for name in ("add_rms_norm", "add_rms_norm_"):
        refused(registered_backend, name, (x(), value, weight()), sentence)


@pytest.mark.parametrize(("eps", "text"), [case[1:] for case in NUMBERS], ids=[case[0] for case in NUMBERS])
def test_eps_is_refused(registered_backend: Backend, eps: float, text: str) -> None:
    for name, arguments in calls(x(), weight()):
        refused(registered_backend, name, arguments, f"eps is {text}; it must be a finite number, 0 or more.", eps)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"), [case[1:] for case in WRITTEN], ids=[case[0] for case in WRITTEN]
)
def test_a_written_argument_is_refused(
    registered_backend: Backend, name: str, arguments: tuple[Tensor, ...], sentence: str
) -> None:
    refused(registered_backend, name, arguments, sentence)


def test_more_rows_than_a_grid_has_blocks_are_refused(registered_backend: Backend) -> None:
    """Before memory for the result is asked for."""
    huge, one = (torch.ones(1, device=registered_backend.device) for _ in range(2))
    huge = huge.expand(2**31, 1)
    for name, others in (("rms_norm", ()), ("rms_norm_", ()), ("add_rms_norm", (huge,)), ("add_rms_norm_", (huge,))):
        with pytest.raises(
            RuntimeError, match=r"x has shape \[2147483648, 1\]; at most 2147483647 rows of at most as many"
        ):
            getattr(registered_backend.namespace, name)(huge, *others, one, EPS)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_in_place_forms_refuse_gradients(registered_backend: Backend, which: int) -> None:
    for name, arguments in calls(x(), weight()):
        if name.endswith("_") and which < len(arguments):
            given = placed(arguments, torch.device(registered_backend.device))
            given[which].requires_grad_()
            with pytest.raises(
                RuntimeError, match=f"^{name}: an argument requires a gradient, .* call {name[:-1]}, or"
            ):
                getattr(registered_backend.namespace, name)(*given, EPS)
            with torch.no_grad():
                getattr(registered_backend.namespace, name)(*given, EPS)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_two_devices_are_refused() -> None:
    import qwen_cuda.operators as ops

    here, there = x().cuda(), weight()
    with pytest.raises(
        RuntimeError, match=r"^rms_norm: weight is on cpu and x on cuda:0; they must be on one device\."
    ):
        ops.rms_norm(here, there, EPS)
    with pytest.raises(RuntimeError, match=r"^add_rms_norm: residual is on cpu and x on cuda:0; they must be"):
        ops.add_rms_norm(here, residual(), there.cuda(), EPS)
    with pytest.raises(RuntimeError, match=r"^rms_norm: x is on cuda:0; the simulator runs on the CPU"):
        torch.ops.qwen_sim.rms_norm(here, there.cuda(), EPS)


@pytest.mark.parametrize(
    "value",
    [
        BASE[0, :1, :8].expand(5, 8),  # one row, read five times
        BASE[0, :1, None, :8].expand(1, 3, 8),
        BASE[0, 0, :8].expand(2, 3, 8),
        BASE[:, :1, :8],  # a dimension of size 1 has no distance
        BASE[0, :, 3:4],  # rows of one element
        BASE[0, :1, :8].as_strided((1, 8), (1, 1)),  # the stride of a single row does not matter
        BASE[:, :, :8].as_strided((6, 2, 8), (64, 32, 1)),
        OVERLAPPING,  # only read
    ],
    ids=[
        "repeated row",
        "repeated in the middle",
        "repeated twice",
        "size 1",
        "one element",
        "one row",
        "even",
        "overlapping",
    ],
)
def test_odd_layouts_are_right(registered_backend: Backend, value: Tensor) -> None:
    weights = BASE[2, 0, : value.shape[-1]].clone()
    there = registered_backend.device
    for name in ("rms_norm", "add_rms_norm"):
        values = (value,) if name == "rms_norm" else (value, value)
        out = registered_backend.op(name)(*(tensor.to(there) for tensor in (*values, weights)), EPS)
        truth = oracle(name, *values, weights, EPS)
        out, truth = (out, truth) if name == "rms_norm" else (out[0], truth[0])
        assert out.is_contiguous()
        assert_within_ulp(out, truth)
