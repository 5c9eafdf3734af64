"""What attention over a quantised cache refuses, each by its sentence; and the operator as PyTorch sees it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    attention_workspace,
    norm_rope_hadamard_quant_store,
    paged_attention_quantized,
    store_kv,
)
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed_arguments
from qwen_cuda.testing.references import oracle

NAME = "paged_attention_quantized"
FORM = KVCacheFormat(CastArgs("e4m3", 32, "float32"), heads=2)  # blocks of 32 records of 144 bytes
Q = torch.ones(2, 4, 128).bfloat16()


def good() -> dict[str, Any]:
    return {
        "q": Q,
        "k_cache": FORM.new(3),
        "v_cache": FORM.new(3),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "context_lens": torch.ones(2, dtype=torch.int32),
        "scale": 1.0,
        "kv_heads": 2,
        "values": "e4m3",
        "group": 32,
        "scale_format": "float32",
        "cache_layout": list(FORM.strides),
        "partition_size": 16,
        "partitions": 3,
        "workspace": attention_workspace(Q, 2, 3),
        "hadamard_scale": 0.1,
    }


CACHE = good()["k_cache"]
ODD = torch.zeros(3 * FORM.block_bytes + 4, dtype=torch.uint8)[4:].view(3, -1)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("float32", {"q": Q.float()}, "q has dtype Float; it must be bfloat16 or float16."),
    ("heads of 64", {"q": Q[..., :64].contiguous()}, "q has shape [2, 4, 64]; head_dim must be 128."),
    ("no KV heads", {"kv_heads": 0}, "q has 4 heads and k_cache 0; each KV head must serve 1 to 8 query heads."),
    ("odd KV heads", {"kv_heads": 3}, "q has 4 heads and k_cache 3; each KV head must serve 1 to 8 query heads."),
    ("values", {"values": ""}, 'values is ""; it must be one of "e4m3", "e2m1".'),
    ("scales", {"scale_format": "bf16"}, 'scale_format is "bf16"; it must be one of "ue8m0", "e4m3", "float32".'),
    ("group", {"group": 8}, "group is 8; it must be 16, 32, 64 or 128."),
    ("short layout", {"cache_layout": [16]}, "cache_layout has 1 numbers; it must be block_size, the strides of"),
    ("blocks of 12", {"cache_layout": [12, 144, 144, 128]}, "cache_layout has blocks of 12 tokens; block_size must be"),
    ("overlap", {"cache_layout": [16, 140, 140, 128]}, "cache_layout is [16, 140, 140, 128]; with 128 bytes of codes"),
    ("odd rows", {"cache_layout": [8, 148, 148, 128]}, "rows of codes lie 148 bytes apart and blocks 4608; both must"),
    ("16-bit cache", {"k_cache": CACHE.short()}, "k_cache has dtype Short; it must be uint8."),
    ("short blocks", {"v_cache": CACHE[:, :-4]}, "v_cache has shape [3, 4604] and strides [4608, 1]; it must be [num"),
    ("fewer blocks", {"v_cache": CACHE[:2]}, "v_cache has shape [2, 4608] and k_cache [3, 4608]; they must have one"),
    ("odd address", {"v_cache": ODD}, "v_cache does not begin at a multiple of 16 bytes; pass v_cache.clone()."),
    ("infinite", {"hadamard_scale": float("nan")}, "hadamard_scale is nan; it must be finite."),
    ("scale", {"scale": float("inf")}, "scale is inf; it must be a finite number."),
    ("wide table", {"block_table": torch.zeros(2, 2)}, "block_table has dtype Float; it must be int32."),
    ("partitions", {"partitions": 0}, "partitions is 0; it must be 1 to 65535."),
    ("cluster", {"merge": "cluster"}, 'merge is "cluster" and partitions 3; a cluster merges 2, 4, 8 or 16 of them.'),
    ("workspace", {"workspace": torch.zeros(9)}, "workspace has 9 elements; it must have 3124: qwen_cuda.operators"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_arguments_of_quantized_attention_are_refused(
    registered_backend: Backend, change: dict[str, Any], sentence: str
) -> None:
    given = placed_arguments(good() | change, registered_backend.device)
    with pytest.raises(RuntimeError) as failure:
        getattr(registered_backend.namespace, NAME)(**given)
    assert str(failure.value).startswith(f"{NAME}: {sentence}"), str(failure.value)


def test_a_workspace_of_quantized_attention_is_apart_from_the_caches(registered_backend: Backend) -> None:
    for name in ("k_cache", "v_cache"):
        given = placed_arguments(good(), registered_backend.device)
        given["workspace"] = given[name].view(-1)[: 4 * (4608 * 3 // 4)].view(torch.float32)
        with pytest.raises(RuntimeError, match=f"^{NAME}: workspace and {name} share memory; workspace is written"):
            getattr(registered_backend.namespace, NAME)(**given)


def test_opcheck_of_quantized_attention(registered_backend: Backend) -> None:
    """PyTorch's own checks; and no sequence is no work."""
    operator = getattr(registered_backend.namespace, NAME)
    given = placed_arguments(good(), registered_backend.device)
    tests = ["test_schema", "test_faketensor", "test_autograd_registration"]
    torch.library.opcheck(operator.default, (), given, test_utils=tests)
    nobody = {name: given[name][:0] for name in ("q", "block_table", "context_lens")}
    assert operator(**(given | nobody)).shape == (0, 4, 128)
    with pytest.raises(RuntimeError, match=f"^{NAME}: an argument requires a gradient, .*; wrap the call in"):
        operator(**(given | {"q": given["q"].clone().requires_grad_()}))


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (KVCacheFormat(FORM.cast, head_dim=512), "format.head_dim is 512; it must be 128."),
        (KVCacheFormat(FORM.cast, heads=2, alignment=8), "format.alignment is 8; it must be 16 or more, for loads of"),
        (KVCacheFormat(FORM.cast, heads=4), "k_cache has dtype uint8 and shape [3, 4608]; its format asks for uint8 ["),
    ],
    ids=["head_dim", "alignment", "heads"],
)
def test_formats_that_attention_refuses(form: KVCacheFormat, sentence: str) -> None:
    given = good()
    q, k_cache, v_cache, table, lens = list(given.values())[:5]
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        paged_attention_quantized(q, k_cache, v_cache, table, lens, 1.0, form, 16, 3, given["workspace"])


