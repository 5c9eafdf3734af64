"""The formulas: definitions, roundings, properties. Most checks are in `formula_checks` and `attention_checks`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3 import modeling_qwen3 as hf

from chapters.ch01_math_reference.attention_checks import (
    ATTENTION_CHECKS,
    assert_close64,
    attention_truth,
    merged,
    random_qkv,
)
from chapters.ch01_math_reference.formula_checks import FORMULA_CHECKS, random_rows
from chapters.ch01_math_reference.ulp import largest_ulp_error, ulp
from qwen3_ref import functional as F

NAN = float("nan")


@pytest.mark.parametrize("check", [*FORMULA_CHECKS, *ATTENTION_CHECKS], ids=lambda check: check.__name__)
def test_formula(check: Callable[[], None]) -> None:
    check()


def test_ulp_is_the_gap_to_the_next_number() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.tensor([1.0, 1.5, -1.99, 2.0, 0.25, 3e-3, 100.0], dtype=dtype)
        gap = torch.nextafter(x.abs(), torch.full_like(x, torch.inf)).double() - x.abs().double()
        assert torch.equal(ulp(x.double(), dtype), gap)
        assert largest_ulp_error(x, x.double()) == 0
        assert largest_ulp_error(x, x.double() + gap) == pytest.approx(1, abs=0.5)
    assert not largest_ulp_error(torch.tensor([NAN]), torch.zeros(1).double()) <= 1e9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_has_the_bits_of_transformers(dtype: torch.dtype) -> None:
    for size in (16, 127, 1024):
        x, weight = random_rows(dtype, size, seed=size)
        norm = hf.Qwen3RMSNorm(size, eps=1e-5)
        norm.weight.data = weight
        assert torch.equal(F.rms_norm(x, weight, 1e-5), norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rope_has_the_bits_of_transformers(dtype: torch.dtype) -> None:
    config = hf.Qwen3Config(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    positions = torch.tensor([0, 1, 77, 4096, 100_000, 131_071])
    x = torch.randn(2, 3, len(positions), 128, generator=torch.Generator().manual_seed(2)).to(dtype)
    cos, sin = hf.Qwen3RotaryEmbedding(config)(x, positions[None])
    want, _ = hf.apply_rotary_pos_emb(x, x, cos, sin)
    assert torch.equal(F.apply_rope(x, *F.rope_cos_sin(positions, 128, 1e6, dtype)), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hf_attention_is_no_worse_than_its_two_roundings(dtype: torch.dtype) -> None:
    """Naive attention rounds scores and weights to the model's dtype; the online form rounds once."""
    q, k, v = (x.to(dtype) for x in random_qkv(4, 2, 3, 40, seed=3))
    mask = F.causal_mask(3, 40)
    truth = attention_truth(q, k, v, 8**-0.5, mask)
    naive = float((F.attention_naive(q, k, v, 8**-0.5, mask).double() - truth).abs().max())
    online = float((F.attention_online(q, k, v, 8**-0.5, mask).double() - truth).abs().max())
    eps = torch.finfo(dtype).eps
    # |v| < 4: a score error of eps/2 · |score| (< 8) moves a weight by as much of itself; then two more half units.
    assert naive <= 4 * (8 + 2) * eps / 2
    # One rounding of |o| < 4 (half of 2 eps) and float32 work over 40 terms.
    assert online <= eps + 4 * 60 * 2.0**-24
    assert online <= naive or dtype == torch.float32


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_partition_in_any_order_equals_one_pass(data: st.DataObject) -> None:
    """Random cuts (empty partitions, single keys), random masks (dead partitions, dead queries), any merge order."""
    keys = data.draw(st.integers(1, 40), label="keys")
    queries = data.draw(st.integers(1, 4), label="queries")
    group_size = data.draw(st.sampled_from([1, 2, 4, 7, 8]), label="group size")
    cuts = data.draw(st.lists(st.integers(0, keys), max_size=6), label="cuts")
    seed = data.draw(st.integers(0, 2**16), label="seed")
    spread = data.draw(st.sampled_from([0.1, 1.0, 30.0]), label="spread")
    q, k, v = random_qkv(2 * group_size, 2, queries, keys, seed, spread, batch=1, dim=4)
    visible = data.draw(st.lists(st.booleans(), min_size=queries * keys, max_size=queries * keys), label="mask")
    mask = torch.tensor(visible).view(queries, keys)
    truth = attention_truth(q, k, v, 0.5, mask)
    assert_close64(merged(q, k, v, 0.5, cuts, mask, seed), truth)
    block = data.draw(st.integers(1, keys + 1), label="block")
    assert_close64(F.attention_online(q, k, v, 0.5, mask, block), truth)
    alive, naive = mask.any(-1), F.attention_naive(q, k, v, 0.5, mask)
    assert_close64(naive[:, :, alive], truth[:, :, alive])
    assert naive[:, :, ~alive].isnan().all(), "a query that may read nothing has no average"


