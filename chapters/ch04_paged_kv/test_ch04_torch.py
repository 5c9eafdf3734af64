"""qk_norm_rope_cache_write as PyTorch sees it: schema, tracing, compilation, export, threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch04_paged_kv.cache_write_runs import EPS, THETA, Setting, Written, scattered, table
from qwen3_ref.functional import rope_cos_sin
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

SETTING = Setting(num_heads=3, num_kv_heads=2, num_blocks=4, max_positions=64)


def arguments(device: torch.device, tokens: int = 5) -> list[Any]:
    positions, slots = scattered(tokens, SETTING)
    caches = [torch.zeros(4, 16, 2, 128, dtype=SETTING.dtype) for _ in "kv"]
    tensors = [SETTING.qkv(tokens), *SETTING.weights(), table(64), positions, slots, *caches]
    return [*(tensor.to(device) for tensor in tensors), EPS, SETTING.num_heads]


def run(function: Any, given: list[Any], return_k: bool = True) -> Written:
    given = [value.clone() if isinstance(value, Tensor) else value for value in given]
    q, k = function(*given, return_k=return_k)
    return Written(q, k, given[6], given[7])


def same(one: Written, other: Written) -> None:
    for name in ("q", "k", "k_cache", "v_cache"):
        assert_same_bits(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("return_k", [False, True])
def test_opcheck_of_the_cache_write(registered_backend: Backend, return_k: bool) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    for tokens in (1, 5, 0):
        operator = registered_backend.namespace.qk_norm_rope_cache_write.default
        torch.library.opcheck(operator, tuple(arguments(registered_backend.device, tokens)), {"return_k": return_k})


@pytest.mark.parametrize("return_k", [False, True])
def test_fakes_of_the_cache_write_have_the_layout_of_the_results(registered_backend: Backend, return_k: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    function = registered_backend.namespace.qk_norm_rope_cache_write
    given = arguments(registered_backend.device)
    given[0] = torch.cat((given[0], given[0]), -1)[:, : given[0].shape[1]]  # rows with gaps
    with FakeTensorMode() as mode:
        fakes = function(*(mode.from_tensor(v) if isinstance(v, Tensor) else v for v in given), return_k=return_k)
    for fake, one in zip(fakes, function(*given, return_k=return_k), strict=True):
        assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (one.shape, one.dtype, one.device, one.stride())


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_cache_write_has_the_bits_of_eager_code(registered_backend: Backend, compiler: str) -> None:
    """No graph break, the caches are written in place, and what reads them afterwards sees what was written."""

    def layer(*given: Any, return_k: bool) -> tuple[Tensor, Tensor]:
        q, k = registered_backend.namespace.qk_norm_rope_cache_write(given[0] * 2, *given[1:], return_k=return_k)
        return q + given[6].sum(), k

    compiled = torch.compile(layer, fullgraph=True, backend=compiler, dynamic=True)
    for tokens in (3, 5):
        given = arguments(registered_backend.device, tokens)
        same(run(compiled, given), run(layer, given))


def test_an_exported_program_keeps_the_cache_write_whole(registered_backend: Backend) -> None:
    class Layer(torch.nn.Module):
        def forward(self, qkv: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
            return registered_backend.namespace.qk_norm_rope_cache_write(qkv, *given[1:6], k_cache, v_cache, EPS, 3)[0]

    given = arguments(registered_backend.device)
    program = torch.export.export(Layer(), (given[0], given[6], given[7]))
    assert sum("qk_norm_rope_cache_write" in str(node.target) for node in program.graph.nodes) == 1
    caches = [given[6].clone(), given[7].clone()]
    q = program.module()(given[0], *caches)
    expected = run(registered_backend.namespace.qk_norm_rope_cache_write, given, return_k=False)
    same(Written(q, expected.k, *caches), expected)


def test_parameters_do_no_harm_without_gradients(registered_backend: Backend) -> None:
    given = arguments(registered_backend.device)
    expected = run(registered_backend.namespace.qk_norm_rope_cache_write, given)
    given[1:3] = [torch.nn.Parameter(weight) for weight in given[1:3]]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            got = run(registered_backend.namespace.qk_norm_rope_cache_write, given)
        assert not got.q.requires_grad
        same(got, expected)


def test_tokens_may_be_shared_out_among_threads() -> None:
    """The CPU kernel gives its tokens to PyTorch's threads: with one, two or three the same bits."""
    given = arguments(torch.device("cpu"), tokens=61)
    expected = run(ops.qk_norm_rope_cache_write, given)
    threads = torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            got = run(ops.qk_norm_rope_cache_write, given)
        finally:
            torch.set_num_threads(threads)
        same(got, expected)


def test_the_public_cache_write_is_the_operator() -> None:
    given = arguments(torch.device("cpu"))
    for return_k in (False, True):
        same(
            run(ops.qk_norm_rope_cache_write, given, return_k),
            run(torch.ops.qwen_cuda.qk_norm_rope_cache_write, given, return_k),
        )


def test_the_table_holds_the_angles_of_the_reference_model() -> None:
    made = ops.cos_sin_table(1000, THETA)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((1000, 128), torch.float32, True)
    cos, sin = rope_cos_sin(torch.arange(1000), 128, THETA, torch.float32)
    assert torch.equal(made, torch.cat((cos, sin), dim=-1))
    exact = torch.cat(rope_cos_sin(torch.arange(1000), 128, THETA, torch.float64), dim=-1)
    # The frequency and its product with the position are rounded a few times: an angle errs by 4 · 2^-24 of itself.
    assert float((made.double() - exact).abs().max()) <= 1000 * 4 * 2.0**-24
