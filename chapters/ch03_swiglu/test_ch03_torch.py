"""silu_mul and hf_rounding as PyTorch sees them: schemas, tracing, compilation, export, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch02_rms_norm.rms_norm_checks import EPS
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import assert_same_bits

NAMES = ("silu_mul", "rms_norm", "add_rms_norm", "rms_norm_", "add_rms_norm_")
ROUNDINGS = pytest.mark.parametrize("hf_rounding", [False, True], ids=["once", "hf"])


def arguments(name: str, device: torch.device, dtype: torch.dtype) -> list[Any]:
    """What the operator takes, on rows of 24 numbers."""
    x, residual = (rows_of_numbers((3, 24), dtype, seed=seed).to(device) for seed in (1, 2))
    if name == "silu_mul":
        return [x]
    return [x, *([residual] * name.startswith("add")), norm_weight(24, dtype, seed=9).to(device), EPS]


def outputs(result: Any) -> tuple[Tensor, ...]:
    return () if result is None else (result,) if isinstance(result, Tensor) else tuple(result)


@ROUNDINGS
@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
def test_opcheck_of_silu_mul(registered_backend: Backend, gradient: bool, hf_rounding: bool) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    (dense,) = arguments("silu_mul", registered_backend.device, torch.float32)
    for gate_up in (dense, torch.cat((dense, dense), dim=-1)[:, 4:20], dense[:0]):
        given = gate_up.detach().requires_grad_(gradient)
        operator = registered_backend.namespace.silu_mul.default
        torch.library.opcheck(operator, (given,), {"hf_rounding": hf_rounding})


@pytest.mark.parametrize("name", NAMES[1:])
def test_opcheck_of_norms_in_hugging_faces_order(registered_backend: Backend, name: str) -> None:
    given = arguments(name, registered_backend.device, torch.bfloat16)
    torch.library.opcheck(getattr(registered_backend.namespace, name).default, tuple(given), {"hf_rounding": True})


def test_fake_of_silu_mul_has_shape_dtype_and_strides_of_the_kernel(registered_backend: Backend) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    gate_up = rows_of_numbers((2, 3, 40), torch.float16, seed=1).to(registered_backend.device)[..., :24]
    with FakeTensorMode() as mode:
        fake = registered_backend.namespace.silu_mul(mode.from_tensor(gate_up))
    real = registered_backend.namespace.silu_mul(gate_up)
    assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (real.shape, real.dtype, real.device, real.stride())


def mlp(function: Any, hf_rounding: bool) -> Callable[..., Tensor]:
    """A layer's second half: norm, packed product, silu_mul, product, residual."""

    def run(x: Tensor, residual: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        normed, total = function.add_rms_norm(x, residual, norm, EPS, hf_rounding=hf_rounding)
        hidden = function.silu_mul(torch.nn.functional.linear(normed, gate_up), hf_rounding=hf_rounding)
        out = torch.nn.functional.linear(hidden, down)
        function.add_rms_norm_(out, total, norm, EPS, hf_rounding=hf_rounding)
        return out

    return run


def weights(device: torch.device) -> list[Tensor]:
    """norm `[24]`, gate_up `[80, 24]` and down `[24, 40]`, bfloat16."""
    packed, down = (rows_of_numbers(shape, torch.bfloat16, seed=3) / 8 for shape in ((80, 24), (24, 40)))
    return [tensor.to(device) for tensor in (norm_weight(24, torch.bfloat16, seed=4), packed, down)]


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@ROUNDINGS
def test_a_compiled_mlp_has_the_bits_of_the_eager_one(
    registered_backend: Backend, compiler: str, hf_rounding: bool
) -> None:
    run = mlp(registered_backend.namespace, hf_rounding)
    compiled = torch.compile(run, fullgraph=True, backend=compiler, dynamic=True)
    for rows in (3, 5):
        x, residual = (
            rows_of_numbers((rows, 24), torch.bfloat16, seed=seed).to(registered_backend.device) for seed in (5, 6)
        )
        given = (x, residual, *weights(registered_backend.device))
        assert_same_bits(compiled(*given), run(*given))


def test_an_exported_mlp_keeps_the_operators_whole(registered_backend: Backend) -> None:
    class Mlp(torch.nn.Module):
        def forward(self, x: Tensor, residual: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
            return mlp(registered_backend.namespace, True)(x, residual, norm, gate_up, down)

    x, residual = (rows_of_numbers((4, 24), torch.bfloat16, seed=s).to(registered_backend.device) for s in (5, 6))
    given = (x, residual, *weights(registered_backend.device))
    rows = {0: torch.export.Dim.AUTO}
    program = torch.export.export(Mlp(), given, dynamic_shapes=(rows, rows, None, None, None))
    called = [str(node.target) for node in program.graph.nodes if "silu_mul" in str(node.target)]
    assert called == [f"{registered_backend.namespace.name}.silu_mul.default"]
    assert_same_bits(program.module()(*given), Mlp()(*given))


@ROUNDINGS
@pytest.mark.parametrize("name", ["silu_mul", "rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_reference(
    registered_backend: Backend, name: str, dtype: torch.dtype, hf_rounding: bool
) -> None:
    """Bit for bit: where a gradient is wanted, the reference runs, in the order that was asked for."""
    given = arguments(name, registered_backend.device, dtype)

    def gradients(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        leaves = [one.detach().clone().requires_grad_() if isinstance(one, Tensor) else one for one in given]
        results = outputs(function(*leaves, hf_rounding=hf_rounding))
        seeds = [rows_of_numbers(result.shape, dtype, seed=7).to(result.device) for result in results]
        total = torch.stack([(result * seed).sum() for result, seed in zip(results, seeds, strict=True)]).sum()
        return torch.autograd.grad(total, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    ours = gradients(getattr(registered_backend.namespace, name))
    for one, other in zip(ours, gradients(REFERENCES[name]), strict=True):
        assert bool(one.isfinite().all())
        assert_same_bits(one, other)


def test_without_gradients_the_kernel_of_silu_mul_runs(registered_backend: Backend) -> None:
    (gate_up,) = arguments("silu_mul", registered_backend.device, torch.bfloat16)
    expected = registered_backend.op("silu_mul")(gate_up)
    leaf = gate_up.clone().requires_grad_()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = registered_backend.namespace.silu_mul(leaf)
        assert not out.requires_grad
        assert_same_bits(out, expected)


def test_rows_of_gate_up_may_be_shared_out_among_threads() -> None:
    """The CPU kernel gives its rows to PyTorch's threads: with one, two or three the same bits."""
    gate_up = rows_of_numbers((301, 512), torch.bfloat16, seed=4, kind="wide")
    expected = ops.silu_mul(gate_up)
    threads = torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            out = ops.silu_mul(gate_up)
        finally:
            torch.set_num_threads(threads)
        assert_same_bits(out, expected)


@ROUNDINGS
@pytest.mark.parametrize("name", NAMES)
def test_public_functions_pass_the_rounding_on(name: str, hf_rounding: bool) -> None:
    """`qwen_cuda.operators` gives the bits of `torch.ops.qwen_cuda`, and the two orders differ."""
    results = []
    for function in (getattr(ops, name), getattr(torch.ops.qwen_cuda, name)):
        given = arguments(name, torch.device("cpu"), torch.float16)
        out = outputs(function(*given, hf_rounding=hf_rounding))
        results.append([*out, *(one for one in given if isinstance(one, Tensor))])
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)
    given = arguments(name, torch.device("cpu"), torch.float16)
    other_order = [*outputs(getattr(ops, name)(*given, hf_rounding=not hf_rounding)), *given]
    assert not torch.equal(results[0][0], other_order[0])
