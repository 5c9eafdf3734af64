"""What the operators of paged attention refuse, each by its sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.operators import attention_workspace, check_block_table
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed

Arguments = dict[str, Any]
NAMES = ("paged_attention_grouped", "paged_attention_split", "paged_attention_partials")


def arguments() -> Arguments:
    """q [2, 4, 64], caches [3, 8, 2, 64], a table for 2 pages each."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((2, 4, 64), (3, 8, 2, 64), (3, 8, 2, 64))
    )
    table = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
    return {
        "q": q,
        "k_cache": k,
        "v_cache": v,
        "block_table": table,
        "context_lens": torch.tensor([9, 3], dtype=torch.int32),
        "scale": 0.125,
    }


def of(name: str, backend: Backend, **changes: Any) -> list[Any]:
    """The arguments of operator `name`, on the backend's device."""
    given = arguments() | changes
    if name != NAMES[0]:
        split = {"partition_size": 16, "partitions": 2, "workspace": attention_workspace(arguments()["q"], 2, 2)}
        given = given | split | {key: changes[key] for key in changes if key in split}
    tensors = iter(placed([value for value in given.values() if isinstance(value, Tensor)], backend.device))
    return [next(tensors) if isinstance(value, Tensor) else value for value in given.values()]


def refused(backend: Backend, name: str, sentence: str, **changes: Any) -> None:
    with pytest.raises(RuntimeError) as failure:
        getattr(backend.namespace, name)(*of(name, backend, **changes))
    assert str(failure.value).startswith(f"{name}: {sentence}"), str(failure.value)


BASE = arguments()
WIDE = torch.zeros(2, 4, 128).bfloat16()
CASES: list[tuple[str, Arguments, str]] = [
    ("float32", {"q": BASE["q"].float()}, "q has dtype Float; it must be bfloat16 or float16."),
    (
        "two dimensions",
        {"q": BASE["q"].flatten(1)},
        "q has shape [2, 256]; it must be a dense tensor [batch, query_heads",
    ),
    ("head_dim 32", {"q": BASE["q"][:, :, :32].contiguous()}, "q has shape [2, 4, 32]; head_dim must be 64 or 128."),
    (
        "heads apart",
        {"q": WIDE[:, :, :64]},
        "q has strides [512, 128, 1]; the heads of a sequence must lie side by side",
    ),
    (
        "odd distance",
        {"q": torch.zeros(2, 260).bfloat16()[:, :256].unflatten(1, (4, 64))},
        "q has strides [260, 64, 1]",
    ),
    ("unaligned", {"q": torch.zeros(513).bfloat16()[1:].view(2, 4, 64)}, "q does not begin at a multiple of 16 bytes"),
    (
        "other head_dim",
        {"k_cache": torch.zeros(3, 8, 2, 128).bfloat16()},
        "k_cache has shape [3, 8, 2, 128]; it must be",
    ),
    (
        "three dimensions",
        {"k_cache": BASE["k_cache"][0]},
        "k_cache has shape [8, 2, 64]; it must be [num_blocks, block_size",
    ),
    (
        "fewer values",
        {"v_cache": BASE["v_cache"][:2]},
        "v_cache has shape [2, 8, 2, 64] and k_cache [3, 8, 2, 64]; they",
    ),
    (
        "values in float16",
        {"v_cache": BASE["v_cache"].half()},
        "v_cache has dtype Half and q BFloat16; they must have one",
    ),
    (
        "keys in float16",
        {"k_cache": BASE["k_cache"].half()},
        "k_cache has dtype Half and q BFloat16; they must have one",
    ),
    (
        "pages of 4",
        {k: BASE[k][:, :4].contiguous() for k in ("k_cache", "v_cache")},
        "k_cache has shape [3, 4, 2, 64]; block",
    ),
    (
        "pages of 12",
        {k: torch.zeros(3, 12, 2, 64).bfloat16() for k in ("k_cache", "v_cache")},
        "k_cache has shape [3, 12, 2,",
    ),
    (
        "pages of 512",
        {k: torch.zeros(1, 512, 2, 64).bfloat16() for k in ("k_cache", "v_cache")},
        "k_cache has shape [1, 512,",
    ),
    (
        "group of 4/3",
        {k: torch.zeros(3, 8, 3, 64).bfloat16() for k in ("k_cache", "v_cache")},
        "q has 4 heads and k_cache 3;",
    ),
    (
        "more KV heads",
        {k: torch.zeros(3, 8, 8, 64).bfloat16() for k in ("k_cache", "v_cache")},
        "q has 4 heads and k_cache 8",
    ),
    (
        "gaps in the keys",
        {"k_cache": torch.zeros(3, 8, 4, 64).bfloat16()[:, :, :2]},
        "k_cache has gaps; pass k_cache.contig",
    ),
    ("table of int64", {"block_table": BASE["block_table"].long()}, "block_table has dtype Long; it must be int32."),
    (
        "table of one row",
        {"block_table": BASE["block_table"][:1]},
        "block_table has shape [1, 2]; it must be [2, max_blocks].",
    ),
    (
        "table transposed",
        {"block_table": BASE["block_table"].t()},
        "block_table has strides [1, 2]; the entries of a row",
    ),
    (
        "lengths of int64",
        {"context_lens": BASE["context_lens"].long()},
        "context_lens has dtype Long; it must be int32.",
    ),
    ("three lengths", {"context_lens": torch.ones(3).int()}, "context_lens has shape [3]; it must be dense and [2]."),
    ("scale NaN", {"scale": float("nan")}, "scale is nan; it must be a finite number."),
    ("scale infinite", {"scale": float("-inf")}, "scale is -inf; it must be a finite number."),
]


