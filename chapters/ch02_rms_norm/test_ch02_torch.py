"""rms_norm and add_rms_norm as PyTorch sees them: schemas, tracing, compilation, export, gradients."""

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

OPERATORS = tuple(REFERENCES)[:4]


def arguments(name: str, device: torch.device, dtype: torch.dtype, size: int = 24) -> list[Tensor]:
    """x, the residual where the operator has one, and the weight."""
    count = 2 if name.startswith("add") else 1
    tensors = [rows_of_numbers((3, size), dtype, seed=seed) for seed in range(count)]
    return [tensor.to(device) for tensor in (*tensors, norm_weight(size, dtype, seed=9))]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
def test_opcheck(registered_backend: Backend, name: str, gradient: bool) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    if gradient and name.endswith("_"):
        pytest.skip("an in-place form refuses gradients")
    tensors = arguments(name, registered_backend.device, torch.float32)
    sliced = [torch.cat((tensor, tensor), -1)[..., : tensor.shape[-1]] for tensor in tensors[:-1]]
    for some in (tensors, [*sliced, tensors[-1]]):
        given = [tensor.detach().requires_grad_(gradient) for tensor in some]
        torch.library.opcheck(getattr(registered_backend.namespace, name).default, (*given, EPS))


@pytest.mark.parametrize("name", OPERATORS)
def test_fakes_have_shape_dtype_and_strides_of_the_kernels(registered_backend: Backend, name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    function = getattr(registered_backend.namespace, name)
    x = rows_of_numbers((2, 3, 40), torch.float16, seed=1).to(registered_backend.device)[..., :24]
    tensors = [x, *([x.clone()] * name.startswith("add")), norm_weight(24, torch.float16, seed=2).to(x.device)]
    with FakeTensorMode() as mode:
        fakes = function(*(mode.from_tensor(tensor) for tensor in tensors), EPS)
    real = function(*tensors, EPS)
    for fake, one in zip(outputs(fakes), outputs(real), strict=True):
        assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (one.shape, one.dtype, one.device, one.stride())


def outputs(result: Any) -> tuple[Tensor, ...]:
    return () if result is None else (result,) if isinstance(result, Tensor) else tuple(result)


def layer(function: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """What a decoder layer does with the operators, in place and not, between operations that a compiler fuses."""

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out, total = function.add_rms_norm(x * 2, residual, weight, EPS)
        again = out.clone()
        function.rms_norm_(again, weight, EPS)
        function.add_rms_norm_(again, total, weight, EPS)
        return function.rms_norm(again + 1, weight, EPS), total

    return run


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_code_has_the_bits_of_eager_code(registered_backend: Backend, compiler: str) -> None:
    """No graph break, and an in-place form that is traced still writes where it should."""
    run = layer(registered_backend.namespace)
    compiled = torch.compile(run, fullgraph=True, backend=compiler, dynamic=True)
    for rows in (3, 5):
        tensors = arguments("add_rms_norm", registered_backend.device, torch.bfloat16)
        tensors = [torch.cat((tensor, tensor))[:rows] for tensor in tensors[:2]] + tensors[2:]
        for one, other in zip(compiled(*tensors), run(*tensors), strict=True):
            assert_same_bits(one, other)


def test_an_exported_program_keeps_the_operators_whole(registered_backend: Backend) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return layer(registered_backend.namespace)(x, residual, weight)

    tensors = arguments("add_rms_norm", registered_backend.device, torch.bfloat16)
    program = torch.export.export(Layer(), tuple(tensors), dynamic_shapes=({0: torch.export.Dim.AUTO},) * 2 + (None,))
    called = [str(node.target) for node in program.graph.nodes if "rms_norm" in str(node.target)]
    assert len(called) == 4, called
    for one, other in zip(program.module()(*tensors), Layer()(*tensors), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_formula(registered_backend: Backend, name: str, dtype: torch.dtype) -> None:
    """Bit for bit those of the reference in the same dtype; in float32 also those of float64, up to rounding."""
    tensors = arguments(name, registered_backend.device, dtype)

    def gradients(function: Callable[..., Any], given: list[Tensor]) -> tuple[Tensor, ...]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in given]
        results = outputs(function(*leaves, EPS))
        seeds = [rows_of_numbers(result.shape, result.dtype, seed=7 + i) for i, result in enumerate(results)]
        total = sum(
            ((result * seed.to(result)).sum() for result, seed in zip(results, seeds, strict=True)), torch.tensor(0.0)
        )
        return torch.autograd.grad(total, leaves)

    ours = gradients(getattr(registered_backend.namespace, name), tensors)
    for one, other in zip(ours, gradients(REFERENCES[name], tensors), strict=True):
        assert_same_bits(one, other)
    if dtype == torch.float32:
        truth = gradients(REFERENCES[name], [tensor.double() for tensor in tensors])
        for one, exact in zip(ours, truth, strict=True):
            # Sums over 24 elements and 3 rows of terms of size one: a few dozen roundings of 2^-24.
            torch.testing.assert_close(one.double(), exact, rtol=0, atol=64 * 2.0**-24 * float(exact.abs().max()))


def test_without_gradients_the_kernel_runs(registered_backend: Backend) -> None:
    """A weight is a Parameter in every model: under no_grad and inference_mode that costs nothing."""
    x, weight = arguments("rms_norm", registered_backend.device, torch.bfloat16)
    expected = registered_backend.op("rms_norm")(x, weight, EPS)
    parameter = torch.nn.Parameter(weight)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = registered_backend.namespace.rms_norm(x, parameter, EPS)
        assert not out.requires_grad
        assert_same_bits(out, expected)


def test_rows_may_be_shared_out_among_threads() -> None:
    """The CPU kernel gives its rows to PyTorch's threads: with one, two or three the same bits."""
    x, weight = (
        rows_of_numbers((301, 1024), torch.bfloat16, seed=4, kind="wide"),
        norm_weight(1024, torch.bfloat16, seed=4),
    )
    expected = ops.rms_norm(x, weight, EPS), *ops.add_rms_norm(x, x, weight, EPS)
    threads = torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            results = ops.rms_norm(x, weight, EPS), *ops.add_rms_norm(x, x, weight, EPS)
        finally:
            torch.set_num_threads(threads)
        for one, other in zip(results, expected, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("name", OPERATORS)
def test_public_functions_are_the_operators(name: str) -> None:
    """`qwen_cuda.operators` gives the bits of `torch.ops.qwen_cuda`, on CPU tensors here."""
    results = []
    for function in (getattr(ops, name), getattr(torch.ops.qwen_cuda, name)):
        tensors = arguments(name, torch.device("cpu"), torch.float16)
        results.append([*outputs(function(*tensors, EPS)), *tensors])
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)
