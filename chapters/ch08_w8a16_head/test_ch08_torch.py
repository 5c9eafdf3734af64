"""The head's operators as PyTorch sees them: schemas, tracing, compilation, export, gradients, threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch08_w8a16_head.w8_checks import EPS, HeadCase, head_case
from qwen_cuda.operators import argmax_workspace
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import assert_same_bits

NAMES = ("w8a16_linear", "w8a16_argmax", "head_argmax")
CASE = head_case(3, 10, 64, 32, gain=torch.bfloat16)


def arguments(name: str, device: torch.device, some: HeadCase = CASE, gain: bool = True) -> tuple[list[Any], Any]:
    """What an operator takes by position and by name."""
    weight = (
        [rows_of_numbers((10, 64), torch.bfloat16, seed=3)] if name == "head_argmax" else [some.qweight, some.scales]
    )
    options: dict[str, Any] = {"norm_weight": some.gain, "eps": EPS} if gain else {}
    if name != "w8a16_linear":
        options["workspace"] = argmax_workspace("cpu")
    placed = [one.to(device, copy=True) for one in (some.x, *weight)]  # a test may ask for gradients
    return placed, {key: one.to(device, copy=True) if isinstance(one, Tensor) else one for key, one in options.items()}


@pytest.mark.parametrize("gain", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("name", NAMES)
def test_opcheck_of_the_head(registered_backend: Backend, name: str, gain: bool) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    given, options = arguments(name, registered_backend.device, gain=gain)
    operator = getattr(registered_backend.namespace, name).default
    torch.library.opcheck(operator, tuple(given), options)
    torch.library.opcheck(operator, (given[0][:0], *given[1:]), options)


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_opcheck_of_the_heads_gradient(registered_backend: Backend, out_dtype: torch.dtype | None) -> None:
    given, _ = arguments("w8a16_linear", registered_backend.device)
    given[0].requires_grad_()
    operator = registered_backend.namespace.w8a16_linear.default
    torch.library.opcheck(operator, tuple(given), {"out_dtype": out_dtype})


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_fake_of_the_head_has_shape_dtype_and_strides_of_the_kernel(
    registered_backend: Backend, out_dtype: torch.dtype | None
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    given, _ = arguments("w8a16_linear", registered_backend.device)
    with FakeTensorMode() as mode:
        fake = registered_backend.namespace.w8a16_linear(*map(mode.from_tensor, given), out_dtype=out_dtype)
    real = registered_backend.namespace.w8a16_linear(*given, out_dtype=out_dtype)
    assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (real.shape, real.dtype, real.device, real.stride())


def greedy(function: Any) -> Any:
    """Logits, and the id that greedy decoding takes."""

    def run(x: Tensor, qweight: Tensor, scales: Tensor, gain: Tensor, workspace: Tensor) -> tuple[Tensor, Tensor]:
        logits = function.w8a16_linear(x, qweight, scales, norm_weight=gain, eps=EPS, out_dtype=torch.float32)
        ids = function.w8a16_argmax(x, qweight, scales, norm_weight=gain, eps=EPS, workspace=workspace)
        return logits / 0.7, ids + 1

    return run


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_head_has_the_bits_of_the_eager_one(registered_backend: Backend, compiler: str) -> None:
    run = greedy(registered_backend.namespace)
    compiled = torch.compile(run, fullgraph=True, backend=compiler, dynamic=True)
    for batch in (2, 3):
        some = head_case(batch, 10, 64, 32, gain=torch.bfloat16, seed=batch)
        (x, qweight, scales), options = arguments("w8a16_argmax", registered_backend.device, some)
        given = (x, qweight, scales, options["norm_weight"], options["workspace"])
        for one, other in zip(compiled(*given), run(*given), strict=True):
            assert_same_bits(one, other)
        assert not options["workspace"].any()


def test_an_exported_head_keeps_its_operators_whole(registered_backend: Backend) -> None:
    class Head(torch.nn.Module):
        def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
            result: tuple[Tensor, Tensor] = greedy(registered_backend.namespace)(*given)
            return result

    placed, options = arguments("w8a16_argmax", registered_backend.device)
    given = (*placed, options["norm_weight"], options["workspace"])
    program = torch.export.export(Head(), given)
    called = [str(node.target) for node in program.graph.nodes if "w8a16" in str(node.target)]
    space = registered_backend.namespace.name
    assert called == [f"{space}.w8a16_linear.default", f"{space}.w8a16_argmax.default"]
    for one, other in zip(program.module()(*given), Head()(*given), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("gain", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_gradients_of_the_head_are_those_of_the_reference(
    registered_backend: Backend, gain: bool, out_dtype: torch.dtype | None
) -> None:
    """Bit for bit, in x, the scales and the norm's weight: the reference runs where a gradient is wanted."""

    def gradients(function: Any) -> tuple[Tensor, ...]:
        (x, qweight, scales), options = arguments("w8a16_linear", registered_backend.device, gain=gain)
        leaves = [one.requires_grad_() for one in (x, scales, *([options["norm_weight"]] if gain else []))]
        out = function(x, qweight, scales, out_dtype=out_dtype, **options)
        seed = rows_of_numbers(out.shape, out.dtype, seed=7).to(out.device)
        return torch.autograd.grad((out * seed).sum(), leaves)

    ours = gradients(registered_backend.namespace.w8a16_linear)
    for one, other in zip(ours, gradients(REFERENCES["w8a16_linear"]), strict=True):
        assert bool(one.isfinite().all())
        assert bool(one.any())
        assert_same_bits(one, other)


def test_without_gradients_the_kernel_of_the_head_runs(registered_backend: Backend) -> None:
    given, options = arguments("w8a16_linear", registered_backend.device)
    expected = registered_backend.op("w8a16_linear")(*given, **options)
    given[0].requires_grad_()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = registered_backend.namespace.w8a16_linear(*given, **options)
        assert not out.requires_grad
        assert_same_bits(out, expected)


def test_rows_of_a_head_may_be_shared_out_among_threads() -> None:
    """The CPU kernel gives rows of the weight to PyTorch's threads: with one, two or three the same bits and ids."""
    some = head_case(3, 3001, 512, 128)
    given = (some.x, some.qweight, some.scales)
    workspace = argmax_workspace("cpu")
    weight = rows_of_numbers((3001, 512), torch.bfloat16, seed=3)

    def results() -> list[Tensor]:
        found = ops.head_argmax(some.x, weight, workspace=workspace)
        return [ops.w8a16_linear(*given), ops.w8a16_argmax(*given, workspace=workspace), found]

    expected, threads = results(), torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            now = results()
        finally:
            torch.set_num_threads(threads)
        for one, other in zip(now, expected, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_public_functions_of_the_head_pass_everything_on(name: str) -> None:
    given, options = arguments(name, torch.device("cpu"))
    for prefetch in (False, True):
        ours = getattr(ops, name)(*given, **options, prefetch=prefetch)
        assert_same_bits(ours, getattr(torch.ops.qwen_cuda, name)(*given, **options))
    without = {key: value for key, value in options.items() if key not in ("norm_weight", "eps")}
    if name == "w8a16_linear":
        assert not torch.equal(ours, ops.w8a16_linear(*given))
        assert ops.w8a16_linear(*given, out_dtype=torch.float32).dtype == torch.float32
    assert_same_bits(getattr(ops, name)(*given, **without), getattr(torch.ops.qwen_cuda, name)(*given, **without))
