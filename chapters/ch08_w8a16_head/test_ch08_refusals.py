"""What the operators of the head refuse, each by its sentence, and what they accept although it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.w8_checks import assert_near, head_case, truth_and_bound
from qwen_cuda.operators import argmax_workspace
from qwen_cuda.testing.backends import Backend

OPERATORS = ("w8a16_linear", "w8a16_argmax", "head_argmax")
W8 = ("w8a16_linear", "w8a16_argmax")
ARGMAX = ("w8a16_argmax", "head_argmax")
X = torch.ones(2, 64)
GAIN = torch.ones(64)


def call(backend: Backend, name: str, **changed: Any) -> Tensor:
    """The operator on 5 rows of a weight, `changed` in place of its own arguments."""
    given: dict[str, Any] = {"x": X, "norm_weight": None, "eps": 1e-6, "prefetch": False}
    if name in W8:
        given |= {"qweight": torch.ones(5, 64, dtype=torch.int8), "scales": torch.ones(5, 2)}
    else:
        given |= {"weight": torch.ones(5, 64).bfloat16()}
    if name in ARGMAX:
        given["workspace"] = argmax_workspace("cpu")
    given |= changed
    placed = {
        key: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=backend.device).copy_(value)
        if isinstance(value, Tensor) and backend.device.type != "cpu"
        else value
        for key, value in given.items()
    }
    result: Tensor = getattr(backend.namespace, name)(**placed)
    return result


CASES: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (OPERATORS, {"x": X.double()}, "x has dtype Double; it must be float32, float16 or bfloat16."),
    (OPERATORS, {"x": X[0]}, "x has shape [64]; it must be [batch, k]."),
    (OPERATORS, {"x": X[None]}, "x has shape [1, 2, 64]; it must be [batch, k]."),
    (OPERATORS, {"x": torch.ones(9, 64)}, "x has shape [9, 64]; at most 8 rows are supported."),
    (OPERATORS, {"x": torch.ones(1, 12320)}, "x has shape [1, 12320]; at most 12288 columns are supported."),
    (OPERATORS, {"x": torch.ones(64, 2).t()}, "x has strides [1, 2]; the elements of a row must lie side by side"),
    (OPERATORS, {"x": X[:, :0]}, "x has shape [2, 0]; its last dimension must not be empty."),
    (OPERATORS, {"eps": -1.0}, "eps is -1; it must be a finite number, 0 or more."),
    (OPERATORS, {"eps": float("nan")}, "eps is nan; it must be a finite number, 0 or more."),
    (OPERATORS, {"norm_weight": GAIN[:5]}, "norm_weight has shape [5]; it must be [64], the last dimension of x."),
    (OPERATORS, {"norm_weight": GAIN.double()}, "norm_weight has dtype Double; it must be float32, float16 or bfl"),
    (OPERATORS, {"norm_weight": torch.ones(128)[::2]}, "norm_weight has gaps or another layout; pass norm_weight.con"),
    (W8, {"qweight": torch.ones(5, 64)}, "qweight has dtype Float; it must be int8."),
    (W8, {"qweight": torch.ones(5, 64).byte()}, "qweight has dtype Byte; it must be int8."),
    (W8, {"qweight": torch.ones(5, 32).char()}, "qweight has shape [5, 32]; it must be [n, 64], n from 1 to 214748"),
    (W8, {"qweight": torch.ones(0, 64).char()}, "qweight has shape [0, 64]; it must be [n, 64], n from 1"),
    (W8, {"qweight": torch.ones(64, 5).char().t()}, "qweight has gaps or another layout; pass qweight.contiguous()."),
    (W8, {"qweight": torch.ones(5, 80).char()[:, :64]}, "qweight has gaps or another layout; pass qweight.contiguous"),
    (W8, {"scales": torch.ones(5, 2).half()}, "scales has dtype Half; it must be float32."),
    (W8, {"scales": torch.ones(4, 2)}, "scales has shape [4, 2]; it must be [5, groups], where groups divides 64."),
    (W8, {"scales": torch.ones(5, 3)}, "scales has shape [5, 3]; it must be [5, groups], where groups divides 64."),
    (W8, {"scales": torch.ones(5)}, "scales has shape [5]; it must be [5, groups], where groups divides 64."),
    (W8, {"scales": torch.ones(5, 4)}, "scales has shape [5, 4], a scale for each 16 of 64 columns; it must be one"),
    (W8, {"scales": torch.ones(2, 5).t()}, "scales has gaps or another layout; pass scales.contiguous()."),
    (("head_argmax",), {"weight": torch.ones(5, 64)}, "weight has dtype Float; it must be bfloat16 or float16."),
    (("head_argmax",), {"weight": torch.ones(5, 65).half()}, "weight has shape [5, 65]; it must be [n, 64], n from"),
    (("head_argmax",), {"weight": torch.ones(64, 5).half().t()}, "weight has gaps or another layout; pass weight.con"),
    (ARGMAX, {"workspace": torch.zeros(8).long()}, "workspace has dtype Long and shape [8]; it must be int64 and [9]"),
    (ARGMAX, {"workspace": torch.zeros(9)}, "workspace has dtype Float and shape [9]; it must be int64 and [9]"),
    (ARGMAX, {"workspace": torch.zeros(18).long()[::2]}, "workspace has gaps or another layout; pass workspace.conti"),
    (("w8a16_linear",), {"out_dtype": torch.bfloat16}, "out_dtype is BFloat16; it must be float32 or that of x, Float"),
    (("w8a16_linear",), {"out_dtype": torch.int8}, "out_dtype is Char; it must be float32 or that of x, Float."),
]


@pytest.mark.parametrize(("names", "changed", "sentence"), CASES, ids=[case[2][:60] for case in CASES])
def test_arguments_of_a_head_are_refused(
    registered_backend: Backend, names: tuple[str, ...], changed: dict[str, Any], sentence: str
) -> None:
    for name in names:
        with pytest.raises(RuntimeError) as failure:
            call(registered_backend, name, **changed)
        assert str(failure.value).startswith(f"{name}: {sentence}"), failure.value


def test_a_workspace_that_is_part_of_x_is_refused(registered_backend: Backend) -> None:
    memory = torch.zeros(64, dtype=torch.int64, device=registered_backend.device)
    with pytest.raises(RuntimeError, match="workspace and x share memory; workspace is written"):
        call(registered_backend, "head_argmax", x=memory.view(torch.float32)[:64][None], workspace=memory[:9])


@pytest.mark.parametrize("name", ARGMAX)
def test_an_argmax_has_no_gradient_and_says_so(registered_backend: Backend, name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{name}: an argument requires a gradient.*torch.no_grad"):
        call(registered_backend, name, x=X.to(registered_backend.device, copy=True).requires_grad_())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_the_simulator_refuses_a_head_on_a_gpu() -> None:
    import qwen_cuda.operators  # noqa: F401  registers torch.ops.qwen_sim

    some = head_case(1, 4, 32)
    with pytest.raises(RuntimeError, match=r"^w8a16_linear: x is on cuda:0; the simulator runs on the CPU"):
        torch.ops.qwen_sim.w8a16_linear(some.x.cuda(), some.qweight.cuda(), some.scales.cuda())


def test_odd_layouts_of_x_are_right(registered_backend: Backend) -> None:
    """One row repeated, overlapping rows, a slice of columns, a row of stride 0."""
    base = head_case(4, 5, 96, 32, dtype=torch.float32)
    there = base.x.to(registered_backend.device)
    for x in (there[:1].expand(4, 96), there.as_strided((4, 96), (5, 1)), there[:, :64], there[1:2, 32:]):
        k = x.shape[1]
        qweight, scales = base.qweight[:, :k].contiguous(), base.scales[:, : k // 32].contiguous()
        some = type(base)(x.cpu(), qweight, scales)
        placed = (one.to(registered_backend.device) for one in (qweight, scales))
        assert_near(registered_backend.op("w8a16_linear")(x, *placed), *truth_and_bound(some))
