"""paged_attention_grouped as PyTorch sees it: schema, tracing, compilation, gradients, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch05_grouped_attention.paged_cases import Heads, paged_case, widened
from qwen3_ref import paged
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

NAME = "paged_attention_grouped"
SOME = paged_case((20, 3, 0), Heads(kv_heads=2, group=2, head_dim=64), seed=2)


def arguments(device: torch.device) -> list[Any]:
    """Of SOME, with zeros for the NaN of unused slots: opcheck compares arguments before and after."""
    given = [x.nan_to_num(0) if isinstance(x, Tensor) and x.is_floating_point() else x for x in SOME.arguments]
    return [x.to(device) if isinstance(x, Tensor) else x for x in given]


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
def test_opcheck_of_grouped_attention(registered_backend: Backend, gradient: bool) -> None:
    given = arguments(registered_backend.device)
    given[0].requires_grad_(gradient)
    torch.library.opcheck(
        getattr(registered_backend.namespace, NAME).default,
        tuple(given),
        test_utils=["test_schema", "test_faketensor", "test_autograd_registration"],
    )


def test_the_fake_of_a_packed_query_is_contiguous(registered_backend: Backend) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, *others = arguments(registered_backend.device)
    packed = torch.cat((q.flatten(1), q.flatten(1)), -1)[:, : q[0].numel()].unflatten(1, q.shape[1:])
    function = getattr(registered_backend.namespace, NAME)
    real = function(packed, *others)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in (packed, *others)]
        fake = function(*fakes)
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_compiled_attention_has_the_bits_of_eager_code(registered_backend: Backend) -> None:
    function = getattr(registered_backend.namespace, NAME)

    def layer(q: Tensor, *others: Any) -> Tensor:
        return function(q * 2, *others) + 1

    given = arguments(registered_backend.device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(*given), layer(*given))


def test_gradients_of_attention_are_the_references(registered_backend: Backend) -> None:
    given = arguments(registered_backend.device)

    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        leaves = [x.detach().clone().requires_grad_() for x in given[:3]]
        out = function(*leaves, *given[3:])
        seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
        return torch.autograd.grad((out.float() * seed.float()).sum(), leaves)

    ours = gradients(getattr(registered_backend.namespace, NAME))
    for one, other in zip(ours, gradients(paged.paged_attention), strict=True):
        assert one.any()
        assert_same_bits(one, other)


def test_threads_of_the_cpu_share_the_heads() -> None:
    given = arguments(torch.device("cpu"))
    expected = ops.paged_attention_grouped(*given)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert_same_bits(ops.paged_attention_grouped(*given), expected)
    finally:
        torch.set_num_threads(threads)


def test_the_paged_reference_is_attention_over_gathered_keys() -> None:
    """Against scaled_dot_product_attention in float64, sequence by sequence."""
    q, k_cache, v_cache, table, lens, scale = widened(SOME).arguments
    out = paged.paged_attention(q, k_cache, v_cache, table, lens, scale)
    for s in range(2):
        k, v = (paged.gather(cache, table[s], 0, int(lens[s])) for cache in (k_cache, v_cache))
        want = torch.nn.functional.scaled_dot_product_attention(q[s][None, :, None], k, v, scale=scale, enable_gqa=True)
        torch.testing.assert_close(out[s], want[0, :, 0], rtol=1e-12, atol=1e-12)
    assert not out[2].any()
