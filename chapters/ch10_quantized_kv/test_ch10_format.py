"""KVCacheFormat: no two bytes share a place, views and strides say the same, and what was stored can be read."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch10_quantized_kv.combinations import casts
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat, Layout
from qwen_cuda.operators import KVCacheOut, load_kv, norm_rope_hadamard_quant_store, store_kv
from qwen_cuda.testing.strategies import examples
from qwen_cuda.testing.ulp import assert_same_bits

FP8 = CastArgs("e4m3", 32, "ue8m0")

formats = st.builds(
    KVCacheFormat,
    st.sampled_from(casts()),
    head_dim=st.sampled_from([128, 512]),
    heads=st.integers(1, 5),
    block_size=st.sampled_from([8, 16]),
    layout=st.sampled_from(get_args(Layout)),
    alignment=st.sampled_from([4, 16, 32, 256]),
)


@examples(25)
@given(formats)
def test_every_row_has_bytes_of_its_own(form: KVCacheFormat) -> None:
    """Rows are numbered into a block by their spans: views show the same numbers, and nothing is written twice."""
    owners = torch.full((2, form.block_bytes), -1)
    for place, head in product(range(form.block_size), range(form.heads)):
        row = place * form.heads + head
        for span, kind in zip(form.spans(place, head), (0, 1), strict=True):
            assert 0 <= span.start < span.stop <= form.block_bytes
            assert bool((owners[1, span.start : span.stop] == -1).all()), "two rows share a byte"
            owners[1, span.start : span.stop] = 2 * row + kind
    data, scales = form.views((owners % 251).to(torch.uint8))
    rows = torch.arange(form.rows).view(form.block_size, form.heads, 1)
    assert torch.equal(data[1].long(), (2 * rows % 251).expand_as(data[1]))
    assert torch.equal(scales[1].long(), ((2 * rows + 1) % 251).expand_as(scales[1]))
    assert form.shape(2) == (2, form.block_bytes) == tuple(form.new(2).shape)


@examples(60)
@given(formats)
def test_what_must_be_aligned_is(form: KVCacheFormat) -> None:
    """Records or sections, blocks, scales of four bytes; a record or section has less than a unit of padding."""
    block_size, data_row, scale_row, offset = form.strides
    assert form.block_bytes % form.alignment == 0
    assert (data_row if form.layout == "token_interleaved" else offset) % form.alignment == 0
    assert not any(number % form.cast.scale_dtype.itemsize for number in (scale_row, offset, form.block_bytes))
    used = form.rows * (form.data_bytes + form.scale_bytes)
    sections = form.rows if form.layout == "token_interleaved" else 2
    assert used <= form.block_bytes < used + sections * form.alignment
    assert block_size == form.block_size


def test_bytes_of_a_latent_of_512() -> None:
    """With scales of one byte for 32 elements, packed: 512 + 16. A multiple of 16 already."""
    form = KVCacheFormat(FP8, head_dim=512, alignment=4)
    assert (form.data_bytes, form.scale_bytes, form.data_row_stride) == (512, 16, 528)
    assert KVCacheFormat(CastArgs("e2m1", 16, "e4m3"), 512).data_row_stride == 256 + 32
    assert KVCacheFormat(FP8, 128, heads=8, layout="block_wide").block_bytes == 16 * 8 * (128 + 4)


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("cast", casts(), ids=str)
def test_a_stored_prefix_is_loaded_as_what_its_codes_stand_for(cast: CastArgs, layout: Layout) -> None:
    form = KVCacheFormat(cast, heads=3, layout=layout)
    rows = torch.randn(20, 3, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:20]
    cache, out = form.new(4), torch.empty_like(rows)
    stored = store_kv(rows, KVCacheOut(cache, slots, form, out=out, out_stage="cast_back"))
    assert stored is out
    assert_same_bits(load_kv(cache, slots, form), out)
    directly = norm_rope_hadamard_quant_store(rows, cast=CastArgs(cast.values, cast.group, cast.scales, cast_back=True))
    assert_same_bits(directly, out)  # type: ignore[arg-type]
    loaded = load_kv(cache, torch.tensor([-1, int(slots[0]), 64, 2**40]), form, torch.float16)
    assert (loaded.dtype, loaded.shape) == (torch.float16, (4, 3, 128))
    assert loaded.isnan().all(-1).all(-1).tolist() == [True, False, True, True]


def test_a_cache_without_blocks_gives_nan() -> None:
    form = KVCacheFormat(FP8, heads=2)
    assert bool(load_kv(form.new(0), torch.tensor([0, -1], dtype=torch.int32), form).isnan().all())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cast": CastArgs("e4m3", 32, "ue8m0", cast_back=True)}, "cast has cast_back; a cache holds codes"),
        ({"head_dim": 64}, "head_dim is 64; it must be 128 or 512."),
        ({"heads": 0}, "heads is 0; it must be at least 1."),
        ({"block_size": 12}, "block_size is 12; it must be a power of two from 8 to 256."),
        ({"block_size": 4}, "block_size is 4; it must be a power of two from 8 to 256."),
        ({"layout": "tokenwise"}, "layout is 'tokenwise'; it must be 'token_interleaved' or 'block_wide'."),
        ({"alignment": 2}, "alignment is 2; it must be a power of two from 4 to 256."),
        ({"alignment": 24}, "alignment is 24; it must be a power of two from 4 to 256."),
    ],
)
def test_a_format_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        KVCacheFormat(**({"cast": FP8} | change))


def test_a_cache_of_another_format_is_refused() -> None:
    form = KVCacheFormat(FP8)
    for cache in (form.new(2)[:, :-16], form.new(2).to(torch.int8), form.new(2)[0]):
        with pytest.raises(
            ValueError, match=r"^cache has dtype u?int8 and shape .*; its format asks for uint8 \[num_bl"
        ):
            load_kv(cache, torch.arange(2), form)
    with pytest.raises(ValueError, match=r"^slots has dtype torch.float32 and shape \[2\]; it must be \[n\], int64 or"):
        load_kv(form.new(1), torch.ones(2), form)
