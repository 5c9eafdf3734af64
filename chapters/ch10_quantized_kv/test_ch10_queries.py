"""Queries in the launch that stores keys and values: right, refused where they make no sense, and from Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chapters.ch10_quantized_kv.query_checks import check_queries
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    QueriesOut,
    RopeArgs,
    cos_sin_table,
    norm_rope_hadamard_quant_store,
    qk_norm_rope_cache_write,
)
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

BF16 = torch.bfloat16
FORM = KVCacheFormat(CastArgs("e4m3", 32, "ue8m0"), heads=2)
X = torch.randn(3, 9, 128, generator=torch.Generator().manual_seed(1)).to(BF16)  # 5 of Q, 2 of K, 2 of V
WEIGHTS = torch.rand(2, 128, generator=torch.Generator().manual_seed(2)).to(BF16).unbind(0)
TABLE, PLACES = cos_sin_table(50, 1e6), torch.arange(3)


def test_queries(registered_backend: Backend) -> None:
    check_queries(registered_backend)


def test_queries_of_the_reference() -> None:
    check_queries(Backend("reference"))


def store(queries: QueriesOut | None, x: torch.Tensor = X, norm: bool = True, **options: Any) -> KVCacheOut:
    to = KVCacheOut(FORM.new(2), PLACES, FORM, FORM.new(2), queries=queries, **options)
    keys = NormArgs(WEIGHTS[1]) if norm else None
    norm_rope_hadamard_quant_store(x, keys, RopeArgs(PLACES, TABLE), HadamardArgs(0.1), FORM.cast, to)
    return to


def test_queries_have_the_bits_of_chapter_4() -> None:
    q = torch.empty(3, 5, 128, dtype=BF16)
    with_queries, without = store(QueriesOut(q, WEIGHTS[0])), store(None, X[:, 5:])
    assert_same_bits(with_queries.cache, without.cache)
    k_cache, v_cache = torch.zeros(2, 1, 16, 2, 128, dtype=BF16).unbind(0)
    packed, (of_q, of_k) = X.flatten(1), WEIGHTS
    expected, _ = qk_norm_rope_cache_write(packed, of_q, of_k, TABLE, PLACES, PLACES, k_cache, v_cache, 1e-6, 5)
    assert_same_bits(q, expected)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: store(QueriesOut(X[:, :5].clone(), WEIGHTS[0]), out=X.clone(), out_stage="norm"),
     "KVCacheOut has out and queries; with queries no other head is given back."),
    (lambda: store(QueriesOut(X[:, :5].clone())), "one of norm and queries.weight is None; Q and K are both"),
    (lambda: store(QueriesOut(X[:, :5].clone(), WEIGHTS[0]), norm=False), "one of norm and queries.weight is None; Q"),
    (lambda: store(QueriesOut(X[:, :4].clone(), WEIGHTS[0])), "x has 9 heads; the format asks for 8, as many of K as"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=range(len(REFUSED)))
def test_queries_that_make_no_sense_are_refused_by_python(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        call()


BESIDE = "; queries stand beside keys that go to a cache, and to nothing else."
SHAPE = "; it must be contiguous [3, queries, 128], for fewer queries than x has heads, 9."
WITHIN_X = X.view(-1)[: 3 * 5 * 128].view(3, 5, 128)
REFUSED_BELOW: list[tuple[dict[str, Any], str]] = [
    ({"query_out": None}, "query_weight is given without query_out."),
    ({"query_weight": None}, "query_weight and norm_weight go together; one of them is missing."),
    ({"query_weight": WEIGHTS[0][:64]}, "query_weight has shape [64] and strides [1]; it must be [128], the size of"),
    ({"query_weight": WEIGHTS[0].float()}, "query_weight has dtype Float and x BFloat16; they must have one dtype."),
    ({"query_out": X[:, :5].float()}, "query_out has dtype Float and x BFloat16; they must have one dtype."),
    ({"query_out": X[:2, :5].clone()}, f"query_out has shape [2, 5, 128] and strides [640, 128, 1]{SHAPE}"),
    ({"query_out": X.clone()}, f"query_out has shape [3, 9, 128] and strides [1152, 128, 1]{SHAPE}"),
    ({"query_out": X[:, :5]}, f"query_out has shape [3, 5, 128] and strides [1152, 128, 1]{SHAPE}"),
    ({"query_out": torch.zeros(3, 4, 128, dtype=BF16)}, "x has 5 heads; with v_cache it must have as many of K as of"),
    ({"query_out": WITHIN_X}, "query_out and x share memory; query_out is written"),
    ({"out": X.clone(), "stage": "norm"}, f"query_out is given with out{BESIDE}"),
    ({"k_cache": None, "v_cache": None, "slot_mapping": None}, f"query_out is given without k_cache{BESIDE}"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED_BELOW, ids=range(len(REFUSED_BELOW)))
def test_queries_that_make_no_sense_are_refused_by_the_operator(change: dict[str, Any], sentence: str) -> None:
    flat: dict[str, Any] = {
        "norm_weight": WEIGHTS[1], "eps": 1e-6, "cos_sin": TABLE, "positions": PLACES, "values": "e4m3", "group": 32,
        "scale_format": "ue8m0", "k_cache": FORM.new(2), "v_cache": FORM.new(2), "slot_mapping": PLACES,
        "cache_layout": list(FORM.strides), "query_weight": WEIGHTS[0], "query_out": torch.zeros(3, 5, 128, dtype=BF16),
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=re.escape(f"norm_rope_hadamard_quant_store: {sentence}")):
        torch.ops.qwen_cuda.norm_rope_hadamard_quant_store(X, **(flat | change))
