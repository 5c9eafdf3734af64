"""What fused decode attention over codes refuses, each by its sentence; and the operator as PyTorch sees it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators import HadamardArgs, cos_sin_table, fused_decode_attention_quantized
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed_arguments, shifted
from qwen_cuda.testing.ulp import assert_same_bits

NAME, BF16 = "fused_decode_attention_quantized", torch.bfloat16
BATCH, HEADS, KV_HEADS, PARTITIONS = 2, 4, 2, 3
COLUMNS = (HEADS + 2 * KV_HEADS) * 128
FORM = KVCacheFormat(CastArgs("e4m3", 32, "float32"), heads=KV_HEADS)  # blocks of 32 records of 144 bytes
LAYOUT = WorkspaceLayout(BATCH, HEADS, KV_HEADS, 128, PARTITIONS)
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"merge": "last_block", "prefetch": True})
TENSORS = ("qkv", "q_weight", "k_weight", "cos_sin", "positions", "slot_mapping", "k_cache", "v_cache")


def good(**changes: Any) -> dict[str, Any]:
    """Arguments that are accepted, by name, and changes to them."""
    generator = torch.Generator().manual_seed(1)
    given = {
        "qkv": torch.randn(BATCH, COLUMNS, generator=generator).to(BF16),
        "q_weight": torch.ones(128, dtype=BF16),
        "k_weight": torch.ones(128, dtype=BF16),
        "cos_sin": cos_sin_table(50, 1e6),
        "positions": torch.tensor([4, 20]),
        "slot_mapping": torch.tensor([4, 36], dtype=torch.int32),
        "k_cache": FORM.new(3),
        "v_cache": FORM.new(3),
        "block_table": torch.tensor([[0, -1], [1, 2]], dtype=torch.int32),
        "context_lens": torch.tensor([5, 21], dtype=torch.int32),
        "eps": 1e-6,
        "scale": 0.1,
        "num_heads": HEADS,
        "kv_heads": KV_HEADS,
        "values": "e4m3",
        "group": 32,
        "scale_format": "float32",
        "cache_layout": list(FORM.strides),
        "partition_size": 16,
        "partitions": PARTITIONS,
        "workspace": LAYOUT.new("cpu"),
        "hadamard_scale": 0.1,
    }
    return given | changes


def call(backend: Backend, given: dict[str, Any], **options: Any) -> Tensor:
    out: Tensor = getattr(backend.namespace, NAME)(**placed_arguments(given, backend.device), **options)
    return out


GOOD = good()
QKV, CACHE, TABLE = GOOD["qkv"], GOOD["k_cache"], GOOD["block_table"]
WIDE = torch.zeros(BATCH, COLUMNS + 4, dtype=BF16)[:, :COLUMNS]
ODD = torch.zeros(3 * FORM.block_bytes + 4, dtype=torch.uint8)[4:].view(3, -1)
FP4 = KVCacheFormat(CastArgs("e2m1", 32, "ue8m0"), heads=KV_HEADS)
FOUR_BITS = {
    "values": "e2m1", "scale_format": "ue8m0", "k_cache": FP4.new(3), "v_cache": FP4.new(3),
    "cache_layout": list(FP4.strides),
}  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # The new token.
    ("float32", {"qkv": QKV.float()}, "qkv has dtype Float; it must be float16 or bfloat16."),
    ("one row", {"qkv": QKV[0]}, "qkv has shape [1024]; it must be [tokens, (num_heads + 2 * num_kv_heads) * 128]."),
    ("other heads", {"num_heads": 3}, "qkv has shape [2, 1024]; with 3 heads of Q and, as in k_cache, 2 of K and of V"),
    ("no KV heads", {"kv_heads": 0, "num_heads": 8}, "q has 8 heads and k_cache 0; each KV head must serve 1 to 8 qu"),
    ("rows at 8 bytes", {"qkv": WIDE}, "qkv has strides [1028, 1]; its rows must begin at a multiple of 16 bytes"),
    ("qkv unaligned", {"qkv": shifted(QKV)}, "qkv does not begin at a multiple of 16 bytes; pass qkv.clone()."),
    ("k_weight in fp32", {"k_weight": torch.ones(128)}, "k_weight has dtype Float and qkv BFloat16; they must have on"),
    ("half a weight", {"q_weight": torch.ones(64, dtype=BF16)}, "q_weight has shape [64]; it must be [128], the size"),
    ("cos_sin in bf16", {"cos_sin": GOOD["cos_sin"].bfloat16()}, "cos_sin has dtype BFloat16; it must be float32."),
    ("cos_sin unaligned", {"cos_sin": shifted(GOOD["cos_sin"])}, "cos_sin does not begin at a multiple of 16 bytes"),
    ("floats", {"positions": torch.ones(BATCH)}, "positions has dtype Float; it must be int64 or int32."),
    ("one slot", {"slot_mapping": torch.ones(1).int()}, "slot_mapping has shape [1]; it must be [2], one for each row"),
    ("eps", {"eps": -1.0}, "eps is -1; it must be a finite number, 0 or more."),
    # The caches, and what is read of them.
    ("values", {"values": ""}, 'values is ""; it must be one of "e4m3", "e2m1".'),
    ("scales", {"scale_format": "bf16"}, 'scale_format is "bf16"; it must be one of "ue8m0", "e4m3", "float32".'),
    ("group", {"group": 8}, "group is 8; it must be 16, 32, 64 or 128."),
    ("FP4 in 64", FOUR_BITS | {"group": 64}, 'values is "e2m1" with group 64 and scale_format "ue8m0"; FP4 is either '
     'NVFP4, group 16 with "e4m3", or MXFP4, group 32 with "ue8m0".'),
    ("short layout", {"cache_layout": [16]}, "cache_layout has 1 numbers; it must be block_size, the strides of"),
    ("overlap", {"cache_layout": [16, 140, 140, 128]}, "cache_layout is [16, 140, 140, 128]; with 128 bytes of codes"),
    ("odd rows", {"cache_layout": [8, 148, 148, 128]}, "rows of codes lie 148 bytes apart and blocks 4608; both must"),
    ("16-bit cache", {"k_cache": CACHE.short()}, "k_cache has dtype Short; it must be uint8."),
    ("fewer blocks", {"v_cache": CACHE[:2].clone()}, "v_cache has shape [2, 4608] and k_cache [3, 4608]; they must h"),
    ("odd address", {"v_cache": ODD}, "v_cache does not begin at a multiple of 16 bytes; pass v_cache.clone()."),
    ("infinite", {"hadamard_scale": float("nan")}, "hadamard_scale is nan; it must be finite."),
    ("table of int64", {"block_table": TABLE.long()}, "block_table has dtype Long; it must be int32."),
    ("three lengths", {"context_lens": torch.ones(3).int()}, "context_lens has shape [3]; it must be dense and [2]."),
    ("scale", {"scale": float("inf")}, "scale is inf; it must be a finite number."),
    # The cut.
    ("size 24", {"partition_size": 24}, "partition_size is 24; it must be a multiple of 16."),
    ("no partition", {"partitions": 0}, "partitions is 0; it must be 1 to 65535."),
    ("cluster", {"merge": "cluster"}, 'merge is "cluster" and partitions 3; a cluster merges 2, 4, 8 or 16 of them.'),
    ("merge", {"merge": "blocks"}, 'merge is "blocks"; it must be auto, cluster or last_block.'),
    ("short workspace", {"workspace": LAYOUT.new("cpu")[:-1]}, f"workspace has {LAYOUT.size - 1} elements; it must "),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_an_argument_of_fused_attention_over_codes_is_refused(
    registered_backend: Backend, changes: dict[str, Any], sentence: str
) -> None:
    given = good(**changes)
    before = {name: one.clone() for name, one in given.items() if isinstance(one, Tensor)}
    with pytest.raises(RuntimeError) as failure:
        call(registered_backend, given)
    assert str(failure.value).startswith(f"{NAME}: {sentence}"), str(failure.value)
    for name, one in before.items():
        assert_same_bits(given[name], one)


def test_arguments_of_fused_attention_over_codes_are_accepted(registered_backend: Backend) -> None:
    assert call(registered_backend, good()).isfinite().all()
    assert call(registered_backend, good(**FOUR_BITS)).isfinite().all()


@pytest.mark.parametrize("cache", ["k_cache", "v_cache"])
@pytest.mark.parametrize("name", TENSORS[:6])
def test_a_cache_of_codes_shares_memory_with_nothing(registered_backend: Backend, cache: str, name: str) -> None:
    given = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    like = given[name][:20] if name == "cos_sin" else given[name]  # no larger than a cache
    given[name] = given[cache].view(-1)[: like.nbytes].view(like.dtype).view(like.shape)
    with pytest.raises(RuntimeError, match=f"^{NAME}: {cache} and {name} share memory; {cache} is written"):
        getattr(registered_backend.namespace, NAME)(**given)


@pytest.mark.parametrize("name", ["qkv", "k_cache", "v_cache", "block_table", "context_lens"])
def test_the_workspace_of_fused_attention_over_codes_is_its_own(registered_backend: Backend, name: str) -> None:
    given = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    shared = torch.zeros(LAYOUT.size + 8192, device=registered_backend.device)
    like = given[name]
    given[name] = shared.view(torch.uint8)[: like.nbytes].view(like.dtype).view(like.shape)
    given["workspace"] = shared
    with pytest.raises(RuntimeError, match=f"^{NAME}: workspace and {name} share memory; workspace is written"):
        getattr(registered_backend.namespace, NAME)(**given)


@pytest.mark.parametrize("name", ["qkv", "q_weight", "k_weight", "cos_sin", "workspace"])
def test_fused_attention_over_codes_refuses_gradients(registered_backend: Backend, name: str) -> None:
    given = good()
    given[name].requires_grad_()
    with pytest.raises(RuntimeError, match=rf"^{NAME}: an argument requires a gradient, .*; wrap the call in"):
        call(registered_backend, given)
    with torch.no_grad():
        call(registered_backend, given)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
@pytest.mark.parametrize("name", [*TENSORS[1:], "block_table", "context_lens", "workspace"])
def test_fused_attention_over_codes_refuses_two_devices(name: str) -> None:
    given = {key: v.cuda() if isinstance(v, Tensor) and key != name else v for key, v in good().items()}
    like = "q" if name in ("block_table", "context_lens", "workspace") else "qkv"
    with pytest.raises(RuntimeError, match=rf"^{NAME}: {name} is on cpu and {like} on cuda:0; they must be on one dev"):
        getattr(torch.ops.qwen_cuda, NAME)(**given)


def test_opcheck_of_fused_attention_over_codes(registered_backend: Backend) -> None:
    """PyTorch's own checks: what is mutated, shapes of fakes, tracing; and no sequence is no work."""
    operator = getattr(registered_backend.namespace, NAME)
    for options in OPTIONS:
        given = placed_arguments(good(), registered_backend.device) | options
        torch.library.opcheck(operator.default, (), given)
    rows = ("qkv", "positions", "slot_mapping", "block_table", "context_lens")
    assert operator(**(given | {name: given[name][:0] for name in rows})).shape == (0, HEADS, 128)


