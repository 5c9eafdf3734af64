"""Logits have the bits of transformers' Qwen3ForCausalLM (eager attention, CPU), however the tokens are fed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import DynamicCache

from chapters.ch01_math_reference.model_checks import (
    check_cached,
    check_prefill,
    our_chunks,
    their_chunks,
    their_greedy_tokens,
)
from chapters.ch01_math_reference.twins import SHAPES, Twins, make_twins
from qwen3_ref import KVCache, Qwen3, Qwen3Config

GetTwins = Callable[[str, torch.dtype], Twins]
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module")
def get_twins(tmp_path_factory: pytest.TempPathFactory) -> GetTwins:
    made: dict[tuple[Qwen3Config, torch.dtype], Twins] = {}

    def get(shape: str, dtype: torch.dtype) -> Twins:
        key = (SHAPES[shape], dtype)
        if key not in made:
            made[key] = make_twins(tmp_path_factory.mktemp(shape), *key, seed=len(made))
        return made[key]

    return get


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_has_the_bits_of_transformers(get_twins: GetTwins, shape: str, dtype: torch.dtype, batch: int) -> None:
    twins = get_twins(shape, dtype)
    for length in (1, 2, 23):
        check_prefill(twins, batch, length)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decode_has_the_bits_of_transformers(
    get_twins: GetTwins, shape: str, dtype: torch.dtype, batch: int
) -> None:
    twins = get_twins(shape, dtype)
    check_cached(twins, batch, [9] + [1] * 8)  # prefill, then decode
    check_cached(twins, batch, [1] * 6)  # no prefill
    check_cached(twins, batch, [5, 4, 1, 7, 2])  # chunked prefill: several queries over a filled cache


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_threads_change_no_bit_between_the_two(get_twins: GetTwins, dtype: torch.dtype) -> None:
    torch.set_num_threads(2)  # the chapter's other tests run on one
    check_prefill(get_twins("head128", dtype), batch=3)
    check_cached(get_twins("head128", dtype), batch=3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_long_prompt_has_the_bits_of_transformers(get_twins: GetTwins, dtype: torch.dtype) -> None:
    twins = get_twins("head128", dtype)
    check_prefill(twins, batch=1, length=257)
    check_cached(twins, batch=1, chunks=[256, 1, 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [1023, 100_003])
def test_positions_far_from_zero(get_twins: GetTwins, dtype: torch.dtype, offset: int) -> None:
    """Tokens behind a cache that already holds `offset` random keys and values; both models see the same ones."""
    twins = get_twins("group4-theta1e4", dtype)
    tokens = twins.tokens(1, 6, seed=offset)
    ours = KVCache(twins.config, 1, offset + 6, dtype)
    theirs = DynamicCache(config=twins.theirs.config)
    generator = torch.Generator().manual_seed(offset)
    held = (1, twins.config.num_key_value_heads, offset, twins.config.head_dim)
    for layer in range(twins.config.num_hidden_layers):
        k, v = (torch.randn(held, generator=generator).to(dtype) for _ in range(2))
        ours.append(layer, k, v)
        theirs.update(k, v, layer)
    ours.advance(offset)
    chunks = [3, 1, 2]
    want = their_chunks(twins.theirs, tokens, chunks, theirs)
    assert torch.equal(our_chunks(twins.ours, tokens, chunks, ours), want)
    assert not torch.equal(want, their_chunks(twins.theirs, tokens, chunks)), "the keys held must matter"


@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decode_equals_the_full_prefix_in_float64(shape: str) -> None:
    """In float64 the two orders of work agree to float64's rounding: the cache changes no mathematics."""
    model = Qwen3.random(SHAPES[shape], seed=3, dtype=torch.float64)
    tokens = torch.randint(SHAPES[shape].vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    full = model(tokens)
    for chunks in ([10] + [1] * 10, [1] * 20, [7, 7, 6]):
        cached = our_chunks(model, tokens, chunks)
        # Some thousand roundings of 2^-53 on the way, on logits of order one to ten.
        torch.testing.assert_close(cached, full, rtol=0, atol=1e-12 * float(full.abs().max()))
    last = model(tokens, last_only=True)
    assert torch.allclose(last, full[:, -1:], rtol=0, atol=1e-12 * float(full.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decode_is_as_near_the_truth_as_the_full_prefix(shape: str, dtype: torch.dtype) -> None:
    """With one set of weights: |cached − fp64| stays within twice the full prefix's own error, and the argmax agrees
    wherever the truth's margin exceeds that error."""
    model = Qwen3.random(SHAPES[shape], seed=4, dtype=dtype)
    truth_model = Qwen3.from_weights(SHAPES[shape], {name: w.double() for name, w in model.state_dict().items()})
    tokens = torch.randint(SHAPES[shape].vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    truth, full, cached = truth_model(tokens), model(tokens), our_chunks(model, tokens, [10] + [1] * 10)
    own_error, error = (float((logits.double() - truth).abs().max()) for logits in (full, cached))
    assert own_error <= 0.25 * float(truth.std()), "the reference error must not swallow the logits"
    assert error <= 2 * own_error
    best = truth.topk(2).values
    clear = best[..., 0] - best[..., 1] > 2 * max(own_error, error)
    assert clear.float().mean() > 0.2, "a test of the argmax needs clear winners"
    assert torch.equal(cached.argmax(-1)[clear], full.argmax(-1)[clear])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_64_greedy_tokens_equal_generate(get_twins: GetTwins, shape: str, dtype: torch.dtype) -> None:
    twins = get_twins(shape, dtype)
    prompt = twins.tokens(1, 7, seed=5)
    want = their_greedy_tokens(twins.theirs, prompt, 64)
    cache, token, got = twins.cache(1, 7 + 64), prompt, []
    with torch.no_grad():
        for _ in range(64):
            token = twins.ours(token, cache, last_only=True)[:, -1].argmax(-1, keepdim=True)
            got.append(int(token))
    assert got == want
    assert len(set(got)) >= 8, "a stuck model would prove little"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_sdpa_is_as_near_the_truth_as_eager(get_twins: GetTwins, shape: str, dtype: torch.dtype) -> None:
    """The fused attention rounds at other places, so its error against float64 is bounded by twice eager's."""
    twins = get_twins(shape, dtype)
    weights = twins.ours.state_dict()
    sdpa = Qwen3.from_weights(twins.config, weights, attention="sdpa")
    truth_model = Qwen3.from_weights(twins.config, {name: weight.double() for name, weight in weights.items()})
    tokens = twins.tokens(3, 33, seed=6)
    for chunks in ([33], [20, 1, 1, 11]):
        truth = our_chunks(truth_model, tokens, chunks)
        eager_error = float((our_chunks(twins.ours, tokens, chunks).double() - truth).abs().max())
        assert float((our_chunks(sdpa, tokens, chunks).double() - truth).abs().max()) <= 2 * eager_error


def test_sdpa_in_float64_is_exact() -> None:
    for shape, config in SHAPES.items():
        eager = Qwen3.random(config, seed=1, dtype=torch.float64)
        sdpa = Qwen3.from_weights(config, eager.state_dict(), attention="sdpa")
        tokens = torch.randint(config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
        for chunks in ([12], [5, 1, 6], [1] * 12):
            want = our_chunks(eager, tokens, chunks)
            got = our_chunks(sdpa, tokens, chunks)
            assert torch.allclose(got, want, rtol=0, atol=1e-12 * float(want.abs().max())), shape


def test_sequences_of_a_batch_do_not_mix(get_twins: GetTwins) -> None:
    """Each row of a batch equals the row alone (float64, where the blocking of a product cannot hide a leak)."""
    model = Qwen3.random(SHAPES["group2-untied"], seed=2, dtype=torch.float64)
    tokens = torch.randint(300, (3, 11), generator=torch.Generator().manual_seed(0))
    together = our_chunks(model, tokens, [6, 1, 4])
    for row in range(3):
        alone = our_chunks(model, tokens[row : row + 1], [6, 1, 4])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12 * float(alone.abs().max()))


def test_later_tokens_change_no_earlier_logits() -> None:
    model = Qwen3.random(SHAPES["group1-tied"], seed=2, dtype=torch.float64)
    tokens = torch.randint(211, (1, 9), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 211
    one, two = model(tokens), model(changed)
    torch.testing.assert_close(one[:, :5], two[:, :5], rtol=0, atol=0)
    assert (one[:, 5:] != two[:, 5:]).any(-1).all()


def test_refusals_are_sentences() -> None:
    model = Qwen3.random(SHAPES["group1-tied"])
    for shape in ((3,), (1, 0)):
        with pytest.raises(ValueError, match=r"token_ids has shape .*; it must be \[b, t\]"):
            model(torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match="attention is 'flash'; it must be 'eager' or 'sdpa'"):
        Qwen3(SHAPES["group1-tied"], attention="flash")  # type: ignore[arg-type]
