"""What fused decode attention refuses, each by its sentence, and how the two attentions refuse a merge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.operators import cos_sin_table
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed, shifted
from qwen_cuda.testing.ulp import assert_same_bits

NAME, BF16 = "fused_decode_attention", torch.bfloat16
BATCH, HEADS, KV_HEADS, PARTITIONS = 2, 4, 2, 3
COLUMNS = (HEADS + 2 * KV_HEADS) * 128
LAYOUT = WorkspaceLayout(BATCH, HEADS, KV_HEADS, 128, PARTITIONS)
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
        "k_cache": torch.ones(3, 16, KV_HEADS, 128, dtype=BF16),
        "v_cache": torch.ones(3, 16, KV_HEADS, 128, dtype=BF16),
        "block_table": torch.tensor([[0, -1], [1, 2]], dtype=torch.int32),
        "context_lens": torch.tensor([5, 21], dtype=torch.int32),
        "eps": 1e-6,
        "scale": 0.1,
        "num_heads": HEADS,
        "partition_size": 16,
        "partitions": PARTITIONS,
        "workspace": LAYOUT.new("cpu"),
    }
    return given | changes


def call(backend: Backend, given: dict[str, Any], **options: Any) -> Tensor:
    tensors = iter(placed([v for v in given.values() if isinstance(v, Tensor)], backend.device))
    there = [next(tensors) if isinstance(v, Tensor) else v for v in given.values()]
    out: Tensor = getattr(backend.namespace, NAME)(*there, **options)
    return out


def apart(tensor: Tensor, gap: int) -> Tensor:
    """The same numbers in rows that lie `gap` elements further apart."""
    wide = torch.zeros(len(tensor), tensor.shape[1] + gap, dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


GOOD = good()
CACHE, TABLE = GOOD["k_cache"], GOOD["block_table"]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # The new token.
    ("float32", {"qkv": GOOD["qkv"].float()}, "qkv has dtype Float; it must be float16 or bfloat16."),
    ("one row", {"qkv": GOOD["qkv"][0]}, "qkv has shape [1024]; it must be [tokens, (num_heads + 2 * num_kv_heads) *"),
    ("other heads", {"num_heads": 3}, "qkv has shape [2, 1024]; with 3 heads of Q and, as in k_cache, 2 of K and of V"),
    ("rows at 8 bytes", {"qkv": apart(GOOD["qkv"], 4)}, "qkv has strides [1028, 1]; its rows must begin at a multiple "
     "of 16 bytes: pass qkv.contiguous()."),
    ("qkv unaligned", {"qkv": shifted(GOOD["qkv"])}, "qkv does not begin at a multiple of 16 bytes; pass qkv.clone()."),
    ("q_weight unaligned", {"q_weight": shifted(GOOD["q_weight"])}, "q_weight does not begin at a multiple of 16 byt"),
    ("k_weight unaligned", {"k_weight": shifted(GOOD["k_weight"])}, "k_weight does not begin at a multiple of 16 byt"),
    ("k_weight in fp32", {"k_weight": torch.ones(128)}, "k_weight has dtype Float and qkv BFloat16; they must have on"),
    ("cos_sin unaligned", {"cos_sin": shifted(GOOD["cos_sin"])}, "cos_sin does not begin at a multiple of 16 bytes"),
    ("cos_sin apart", {"cos_sin": apart(GOOD["cos_sin"], 2)}, "cos_sin has strides [130, 1]; its rows must begin at a "
     "multiple of 16 bytes: pass cos_sin.contiguous()."),
    ("cos_sin in bf16", {"cos_sin": GOOD["cos_sin"].bfloat16()}, "cos_sin has dtype BFloat16; it must be float32."),
    ("floats", {"positions": torch.ones(BATCH)}, "positions has dtype Float; it must be int64 or int32."),
    ("int16", {"slot_mapping": torch.ones(BATCH).short()}, "slot_mapping has dtype Short; it must be int64 or int32."),
    ("one slot", {"slot_mapping": torch.ones(1).int()}, "slot_mapping has shape [1]; it must be [2], one for each row"),
    ("eps", {"eps": -1.0}, "eps is -1; it must be a finite number, 0 or more."),
    # The caches, and what is read of them.
    ("heads of 64", {"k_cache": CACHE[..., :64]}, "k_cache has shape [3, 16, 2, 64]; it must be [num_blocks, block_si"),
    ("two shapes", {"v_cache": CACHE[:2].clone()}, "v_cache has shape [2, 16, 2, 128] and k_cache [3, 16, 2, 128]; th"),
    ("cache with gaps", {"k_cache": CACHE[:, :8]}, "k_cache has strides [4096, 256, 128, 1]; a cache must be contiguo"),
    ("cache unaligned", {"v_cache": shifted(CACHE)}, "v_cache does not begin at a multiple of 16 bytes; pass v_cache."),
    ("nine heads a KV head", {
        "qkv": torch.zeros(BATCH, (18 + 4) * 128, dtype=BF16), "num_heads": 18,
        "workspace": torch.zeros(10**5),
    }, "q has 18 heads and k_cache 2; each KV head must serve 1 to 8 query heads."),
    ("three for two", {
        "qkv": torch.zeros(BATCH, (3 + 4) * 128, dtype=BF16), "num_heads": 3,
    }, "q has 3 heads and k_cache 2; each KV head must serve 1 to 8 query heads."),
    ("table of int64", {"block_table": TABLE.long()}, "block_table has dtype Long; it must be int32."),
    ("table of one row", {"block_table": TABLE[:1]}, "block_table has shape [1, 2]; it must be [2, max_blocks]."),
    ("table transposed", {"block_table": TABLE.t()}, "block_table has strides [1, 2]; the entries of a row must lie "),
    ("lengths of int64", {"context_lens": torch.ones(BATCH).long()}, "context_lens has dtype Long; it must be int32."),
    ("three lengths", {"context_lens": torch.ones(3).int()}, "context_lens has shape [3]; it must be dense and [2]."),
    ("scale", {"scale": float("inf")}, "scale is inf; it must be a finite number."),
    # The cut.
    ("size 24", {"partition_size": 24}, "partition_size is 24; it must be a multiple of 16."),
    ("no partition", {"partitions": 0}, "partitions is 0; it must be 1 to 65535."),
    ("beyond 32 bits", {"partition_size": 2**29}, "partition_size is 536870912 and partitions 3; their product must b"),
    ("short workspace", {"workspace": LAYOUT.new("cpu")[:-1]}, f"workspace has {LAYOUT.size - 1} elements; it must "
     f"have {LAYOUT.size}: qwen_cuda.operators.attention_workspace makes one."),
    ("16-bit workspace", {"workspace": LAYOUT.new("cpu").half()}, "workspace has dtype Half and strides [1]; it must "),
    ("workspace unaligned", {"workspace": torch.zeros(LAYOUT.size + 1)[1:]}, "workspace does not begin at a multiple"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_an_argument_of_fused_attention_is_refused(
    registered_backend: Backend, changes: dict[str, Any], sentence: str
) -> None:
    given = good(**changes)
    before = {name: one.clone() for name, one in given.items() if isinstance(one, Tensor)}
    with pytest.raises(RuntimeError) as failure:
        call(registered_backend, given)
    assert str(failure.value).startswith(f"{NAME}: {sentence}"), str(failure.value)
    for name, one in before.items():
        assert_same_bits(given[name], one)


def test_the_arguments_that_are_changed_are_accepted(registered_backend: Backend) -> None:
    assert call(registered_backend, good()).isfinite().all()


@pytest.mark.parametrize("merge", ["blocks", "", "Cluster"])
def test_a_merge_that_is_none_is_refused(registered_backend: Backend, merge: str) -> None:
    sentence = rf'merge is "{merge}"; it must be auto, cluster or last_block\.'
    with pytest.raises(RuntimeError, match=f"^{NAME}: {sentence}"):
        call(registered_backend, good(), merge=merge)
    given = good()
    attention = {"q": given["qkv"][:, : HEADS * 128].unflatten(1, (HEADS, 128)).clone()} | {
        name: given[name]
        for name in (
            "k_cache", "v_cache", "block_table", "context_lens", "scale", "partition_size", "partitions", "workspace",
        )
    }  # fmt: skip
    tensors = [v.to(registered_backend.device) if isinstance(v, Tensor) else v for v in attention.values()]
    with pytest.raises(RuntimeError, match=f"^paged_attention_split: {sentence}"):
        registered_backend.namespace.paged_attention_split(*tensors, merge=merge)


@pytest.mark.parametrize("partitions", [1, 3, 32])
def test_a_cluster_of_a_size_that_there_is_not_is_refused(registered_backend: Backend, partitions: int) -> None:
    layout = WorkspaceLayout(BATCH, HEADS, KV_HEADS, 128, partitions)
    given = good(partitions=partitions, workspace=layout.new("cpu"))
    sentence = f'merge is "cluster" and partitions {partitions}; a cluster merges 2, 4, 8 or 16 of them'
    with pytest.raises(RuntimeError, match=f"^{NAME}: {sentence}"):
        call(registered_backend, given, merge="cluster")
    assert call(registered_backend, given, merge="auto").isfinite().all()


@pytest.mark.parametrize("cache", ["k_cache", "v_cache"])
@pytest.mark.parametrize("name", TENSORS[:6])
def test_a_cache_of_fused_attention_shares_memory_with_nothing(
    registered_backend: Backend, cache: str, name: str
) -> None:
    given = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    like = given[name][:40] if name == "cos_sin" else given[name]  # no larger than a cache
    given[name] = given[cache].view(-1).view(like.dtype)[: like.numel()].view(like.shape)
    with pytest.raises(RuntimeError, match=f"^{NAME}: {cache} and {name} share memory; {cache} is written"):
        getattr(registered_backend.namespace, NAME)(*given.values())


@pytest.mark.parametrize("name", ["qkv", "k_cache", "v_cache", "block_table", "context_lens"])
def test_the_workspace_of_fused_attention_is_its_own(registered_backend: Backend, name: str) -> None:
    given = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    shared = torch.zeros(LAYOUT.size + 8192, device=registered_backend.device)
    like = given[name]
    given[name], given["workspace"] = shared.view(like.dtype)[: like.numel()].view(like.shape), shared
    with pytest.raises(RuntimeError, match=f"^{NAME}: workspace and {name} share memory; workspace is written"):
        getattr(registered_backend.namespace, NAME)(*given.values())


@pytest.mark.parametrize("name", ["qkv", "q_weight", "k_weight", "cos_sin", "k_cache", "v_cache", "workspace"])
def test_fused_attention_refuses_gradients(registered_backend: Backend, name: str) -> None:
    given = good()
    given[name].requires_grad_()
    with pytest.raises(RuntimeError, match=rf"^{NAME}: an argument requires a gradient, .*; wrap the call in"):
        call(registered_backend, given)
    with torch.no_grad():
        call(registered_backend, given)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
@pytest.mark.parametrize("name", [*TENSORS[1:], "block_table", "context_lens", "workspace"])
def test_fused_attention_refuses_two_devices(name: str) -> None:
    given = {key: v.cuda() if isinstance(v, Tensor) and key != name else v for key, v in good().items()}
    like = "q" if name in ("block_table", "context_lens", "workspace") else "qkv"
    with pytest.raises(RuntimeError, match=rf"^{NAME}: {name} is on cpu and {like} on cuda:0; they must be on one dev"):
        torch.ops.qwen_cuda.fused_decode_attention(*given.values())
