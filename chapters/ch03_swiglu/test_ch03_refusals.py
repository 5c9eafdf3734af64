"""What silu_mul refuses, each by its sentence, and what it accepts although it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp

BASE = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)

GATE_UP: list[tuple[str, Any, str]] = [
    ("float64", BASE[0].double(), "gate_up has dtype Double; it must be float32, float16 or bfloat16."),
    ("integers", BASE[0].int(), "gate_up has dtype Int; it must be float32, float16 or bfloat16."),
    ("no dimension", BASE[0, 0, 0], "gate_up has no dimension; it must have shape"),
    ("no elements in a row", BASE[0, :, :0], "gate_up has shape [4, 0]; its last dimension must not be empty."),
    ("odd", BASE[0, :, :7], "gate_up has shape [4, 7]; its last dimension must be even: gate in its first half, up"),
    ("one element", BASE[0, :, :1], "gate_up has shape [4, 1]; its last dimension must be even"),
    ("transposed", BASE[0].t(), "gate_up has strides [1, 16]; the elements of a row must lie side by side"),
    (
        "every other element",
        BASE[0, :, ::2],
        "gate_up has strides [16, 2]; the elements of a row must lie side by side",
    ),
    (
        "uneven rows",
        BASE[:, :2, :8],
        "gate_up has shape [6, 2, 8] and strides [64, 16, 1]; its rows must lie at one distance",
    ),
    (
        "repeated blocks",
        BASE[0, :2, :8].expand(3, 2, 8),
        "gate_up has shape [3, 2, 8] and strides [0, 16, 1]; its rows",
    ),
]


@pytest.mark.parametrize(("value", "sentence"), [case[1:] for case in GATE_UP], ids=[case[0] for case in GATE_UP])
def test_gate_up_is_refused(registered_backend: Backend, value: Tensor, sentence: str) -> None:
    """With either rounding, and gate_up stays as it is."""
    there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=registered_backend.device)
    if 0 not in value.stride():
        there.copy_(value)
    before = there.clone()
    for hf_rounding in (False, True):
        with pytest.raises(RuntimeError) as failure:
            registered_backend.namespace.silu_mul(there, hf_rounding=hf_rounding)
        assert str(failure.value).startswith(f"silu_mul: {sentence}"), failure.value
    assert_same_bits(there, before)


def test_hf_rounding_is_no_positional_argument(registered_backend: Backend) -> None:
    with pytest.raises(RuntimeError, match=r"silu_mul\(\) takes 1 positional argument"):
        registered_backend.namespace.silu_mul(BASE[0], True)


def test_more_rows_of_gate_up_than_a_grid_has_blocks_are_refused(registered_backend: Backend) -> None:
    """Before memory for the result is asked for."""
    huge = torch.ones(2, device=registered_backend.device).expand(2**31, 2)
    with pytest.raises(RuntimeError, match=r"gate_up has shape \[2147483648, 2\]; at most 2147483647 rows"):
        registered_backend.namespace.silu_mul(huge)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_the_simulator_refuses_gate_up_on_a_gpu() -> None:
    import qwen_cuda.operators  # noqa: F401  registers torch.ops.qwen_sim

    with pytest.raises(RuntimeError, match=r"^silu_mul: gate_up is on cuda:0; the simulator runs on the CPU"):
        torch.ops.qwen_sim.silu_mul(BASE[0].cuda())


@pytest.mark.parametrize(
    "value",
    [
        BASE[0, :1].expand(5, 16),
        BASE[0, 0].expand(2, 3, 16),
        BASE[:, :1, :8],
        BASE[0, :, 3:5],
        BASE[0, :1, :8].as_strided((1, 8), (1, 1)),
        BASE.clone().as_strided((4, 8), (4, 1)),
        BASE[0, 0],
    ],
    ids=["repeated row", "repeated twice", "size 1", "rows of two", "one row", "overlapping", "no rows"],
)
def test_odd_layouts_of_gate_up_are_right(registered_backend: Backend, value: Tensor) -> None:
    """gate_up is only read: its rows may even be one."""
    out = registered_backend.op("silu_mul")(value.to(registered_backend.device))
    assert out.is_contiguous()
    assert_within_ulp(out, oracle("silu_mul", value))
