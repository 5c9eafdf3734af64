"""What decode_linear refuses, each by its sentence, and what it accepts although it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch07_decode_gemv.linear_cases import EPS, LinearCase, linear_case, multiply
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

B, N, K = 3, 6, 16
SOME = linear_case(B, N, K, norm=True, residual=True)
X, WEIGHT, GAIN, RESIDUAL = SOME.x, SOME.weight, SOME.norm_weight, SOME.residual
assert GAIN is not None
assert RESIDUAL is not None

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # x
    ("x of one dimension", {"x": X[0]}, "x has shape [16]; it must be [rows, 16], with the last dimension of weight."),
    ("x of another width", {"x": X[:, :15]}, "x has shape [3, 15]; it must be [rows, 16]"),
    ("no rows", {"x": X[:0]}, "x has shape [0, 16]; it must have 1 to 8 rows"),
    (
        "nine rows",
        {"x": X[:1].expand(9, K)},
        "x has shape [9, 16]; it must have 1 to 8 rows: more of them are the work",
    ),
    (
        "x transposed",
        {"x": torch.ones(K, B).bfloat16().t()},
        "x has strides [1, 3]; the elements of a row must lie side",
    ),
    ("x in the other format", {"x": X.half()}, "x has dtype Half; it must be that of weight, BFloat16, or float32."),
    ("x in float64", {"x": X.double()}, "x has dtype Double; it must be that of weight, BFloat16, or float32."),
    # weight
    ("weight in float32", {"weight": WEIGHT.float()}, "weight has dtype Float; it must be bfloat16 or float16."),
    (
        "weight of one dimension",
        {"weight": WEIGHT[0]},
        "weight has shape [16]; it must be a dense tensor [n, k], and not",
    ),
    (
        "weight without rows",
        {"weight": WEIGHT[:0]},
        "weight has shape [0, 16]; it must be a dense tensor [n, k], and not",
    ),
    (
        "weight transposed",
        {"weight": torch.ones(K, N).bfloat16().t()},
        "weight has strides [1, 6]; its rows must lie one behind the other: pass weight.contiguous().",
    ),
    ("weight with gaps", {"weight": WEIGHT[::2]}, "weight has strides [32, 1]; its rows must lie one behind the other"),
    (
        "odd gate and up",
        {"weight": WEIGHT[:5], "residual": None, "silu_mul": True},
        "weight has shape [5, 16]; with silu_mul its rows must be even in number",
    ),
    # norm_weight and eps
    (
        "gain of another width",
        {"norm_weight": GAIN[:8]},
        "norm_weight has shape [8]; it must be [16], the last dimension",
    ),
    (
        "gain in float32",
        {"norm_weight": GAIN.float()},
        "norm_weight has dtype Float and weight BFloat16; they must have",
    ),
    (
        "gain with gaps",
        {"norm_weight": torch.ones(2 * K).bfloat16()[::2]},
        "norm_weight has gaps between its elements; pass norm_weight.contiguous().",
    ),
    ("negative eps", {"eps": -1e-6}, "eps is -1e-06; it must be a finite number, 0 or more."),
    ("eps is NaN", {"eps": float("nan")}, "eps is nan; it must be a finite number, 0 or more."),
    # residual and the result
    (
        "residual of another width",
        {"residual": X},
        "residual has shape [3, 16]; it must be [3, 6], the shape of the result.",
    ),
    (
        "residual of fewer rows",
        {"residual": RESIDUAL[:2]},
        "residual has shape [2, 6]; it must be [3, 6], the shape of",
    ),
    (
        "wide residual",
        {"residual": RESIDUAL.float()},
        "residual has dtype Float; it must be that of the result, BFloat16.",
    ),
    (
        "narrow residual",
        {"out_dtype": torch.float32},
        "residual has dtype BFloat16; it must be that of the result, Float.",
    ),
    (
        "residual transposed",
        {"residual": torch.ones(N, B).bfloat16().t()},
        "residual has strides [1, 3]; the elements of",
    ),
    ("residual and SiLU", {"silu_mul": True}, "silu_mul and residual are both given; SiLU's product has no residual"),
    ("float64 out", {"out_dtype": torch.float64}, "out_dtype is Double; it must be the dtype of weight, BFloat16, or"),
    (
        "the other format out",
        {"out_dtype": torch.float16},
        "out_dtype is Half; it must be the dtype of weight, BFloat16",
    ),
]


def there(value: Any, backend: Backend) -> Any:
    """The same view on the backend's device."""
    if not isinstance(value, Tensor):
        return value
    if 0 in value.stride():
        return value[:1].to(backend.device).expand(value.shape)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=backend.device).copy_(value)


