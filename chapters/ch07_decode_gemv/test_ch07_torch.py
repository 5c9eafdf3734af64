"""decode_linear as PyTorch sees it: schema, tracing, compilation, export, gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch07_decode_gemv.decode_linear_checks import AROUND
from chapters.ch07_decode_gemv.linear_cases import BF16, EPS, FP32, LinearCase, linear_case
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import assert_same_bits

AROUNDS = pytest.mark.parametrize("around", AROUND, ids=["alone", "norm", "residual", "norm+residual", "norm+silu"])


def arguments(some: LinearCase, device: torch.device) -> tuple[list[Tensor], dict[str, Any]]:
    """x and weight, and the options that are not the default."""
    given = {field.name: getattr(some, field.name) for field in dataclasses.fields(some)}
    given = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in given.items() if one is not None}
    return [given.pop("x"), given.pop("weight")], given


@AROUNDS
@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
def test_opcheck_of_decode_linear(registered_backend: Backend, gradient: bool, around: dict[str, Any]) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    wide: dict[str, Any] = {"x_dtype": FP32, "out_dtype": FP32}
    for more in ({}, wide):
        given, options = arguments(linear_case(3, 6, 24, **around, **more), registered_backend.device)
        given = [one.requires_grad_(gradient) for one in given]
        torch.library.opcheck(registered_backend.namespace.decode_linear.default, tuple(given), options)


@AROUNDS
def test_fake_of_decode_linear_has_shape_dtype_and_strides_of_the_kernel(
    registered_backend: Backend, around: dict[str, Any]
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for out_dtype in (None, FP32):
        given, options = arguments(linear_case(3, 6, 24, out_dtype=out_dtype, **around), registered_backend.device)
        with FakeTensorMode() as mode:
            fakes = {name: mode.from_tensor(o) if isinstance(o, Tensor) else o for name, o in options.items()}
            fake = registered_backend.namespace.decode_linear(*map(mode.from_tensor, given), **fakes)
        real = registered_backend.namespace.decode_linear(*given, **options)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


def layer(function: Any) -> Callable[..., Tensor]:
    """The four linear layers of a decoder layer, without what stands between QKV and O; the residual in float32."""

    def run(x: Tensor, norm: Tensor, qkv: Tensor, o: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        q = function.decode_linear(x, qkv, norm_weight=norm, eps=EPS, prefetch=True)[:, : o.shape[1]]
        x = function.decode_linear(q, o, residual=x, out_dtype=FP32, prefetch=True)
        hidden = function.decode_linear(x, gate_up, norm_weight=norm, eps=EPS, silu_mul=True, prefetch=True)
        out: Tensor = function.decode_linear(hidden, down, residual=x, out_dtype=FP32, prefetch=True)
        return out

    return run


def weights(device: torch.device) -> list[Tensor]:
    """norm `[24]`, qkv `[64, 24]`, o `[24, 32]`, gate_up `[80, 24]`, down `[24, 40]`, bfloat16."""
    shapes = ((64, 24), (24, 32), (80, 24), (24, 40))
    matrices = [rows_of_numbers(shape, BF16, seed=3) / 8 for shape in shapes]
    return [one.to(device) for one in (norm_weight(24, BF16, seed=4), *matrices)]


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_layer_has_the_bits_of_the_eager_one(registered_backend: Backend, compiler: str) -> None:
    run = layer(registered_backend.namespace)
    compiled = torch.compile(run, fullgraph=True, backend=compiler, dynamic=True)
    for rows in (3, 5):
        given = (
            rows_of_numbers((rows, 24), FP32, seed=5).to(registered_backend.device),
            *weights(registered_backend.device),
        )
        assert_same_bits(compiled(*given), run(*given))


def test_an_exported_layer_keeps_decode_linear_whole(registered_backend: Backend) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return layer(registered_backend.namespace)(*given)

    given = (rows_of_numbers((4, 24), FP32, seed=5).to(registered_backend.device), *weights(registered_backend.device))
    program = torch.export.export(Layer(), given)
    called = [str(node.target) for node in program.graph.nodes if "decode_linear" in str(node.target)]
    assert called == [f"{registered_backend.namespace.name}.decode_linear.default"] * 4
    assert_same_bits(program.module()(*given), Layer()(*given))


@AROUNDS
@pytest.mark.parametrize("out_dtype", [None, FP32], ids=["bf16", "float32"])
def test_gradients_of_decode_linear_are_those_of_the_reference(
    registered_backend: Backend, out_dtype: torch.dtype | None, around: dict[str, Any]
) -> None:
    """Bit for bit: where a gradient is wanted, the reference runs."""
    given, options = arguments(linear_case(3, 6, 24, out_dtype=out_dtype, **around), registered_backend.device)

    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        leaves = [one.detach().clone().requires_grad_() for one in given]
        more = {n: o.detach().clone().requires_grad_() if isinstance(o, Tensor) else o for n, o in options.items()}
        out = function(*leaves, **more)
        seed = rows_of_numbers(out.shape, out.dtype, seed=7).to(out.device)
        return torch.autograd.grad((out * seed).sum(), [*leaves, *(o for o in more.values() if isinstance(o, Tensor))])

    ours = gradients(registered_backend.namespace.decode_linear)
    for one, other in zip(ours, gradients(REFERENCES["decode_linear"]), strict=True):
        assert bool(one.isfinite().all())
        assert_same_bits(one, other)


def test_a_wanted_gradient_of_an_option_alone_is_enough(registered_backend: Backend) -> None:
    given, options = arguments(linear_case(1, 6, 24, norm=True), registered_backend.device)
    options["norm_weight"].requires_grad_()
    assert registered_backend.namespace.decode_linear(*given, **options).requires_grad


@AROUNDS
def test_without_gradients_the_kernel_of_decode_linear_runs(
    registered_backend: Backend, around: dict[str, Any]
) -> None:
    given, options = arguments(linear_case(3, 6, 24, **around), registered_backend.device)
    expected = registered_backend.op("decode_linear")(*given, **options)
    given[1].requires_grad_()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = registered_backend.namespace.decode_linear(*given, **options)
        assert not out.requires_grad
        assert_same_bits(out, expected)


@AROUNDS
def test_columns_may_be_shared_out_among_threads(around: dict[str, Any]) -> None:
    """The CPU kernel gives its columns to PyTorch's threads: with one, two or three the same bits."""
    given, options = arguments(linear_case(3, 1002, 800, **around), torch.device("cpu"))
    expected = ops.decode_linear(*given, **options)
    threads = torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            out = ops.decode_linear(*given, **options)
        finally:
            torch.set_num_threads(threads)
        assert_same_bits(out, expected)


@AROUNDS
def test_the_public_function_of_decode_linear_passes_every_option_on(around: dict[str, Any]) -> None:
    """`qwen_cuda.operators` gives the bits of `torch.ops.qwen_cuda`, and each option reaches it."""
    some = linear_case(2, 6, 24, out_dtype=FP32, **around).with_(eps=0.5)
    given, options = arguments(some, torch.device("cpu"))
    out = ops.decode_linear(*given, **options, prefetch=True)
    assert_same_bits(out, torch.ops.qwen_cuda.decode_linear(*given, **options, prefetch=True))
    assert (out.dtype, out.shape) == (FP32, (2, some.columns))
    changes: dict[str, Any] = {"norm_weight": None, "eps": EPS} if some.norm_weight is not None else {}
    changes |= {"residual": None} if some.residual is not None else {}
    for name, value in changes.items():
        assert not torch.equal(ops.decode_linear(*given, **options | {name: value}), out), name