def test_compiled_fused_attention_over_codes_has_the_bits_of_eager_code(registered_backend: Backend) -> None:
    """No graph break, the caches are written in place, and what reads them afterwards sees what was written."""

    def layer(given: dict[str, Any]) -> Tensor:
        out: Tensor = getattr(registered_backend.namespace, NAME)(**(given | {"qkv": given["qkv"] * 2}))
        return out + given["k_cache"].sum()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        given = placed_arguments(good(), registered_backend.device)
        results.append((function(given), given["k_cache"], given["v_cache"]))
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (KVCacheFormat(FORM.cast, head_dim=512), "format.head_dim is 512; it must be 128."),
        (KVCacheFormat(FORM.cast, heads=2, alignment=8), "format.alignment is 8; it must be 16 or more, for loads of"),
        (KVCacheFormat(FORM.cast, heads=4), "k_cache has dtype uint8 and shape [3, 4608]; its format asks for uint8 ["),
    ],
    ids=["head_dim", "alignment", "heads"],
)
def test_formats_that_fused_attention_refuses(form: KVCacheFormat, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        public(good(), form)


def public(given: dict[str, Any], form: KVCacheFormat, **options: Any) -> Tensor:
    described = ("kv_heads", "values", "group", "scale_format", "cache_layout", "hadamard_scale")
    kept: dict[str, Any] = {name: value for name, value in given.items() if name not in described}
    return fused_decode_attention_quantized(**kept, format=form, hadamard=HadamardArgs(0.1), **options)


def test_public_fused_attention_over_codes_is_the_operator() -> None:
    for options in OPTIONS:
        one, other = placed_arguments(good(), torch.device("cpu")), placed_arguments(good(), torch.device("cpu"))
        expected = getattr(torch.ops.qwen_cuda, NAME)(**one, **options)
        assert_same_bits(public(other, FORM, **options), expected)
        for name in ("k_cache", "v_cache"):
            assert_same_bits(other[name], one[name])