@pytest.mark.parametrize(("changes", "sentence"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_an_argument_of_decode_linear_is_refused(
    registered_backend: Backend, changes: dict[str, Any], sentence: str
) -> None:
    """And stays as it is."""
    given = {"x": X, "weight": WEIGHT, "norm_weight": GAIN, "residual": RESIDUAL, "eps": EPS} | changes
    given = {name: there(value, registered_backend) for name, value in given.items()}
    before = {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
    with pytest.raises(RuntimeError) as failure:
        registered_backend.namespace.decode_linear(given.pop("x"), given.pop("weight"), **given)
    assert str(failure.value).startswith(f"decode_linear: {sentence}"), failure.value
    for name, value in given.items():
        if isinstance(value, Tensor):
            assert_same_bits(value, before[name])


def test_options_of_decode_linear_are_no_positional_arguments(registered_backend: Backend) -> None:
    with pytest.raises(RuntimeError, match=r"decode_linear\(\) takes 2 positional argument"):
        registered_backend.namespace.decode_linear(X, WEIGHT, GAIN)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_operands_of_decode_linear_must_be_on_one_device() -> None:
    import qwen_cuda.operators  # noqa: F401  registers the operators

    ours = torch.ops.qwen_cuda.decode_linear
    with pytest.raises(RuntimeError, match=r"^decode_linear: x is on cpu and weight on cuda:0"):
        ours(X, WEIGHT.cuda())
    with pytest.raises(RuntimeError, match=r"^decode_linear: norm_weight is on cpu and weight on cuda:0"):
        ours(X.cuda(), WEIGHT.cuda(), norm_weight=GAIN)
    with pytest.raises(RuntimeError, match=r"^decode_linear: residual is on cpu and weight on cuda:0"):
        ours(X.cuda(), WEIGHT.cuda(), residual=RESIDUAL)
    with pytest.raises(RuntimeError, match=r"^decode_linear: x is on cuda:0; the simulator runs on the CPU"):
        torch.ops.qwen_sim.decode_linear(X.cuda(), WEIGHT.cuda())


@pytest.mark.parametrize(
    "changes",
    [
        {"x": X[:1].expand(8, K), "residual": RESIDUAL[:1].expand(8, N)},
        {"x": torch.cat((X, X), dim=1)[:, 3 : 3 + K]},
        {"x": X.repeat(4, 1)[::4]},
        {"x": X[:1].as_strided((1, K), (1, 1)), "residual": RESIDUAL[:1]},
        {"weight": WEIGHT[:1], "residual": RESIDUAL[:, :1]},
        {"weight": torch.cat((WEIGHT, WEIGHT))[3 : 3 + N]},
        {"residual": torch.cat((RESIDUAL, RESIDUAL), dim=1)[:, 1 : 1 + N]},
    ],
    ids=["one row 8 times", "columns of a matrix", "every other row", "a row of no stride", "one row of W", "rows of a "
         "matrix", "columns of a residual"],
)  # fmt: skip
def test_odd_layouts_of_decode_linear_are_right(registered_backend: Backend, changes: dict[str, Tensor]) -> None:
    some: LinearCase = SOME.with_(**changes)
    expected = multiply(registered_backend, some)
    given = {name: there(getattr(some, name), registered_backend) for name in ("norm_weight", "residual")}
    x, weight = there(some.x, registered_backend), there(some.weight, registered_backend)
    assert_same_bits(registered_backend.op("decode_linear")(x, weight, **given), expected)
