"""Quantisation to int8: error, ties, zero groups, refusals; and a head that is saved, loaded and tied to nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from chapters.ch08_w8a16_head.quantize import FORMAT, GROUPS, VERSION, HeadFileError, W8Head, quantize_w8
from qwen3_ref.quantized import dequantize_w8
from qwen_cuda.operators import argmax_workspace
from qwen_cuda.testing.numbers import DTYPES, KINDS, Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import dtypes, examples, seeds
from qwen_cuda.testing.ulp import assert_same_bits


def sample(n: int = 40, k: int = 256, seed: int = 1, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return rows_of_numbers((n, k), dtype, seed=seed) / 8


@examples(60)
@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(GROUPS), dtypes(), st.sampled_from(KINDS), seeds())
def test_a_weight_becomes_the_nearest_multiple_of_its_scale(
    n: int, groups: int, group: int, dtype: torch.dtype, kind: Kind, seed: int
) -> None:
    """Half a step of its group off at most, but for the rounding of scale and quotient: 127 steps of 2^-23 each."""
    weight = rows_of_numbers((n, groups * group), dtype, seed=seed, kind=kind)
    qweight, scales = quantize_w8(weight, group)
    assert (qweight.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert (qweight.shape, scales.shape) == (weight.shape, (n, groups))
    assert int(qweight.abs().max()) <= 127
    error = (dequantize_w8(qweight, scales.double()) - weight.double()).abs().unflatten(1, (groups, group))
    assert bool((error <= scales.double()[:, :, None] * (0.5 + 127 * 2.0**-22)).all())


def test_the_largest_weight_of_a_group_becomes_127() -> None:
    weight = sample()
    for group in (*GROUPS, None):
        qweight, scales = quantize_w8(weight, group)
        size = group or 256
        assert bool((qweight.unflatten(1, (-1, size)).abs().amax(-1) == 127).all())
        assert_same_bits(scales, weight.float().unflatten(1, (-1, size)).abs().amax(-1) / 127)


def test_halves_go_to_the_even_number() -> None:
    """With 127 as the largest the scale is 1, and weights are their own quotients."""
    halves = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5])
    weight = torch.zeros(1, 32)
    weight[0, :8] = halves
    assert quantize_w8(weight, 32)[0][0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


def test_a_group_of_zeros_stays_zero_and_so_do_numbers_without_a_scale() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 3], weight[1, 40] = 1.0, 1e-45  # the second divided by 127 is below every float
    qweight, scales = quantize_w8(weight, 32)
    assert scales[0, 1] == scales[1, 0] == scales[1, 1] == 0.0
    assert qweight.count_nonzero() == 1
    assert not dequantize_w8(qweight, scales).isnan().any()


def test_subnormal_scales_stay_inside_a_byte() -> None:
    weight = torch.linspace(-1, 1, 32)[None] * 200 * 2.0**-149
    qweight, scales = quantize_w8(weight, 32)
    assert float(scales) > 0
    assert int(qweight.abs().max()) <= 127


def test_smaller_groups_err_less_and_take_more_bytes() -> None:
    """On weights with a few outliers, as those of real heads."""
    weight = sample(64, 512, dtype=torch.float32)
    weight[::7, ::50] *= 20
    figures = []
    for group in (None, 128, 64, 32):
        head = W8Head.of(weight, group)
        figures.append((float((head.dequantized() - weight).square().mean()), head.nbytes))
        assert head.nbytes == weight.numel() * (1 + 4 / (group or 512))
    assert figures == sorted(figures, key=lambda one: (-one[0], one[1]))
    assert figures[0][0] > 4 * figures[3][0]


def test_rows_are_quantised_in_parts_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = sample(50)
    whole = quantize_w8(weight)
    monkeypatch.setattr("chapters.ch08_w8a16_head.quantize.ROWS_AT_ONCE", 7)
    for one, other in zip(quantize_w8(weight), whole, strict=True):
        assert_same_bits(one, other)


REFUSED: list[tuple[Any, Any, str]] = [
    (torch.ones(4), 128, "weight has shape [4]; it must be a matrix [n, k] with elements."),
    (torch.ones(0, 128), 128, "weight has shape [0, 128]; it must be a matrix [n, k] with elements."),
    (torch.ones(2, 128).double(), 128, "weight has dtype torch.float64; it must be float32, float16 or bfloat16."),
    (torch.ones(2, 128).int(), 128, "weight has dtype torch.int32; it must be float32, float16 or bfloat16."),
    (torch.ones(2, 100), 128, "group is 128; it must be 32, 64 or 128 and divide the 100 columns of weight, or None"),
    (torch.ones(2, 128), 16, "group is 16; it must be 32, 64 or 128 and divide the 128 columns of weight"),
    (torch.ones(2, 128), 0, "group is 0; it must be"),
    (torch.tensor([[1.0] * 64, [torch.nan] * 64]), 32, "weight holds NaN or infinity in row 1, group 0, which no"),
    (torch.tensor([[1.0] * 63 + [-torch.inf]]), 32, "weight holds NaN or infinity in row 0, group 1, which no scale"),
]


@pytest.mark.parametrize(("weight", "group", "sentence"), REFUSED)
def test_weights_that_cannot_be_quantised_are_refused(weight: Tensor, group: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        quantize_w8(weight, group)


def test_a_head_of_a_tied_embedding_leaves_it_untouched() -> None:
    weight = torch.nn.Parameter(sample())
    before = weight.detach().clone()
    head = W8Head.of(weight)
    head.qweight.zero_()
    assert_same_bits(weight, before)
    assert not head.scales.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_heads_logits_and_argmax_are_those_of_its_weight(dtype: torch.dtype) -> None:
    head = W8Head.of(sample(dtype=dtype), 64)
    x, gain = rows_of_numbers((3, 256), dtype, seed=2), norm_weight(256, dtype, seed=3)
    cases: tuple[dict[str, Any], ...] = ({}, {"norm_weight": gain, "eps": 1e-5})
    for options in cases:
        logits = head.logits(x, **options)
        assert logits.dtype == torch.float32
        truth = oracle("w8a16_linear", x, head.qweight, head.scales, **options)
        torch.testing.assert_close(logits.double(), truth, rtol=1e-5, atol=1e-4)
        assert torch.equal(head.argmax(x, argmax_workspace("cpu"), **options), logits.argmax(-1))


@pytest.mark.parametrize("group", [*GROUPS, None])
def test_a_head_comes_back_from_its_file(tmp_path: Path, group: int | None) -> None:
    head = W8Head.of(sample(), group)
    head.save(tmp_path / "head.safetensors")
    again = W8Head.load(tmp_path / "head.safetensors")
    assert_same_bits(again.qweight, head.qweight)
    assert_same_bits(again.scales, head.scales)
    assert again.group == (group or 256)
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"], "a temporary file is left"


def tensors(**changed: Tensor) -> dict[str, Tensor]:
    head = W8Head.of(sample())
    return {"qweight": head.qweight, "scales": head.scales, **changed}


GOOD = {"format": FORMAT, "version": VERSION}
BROKEN: list[tuple[dict[str, Tensor], dict[str, str] | None, str]] = [
    (tensors(), None, "is no int8 head: its metadata must name the format qwen_cuda.w8_head."),
    (tensors(), {"format": "pt"}, "is no int8 head: its metadata must name the format qwen_cuda.w8_head."),
    (tensors(), {**GOOD, "version": "2"}, "is an int8 head of version 2; this program reads version 1: quantise"),
    (tensors(extra=torch.ones(1)), GOOD, "holds extra, qweight, scales; it must hold qweight and scales."),
    ({"scales": torch.ones(1)}, GOOD, "holds scales; it must hold qweight and scales."),
    (tensors(scales=torch.ones(40, 3)), GOOD, "holds qweight [40, 256] torch.int8 and scales [40, 3] torch.float32;"),
    (tensors(scales=torch.ones(40, 16)), GOOD, "holds qweight [40, 256] torch.int8 and scales [40, 16] torch.float32;"),
    (tensors(scales=torch.ones(40, 2).half()), GOOD, "holds qweight [40, 256] torch.int8 and scales [40, 2] torch.fl"),
    (tensors(scales=torch.full((40, 2), torch.nan)), GOOD, "holds scales that are negative, infinite or NaN: quantise"),
    (tensors(scales=torch.full((40, 2), -1.0)), GOOD, "holds scales that are negative, infinite or NaN: quantise"),
]


@pytest.mark.parametrize(("held", "metadata", "sentence"), BROKEN)
def test_a_file_that_is_no_head_is_refused(
    tmp_path: Path, held: dict[str, Tensor], metadata: dict[str, str] | None, sentence: str
) -> None:
    path = tmp_path / "head.safetensors"
    save_file(held, path, metadata=metadata)
    with pytest.raises(HeadFileError) as failure:
        W8Head.load(path)
    assert str(failure.value).startswith(f"{path} {sentence}")


def test_a_head_that_is_missing_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    with pytest.raises(HeadFileError, match="cannot be read"):
        W8Head.load(path)
    W8Head.of(sample()).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(HeadFileError, match="cannot be read"):
        W8Head.load(path)


def test_a_head_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "head.safetensors"
    W8Head.of(sample()).save(path)
    before = path.read_bytes()

    def full(*arguments: object, **options: object) -> None:
        Path(str(arguments[1])).write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr("chapters.ch08_w8a16_head.quantize.save_file", full)
    with pytest.raises(OSError, match="the disk is full"):
        W8Head.of(sample(seed=2)).save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["head.safetensors"]