@pytest.mark.parametrize(("changes", "sentence"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_argument_of_attention_is_refused(registered_backend: Backend, changes: Arguments, sentence: str) -> None:
    for name in NAMES:
        refused(registered_backend, name, sentence, **changes)


def test_nine_heads_on_one_are_refused(registered_backend: Backend) -> None:
    caches = {name: torch.zeros(3, 8, 1, 64).bfloat16() for name in ("k_cache", "v_cache")}
    sentence = "q has 9 heads and k_cache 1; each KV head must serve 1 to 8 query heads."
    for name in NAMES:
        refused(registered_backend, name, sentence, q=torch.zeros(2, 9, 64).bfloat16(), **caches)


def test_a_table_of_too_many_tokens_is_refused(registered_backend: Backend) -> None:
    """Tokens are counted in 32 bits. A batch of none, for such a table has gigabytes."""
    given = of(NAMES[0], registered_backend)
    given[0], given[4] = given[0][:0], given[4][:0]
    given[3] = torch.empty(0, 2**27 + 1, dtype=torch.int32, device=registered_backend.device)
    with pytest.raises(
        RuntimeError, match=r"block_table has shape \[0, 134217729\]; a row may stand for at most 10737"
    ):
        registered_backend.namespace.paged_attention_grouped(*given)


def test_no_sequence_is_no_work(registered_backend: Backend) -> None:
    given = of(NAMES[0], registered_backend)
    given[0], given[3], given[4] = given[0][:0], given[3][:0], given[4][:0]
    assert registered_backend.namespace.paged_attention_grouped(*given).shape == (0, 4, 64)


def test_an_empty_cache_and_an_empty_table_give_zeros(registered_backend: Backend) -> None:
    """Whatever the lengths say: there is nothing to read."""
    given = of(NAMES[0], registered_backend)
    op = registered_backend.op(NAMES[0])
    assert not op(given[0], given[1][:0], given[2][:0], *given[3:]).any()
    assert not op(*given[:3], given[3][:, :0], *given[4:]).any()


@pytest.mark.parametrize("which", [0, 1, 2, 8])
def test_forms_that_write_refuse_gradients(registered_backend: Backend, which: int) -> None:
    given = of(NAMES[1], registered_backend)
    given[which].requires_grad_()
    for name in NAMES[1:]:
        with pytest.raises(RuntimeError, match=f"^{name}: an argument requires a gradient, .* wrap the call"):
            getattr(registered_backend.namespace, name)(*given)
        with torch.no_grad():
            getattr(registered_backend.namespace, name)(*given)


@pytest.mark.parametrize(
    ("table", "lens", "sentence"),
    [
        ([[0, 1], [2, 0]], [9, 3], None),
        ([[0, -1], [2, 7]], [8, 8], None),  # what no context needs may hold anything
        (
            [[0, -1], [2, 0]],
            [9, 3],
            r"block_table\[0, 1\] is -1; the cache has blocks 0 to 2, and a context of 9 tokens",
        ),
        ([[0, 1], [3, 0]], [9, 1], r"block_table\[1, 0\] is 3; the cache has blocks 0 to 2"),
        ([[0, 1], [2, 0]], [17, 3], r"context_lens\[0\] is 17; it must be 0 to 16, what its row of the table holds\."),
        ([[0, 1], [2, 0]], [1, -2], r"context_lens\[1\] is -2; it must be 0 to 16"),
    ],
)
def test_the_debug_check_reports_what_kernels_skip(
    table: list[list[int]], lens: list[int], sentence: str | None
) -> None:
    tensors = torch.tensor(table, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32)
    if sentence is None:
        check_block_table(*tensors, num_blocks=3, block_size=8)
    else:
        with pytest.raises(ValueError, match=sentence):
            check_block_table(*tensors, num_blocks=3, block_size=8)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_arguments_on_two_devices_are_refused() -> None:
    given = arguments()
    for name, sentence in (
        ("k_cache", "k_cache is on cpu and q on cuda:0; they must be on one device."),
        ("block_table", "block_table is on cpu and q on cuda:0; they must be on one device."),
    ):
        there = [v.cuda() if isinstance(v, Tensor) and key != name else v for key, v in given.items()]
        with pytest.raises(RuntimeError, match=f"^paged_attention_grouped: {sentence}"):
            torch.ops.qwen_cuda.paged_attention_grouped(*there)
