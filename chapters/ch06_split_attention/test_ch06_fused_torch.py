"""fused_decode_attention as PyTorch sees it: schema, tracing, compilation, export, threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch04_paged_kv.cache_write_runs import EPS, table
from chapters.ch06_split_attention.fused_cases import QWEN3, FusedCase, Result, fused_case
from chapters.ch06_split_attention.split_cases import layout_of
from qwen_cuda.testing.backends import Backend

CUT = (16, 4)
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"merge": "last_block", "prefetch": True})


def arguments(some: FusedCase, device: torch.device) -> list[Any]:
    stored = some.stored
    tensors = [some.qkv, *some.weights, table(400), some.positions, some.slot_mapping]
    tensors += [stored.k_cache, stored.v_cache, stored.block_table, stored.context_lens]
    workspace = layout_of(stored, CUT[1]).new(device)
    return [*(t.to(device) for t in tensors), EPS, stored.scale, some.heads.query_heads, *CUT, workspace]


def run(function: Any, given: list[Any], **options: Any) -> Result:
    given = [value.clone() if isinstance(value, Tensor) else value for value in given]
    return Result(function(*given, **options), given[6], given[7])


@pytest.mark.parametrize("options", OPTIONS, ids=["defaults", "all options"])
def test_opcheck_of_fused_attention(registered_backend: Backend, options: dict[str, Any]) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    some = fused_case((20, 7, 50), seed=1)
    for batch in (3, 1, 0):
        stored = some.stored
        part = replace(
            some,
            stored=stored.with_(
                q=stored.q[:batch], block_table=stored.block_table[:batch], context_lens=stored.context_lens[:batch]
            ),
            qkv=some.qkv[:batch],
            positions=some.positions[:batch],
            slot_mapping=some.slot_mapping[:batch],
        )
        operator = registered_backend.namespace.fused_decode_attention.default
        torch.library.opcheck(operator, tuple(arguments(part, registered_backend.device)), options)


def test_fakes_of_fused_attention_have_the_layout_of_the_result(registered_backend: Backend) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    function = registered_backend.namespace.fused_decode_attention
    given = arguments(fused_case((20, 7), seed=2), registered_backend.device)
    given[0] = torch.cat((given[0], given[0]), -1)[:, : given[0].shape[1]]  # rows with gaps
    with FakeTensorMode() as mode:
        fake = function(*(mode.from_tensor(v) if isinstance(v, Tensor) else v for v in given))
    one = function(*given)
    assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (one.shape, one.dtype, one.device, one.stride())


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_fused_attention_has_the_bits_of_eager_code(registered_backend: Backend, compiler: str) -> None:
    """No graph break, the caches are written in place, and what reads them afterwards sees what was written."""

    def layer(*given: Any) -> Tensor:
        out: Tensor = registered_backend.namespace.fused_decode_attention(given[0] * 2, *given[1:])
        return out + given[6].nan_to_num().sum()

    compiled = torch.compile(layer, fullgraph=True, backend=compiler, dynamic=True)
    for lens in ((20, 7), (33, 2, 64)):
        given = arguments(fused_case(lens, seed=len(lens)), registered_backend.device)
        run(compiled, given).assert_same(run(layer, given))


def test_an_exported_program_keeps_fused_attention_whole(registered_backend: Backend) -> None:
    class Layer(torch.nn.Module):
        def forward(self, qkv: Tensor, k_cache: Tensor, v_cache: Tensor, workspace: Tensor) -> Tensor:
            out: Tensor = registered_backend.namespace.fused_decode_attention(
                qkv, *given[1:6], k_cache, v_cache, *given[8:15], workspace
            )
            return out

    given = arguments(fused_case((20, 7), seed=4), registered_backend.device)
    program = torch.export.export(Layer(), (given[0], given[6], given[7], given[15]))
    assert sum("fused_decode_attention" in str(node.target) for node in program.graph.nodes) == 1
    caches = [given[6].clone(), given[7].clone()]
    out = program.module()(given[0], *caches, given[15].clone())
    Result(out, *caches).assert_same(run(registered_backend.namespace.fused_decode_attention, given))


def test_fused_attention_takes_parameters_without_gradients(registered_backend: Backend) -> None:
    given = arguments(fused_case((20, 7), seed=5), registered_backend.device)
    expected = run(registered_backend.namespace.fused_decode_attention, given)
    given[1:3] = [torch.nn.Parameter(weight) for weight in given[1:3]]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            got = run(registered_backend.namespace.fused_decode_attention, given)
        assert not got.out.requires_grad
        got.assert_same(expected)


def test_sequences_of_fused_attention_may_be_shared_out_among_threads() -> None:
    """The CPU path gives tokens and partitions to PyTorch's threads: with one, two or three the same bits."""
    given = arguments(fused_case(tuple(range(1, 20)), QWEN3, seed=6), torch.device("cpu"))
    expected = run(ops.fused_decode_attention, given)
    threads = torch.get_num_threads()
    for count in (2, 3):
        torch.set_num_threads(count)
        try:
            run(ops.fused_decode_attention, given).assert_same(expected)
        finally:
            torch.set_num_threads(threads)


def test_public_fused_attention_is_the_operator() -> None:
    given = arguments(fused_case((20, 7), seed=7), torch.device("cpu"))
    for options in OPTIONS:
        expected = run(torch.ops.qwen_cuda.fused_decode_attention, given, **options)
        run(ops.fused_decode_attention, given, **options).assert_same(expected)
