"""What the operator refuses, each by its sentence, and what its debugging check says of indices."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import qwen_cuda.operators as ops
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed
from qwen_cuda.testing.ulp import assert_same_bits

BF16 = torch.bfloat16
HEADS, KV_HEADS, TOKENS = 3, 2, 4
COLUMNS = (HEADS + 2 * KV_HEADS) * 128


def good() -> dict[str, Any]:
    """Arguments that are accepted."""
    generator = torch.Generator().manual_seed(1)
    return {
        "qkv": torch.randn(TOKENS, COLUMNS, generator=generator).to(BF16),
        "q_weight": torch.ones(128, dtype=BF16),
        "k_weight": torch.ones(128, dtype=BF16),
        "cos_sin": ops.cos_sin_table(50, 1e6),
        "positions": torch.arange(TOKENS),
        "slot_mapping": torch.arange(TOKENS, dtype=torch.int32),
        "k_cache": torch.zeros(3, 16, KV_HEADS, 128, dtype=BF16),
        "v_cache": torch.zeros(3, 16, KV_HEADS, 128, dtype=BF16),
        "eps": 1e-6,
        "num_heads": HEADS,
    }


def call(backend: Backend, arguments: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    tensors = iter(placed([v for v in arguments.values() if isinstance(v, Tensor)], backend.device))
    there = [next(tensors) if isinstance(v, Tensor) else v for v in arguments.values()]
    q, k = backend.namespace.qk_norm_rope_cache_write(*there, **options)
    return q, k


WIDE = torch.zeros(TOKENS, 2 * COLUMNS, dtype=BF16)
CACHE = good()["k_cache"]
SHAPE = "it must be [num_blocks, block_size, num_kv_heads, 128]."
REFUSED: list[tuple[str, str, Any, str]] = [
    ("float32", "qkv", good()["qkv"].float(), "qkv has dtype Float; it must be float16 or bfloat16."),
    ("three dimensions", "qkv", good()["qkv"][None], "qkv has shape [1, 4, 896]; it must be [tokens, (num_heads + 2 *"),
    ("no columns", "qkv", WIDE[:, :0], "qkv has shape [4, 0]; its last dimension must not be empty."),
    ("a head short", "qkv", WIDE[:, : COLUMNS - 128], "qkv has shape [4, 768]; with 3 heads of Q and, as in k_cache, 2 "
     "of K and of V, each of 128, it must have 896 columns."),
    ("gaps in a row", "qkv", WIDE[:, ::2], "qkv has strides [1792, 2]; the elements of a row must lie side by side"),
    ("no heads", "num_heads", 0, "num_heads is 0 and k_cache has 2 heads; at least one of each"),
    ("too many heads", "num_heads", 65532, "num_heads is 65532 and k_cache has 2 heads; at least one of each and at m"),
    ("another number", "num_heads", 4, "qkv has shape [4, 896]; with 4 heads of Q and, as in k_cache, 2 of K and of V"),
    ("too short", "q_weight", torch.ones(64, dtype=BF16), "q_weight has shape [64]; it must be [128], the size of a"),
    ("another dtype", "k_weight", torch.ones(128), "k_weight has dtype Float and qkv BFloat16; they must have one dty"),
    ("gaps", "k_weight", torch.ones(256, dtype=BF16)[::2], "k_weight has gaps between its elements; pass k_weight.con"),
    ("16 bits", "cos_sin", good()["cos_sin"].bfloat16(), "cos_sin has dtype BFloat16; it must be float32."),
    ("half a row", "cos_sin", torch.ones(9, 64), "cos_sin has shape [9, 64]; it must be [max_positions, 128]: 64 cosi"),
    ("no position", "cos_sin", torch.ones(0, 128), "cos_sin has shape [0, 128]; it must be [max_positions, 128]"),
    ("transposed", "cos_sin", torch.ones(128, 128).t(), "cos_sin has strides [1, 128]; the elements of a row must lie"),
    ("floats", "positions", torch.ones(TOKENS), "positions has dtype Float; it must be int64 or int32."),
    ("one too few", "positions", torch.arange(3), "positions has shape [3]; it must be [4], one for each row of qkv."),
    ("two dimensions", "slot_mapping", torch.arange(4)[None], "slot_mapping has shape [1, 4]; it must be [4], one for"),
    ("small integers", "slot_mapping", torch.ones(4, dtype=torch.int16), "slot_mapping has dtype Short; it must be"),
    ("gaps", "slot_mapping", torch.arange(8)[::2], "slot_mapping has gaps between its elements; pass slot_mapping.con"),
    ("three dimensions", "k_cache", CACHE[0], f"k_cache has shape [16, 2, 128]; {SHAPE}"),
    ("heads of 64", "k_cache", CACHE[..., :64], f"k_cache has shape [3, 16, 2, 64]; {SHAPE}"),
    ("no heads", "v_cache", CACHE[:, :, :0], f"v_cache has shape [3, 16, 0, 128]; {SHAPE}"),
    ("blocks of 12", "k_cache", CACHE[:, :12], "k_cache has blocks of 12 tokens; block_size must be a power of two fr"),
    ("blocks of 4", "k_cache", CACHE[:, :4], "k_cache has blocks of 4 tokens; block_size must be a power of two from "),
    ("blocks of 512", "k_cache", torch.zeros(1, 512, 2, 128, dtype=BF16), "k_cache has blocks of 512 tokens; block_si"),
    ("not contiguous", "k_cache", CACHE[:, :8], "k_cache has strides [4096, 256, 128, 1]; a cache must be contiguous"),
    ("another dtype", "v_cache", CACHE.half(), "v_cache has dtype Half and qkv BFloat16; they must have one dtype."),
    ("fewer blocks", "v_cache", CACHE[:2].clone(), "v_cache has shape [2, 16, 2, 128] and k_cache [3, 16, 2, 128]; th"),
    ("negative", "eps", -1e-6, "eps is -1e-06; it must be a finite number, 0 or more."),
    ("NaN", "eps", float("nan"), "eps is nan; it must be a finite number, 0 or more."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "sentence"), [case[1:] for case in REFUSED], ids=[f"{case[1]} {case[0]}" for case in REFUSED]
)
def test_an_argument_of_the_cache_write_is_refused(
    registered_backend: Backend, name: str, value: Any, sentence: str
) -> None:
    arguments = good()
    arguments[name] = value
    before = {key: one.clone() for key, one in arguments.items() if isinstance(one, Tensor)}
    with pytest.raises(RuntimeError) as failure:
        call(registered_backend, arguments)
    assert str(failure.value).startswith(f"qk_norm_rope_cache_write: {sentence}"), str(failure.value)
    for key, one in before.items():
        assert_same_bits(arguments[key], one)


@pytest.mark.parametrize("cache", ["k_cache", "v_cache"])
@pytest.mark.parametrize("name", ["qkv", "q_weight", "k_weight", "cos_sin", "positions", "slot_mapping"])
def test_a_cache_must_not_share_memory_with_what_is_read(registered_backend: Backend, cache: str, name: str) -> None:
    arguments = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    like = arguments[name][:40] if name == "cos_sin" else arguments[name]  # no larger than a cache
    arguments[name] = arguments[cache].view(-1).view(like.dtype)[: like.numel()].view(like.shape)
    with pytest.raises(
        RuntimeError, match=f"^qk_norm_rope_cache_write: {cache} and {name} share memory; {cache} is wri"
    ):
        call(registered_backend, arguments)


def test_the_caches_must_not_be_one(registered_backend: Backend) -> None:
    arguments = {key: v.to(registered_backend.device) if isinstance(v, Tensor) else v for key, v in good().items()}
    arguments["v_cache"] = arguments["k_cache"]
    with pytest.raises(RuntimeError, match=r"^qk_norm_rope_cache_write: k_cache and v_cache share memory"):
        call(registered_backend, arguments)


@pytest.mark.parametrize("name", ["qkv", "q_weight", "k_weight", "cos_sin", "k_cache", "v_cache"])
def test_the_cache_write_refuses_gradients(registered_backend: Backend, name: str) -> None:
    arguments = good()
    arguments[name].requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"^qk_norm_rope_cache_write: an argument requires a gradient, .*; wrap the call in"
    ):
        call(registered_backend, arguments)
    with torch.no_grad():
        call(registered_backend, arguments)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
@pytest.mark.parametrize("name", ["q_weight", "k_weight", "cos_sin", "positions", "slot_mapping", "k_cache", "v_cache"])
def test_the_cache_write_refuses_two_devices(name: str) -> None:
    arguments = {key: v.cuda() if isinstance(v, Tensor) and key != name else v for key, v in good().items()}
    with pytest.raises(
        RuntimeError, match=rf"^qk_norm_rope_cache_write: {name} is on cpu and qkv on cuda:0; they must"
    ):
        torch.ops.qwen_cuda.qk_norm_rope_cache_write(*arguments.values())


BAD_INDICES: list[tuple[list[int], list[int], str]] = [
    ([0, 50, 2, 3], [0, 1, 2, 3], "positions[1] is 50; it must be from 0 to 49, the rows of cos_sin."),
    ([0, 1, 2, -1], [0, 1, 2, 3], "positions[3] is -1; it must be from 0 to 49, the rows of cos_sin."),
    (
        [0, 1, 2, 3],
        [0, 48, 2, 3],
        "slot_mapping[1] is 48; it must be from 0 to 47, the slots of the cache, or -1 to write",
    ),
    ([0, 1, 2, 3], [-1, -1, -2, 3], "slot_mapping[2] is -2; it must be from 0 to 47"),
    (
        [0, 1, 2, 3],
        [7, -1, 9, 7],
        "slot_mapping[3] is 7, and so is slot_mapping[0]; each token needs a slot of its own.",
    ),
]


@pytest.mark.parametrize(("positions", "slots", "sentence"), BAD_INDICES)
def test_the_debugging_check_names_the_bad_index(
    positions: list[int], slots: list[int], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = good() | {"positions": torch.tensor(positions), "slot_mapping": torch.tensor(slots)}
    with pytest.raises(IndexError, match=re.escape(sentence)):
        ops.check_indices(arguments["positions"], arguments["slot_mapping"], 50, 48)
    monkeypatch.delenv("QWEN_CHECK_INDICES", raising=False)
    ops.qk_norm_rope_cache_write(**arguments)
    monkeypatch.setenv("QWEN_CHECK_INDICES", "1")
    before = arguments["k_cache"].clone()
    with pytest.raises(IndexError, match=re.escape(sentence)):
        ops.qk_norm_rope_cache_write(**arguments)
    assert_same_bits(arguments["k_cache"], before)


def test_the_debugging_check_is_content_with_good_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN_CHECK_INDICES", "1")
    ops.qk_norm_rope_cache_write(**(good() | {"slot_mapping": torch.tensor([-1, 47, -1, 0])}))