def test_what_the_writer_stored_is_attended_to() -> None:
    """Keys transformed and stored by the writer, queries as they are: near attention over the keys as they were."""
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(n, h, 128, generator=random).bfloat16() for n, h in ((1, 4), (40, 2), (40, 2)))
    table, lens, scale = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32), 128**-0.5
    slots = torch.tensor([int(table[0, t // 16]) * 16 + t % 16 for t in range(40)])
    form, transform = KVCacheFormat(CastArgs("e4m3", 32, "ue8m0"), heads=2, layout="block_wide"), HadamardArgs(scale)
    k_cache, v_cache = form.new(3), form.new(3)
    to = KVCacheOut(k_cache, slots, form, v_cache=v_cache)
    plain = [torch.zeros(48, 2, 128).index_copy_(0, slots, x.float()).view(3, 16, 2, 128) for x in (k, v)]
    truth = oracle("paged_attention_grouped", q, *plain, table, lens, scale)

    def error() -> float:
        room = attention_workspace(q, 2, 3)
        out = paged_attention_quantized(q, k_cache, v_cache, table, lens, scale, form, 16, 3, room, hadamard=transform)
        return float((out.double() - truth).abs().max())

    norm_rope_hadamard_quant_store(torch.cat((k, v), 1), hadamard=transform, cast=form.cast, out=to)
    assert error() < 0.05  # E4M3 rounds by up to 1/16: of values of size 1, averaged over 40 tokens, less
    store_kv(torch.cat((k, v), 1), to)  # keys that are not transformed
    assert error() > 0.1