def test_merge_is_associative_and_commutative() -> None:
    q, k, v = random_qkv(2, 1, 3, 9, seed=8, spread=10)
    a, b, c = (
        F.attention_partition(q, k[:, :, part], v[:, :, part], 1.0) for part in (slice(0, 2), slice(2, 2), slice(2, 9))
    )
    left, right = F.merge_partials(F.merge_partials(a, b), c), F.merge_partials(a, F.merge_partials(b, c))
    swapped = F.merge_partials(c, a)
    for one, two, three in zip(left, right, swapped, strict=True):
        assert_close64(one, two)
        assert_close64(one, three)


def test_an_empty_partition_is_the_neutral_element() -> None:
    q, k, v = random_qkv(2, 1, 3, 9, seed=9)
    empty = F.attention_partition(q, k[:, :, :0], v[:, :, :0], 1.0)
    assert torch.isneginf(empty.m).all()
    assert not empty.l.any()
    assert not empty.o.any()
    whole = F.attention_partition(q, k, v, 1.0)
    for merged_part, part in zip(F.merge_partials(empty, whole), whole, strict=True):
        assert torch.equal(merged_part, part)
    assert not F.merge_partitions([empty, empty]).any()
    assert F.attention_online(q, k[:, :, :0], v[:, :, :0], 1.0).shape == q.shape


def _poisoned(shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    x.view(-1)[1] = NAN
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_is_never_swallowed(dtype: torch.dtype) -> None:
    """One NaN in an input reaches every output that depends on it, and no other."""
    x, ones = _poisoned((2, 4)).to(dtype), torch.ones(2, 4, dtype=dtype)
    for rounding in ("hf", "fused"):
        normed = F.rms_norm(x, ones[0], 1e-6, rounding)
        assert normed[0].isnan().all()
        assert not normed[1].isnan().any()
        for product in (F.swiglu(x, ones, rounding), F.swiglu(ones, x, rounding)):
            assert product.isnan().nonzero().tolist() == [[0, 1]]
    cos, sin = F.rope_cos_sin(torch.arange(2), 4, 1e6, dtype)
    assert F.apply_rope(x, cos, sin).isnan().nonzero().tolist() == [[0, 1], [0, 3]]
    weights = F.softmax(x)
    assert weights[0].isnan().all()
    assert not weights[1].isnan().any()
    q, kv = torch.ones(1, 2, 3, 4, dtype=dtype), torch.ones(1, 1, 8, 4, dtype=dtype)
    bad = _poisoned((1, 1, 8, 4)).to(dtype)
    for attention in (F.attention_naive, F.attention_online):
        assert attention(q, bad, kv, 0.5).isnan().all()
        assert attention(q, kv, bad, 0.5).isnan().any(-1).all()
        assert attention(_poisoned((1, 2, 3, 4)).to(dtype), kv, kv, 0.5)[0, 0, 0].isnan().all()
    assert F.attention_online(q, bad, kv, 0.5, block=2).isnan().all()


def test_masked_infinities_do_not_leak() -> None:
    """A key that no query may read changes nothing, whatever it holds (a recycled cache page may hold anything)."""
    q, k, v = random_qkv(2, 1, 2, 6, seed=10)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4] = False
    want = attention_truth(q, k, v, 1.0, mask)
    for poison in (torch.inf, -torch.inf, NAN):
        k[:, :, 4] = poison
        assert_close64(F.attention_naive(q, k, v, 1.0, mask), want)
        assert_close64(F.attention_online(q, k, v, 1.0, mask, 2), want)


def test_refusals_are_sentences() -> None:
    q, k, v = random_qkv(2, 1, 1, 3, seed=0)
    with pytest.raises(ValueError, match="block is 0; it must be at least 1"):
        F.attention_online(q, k, v, 1.0, block=0)
    with pytest.raises(ValueError, match="partials is empty"):
        F.merge_partitions([])
