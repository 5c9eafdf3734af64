"""Chapter 10's figure of a block: every row and byte lies where KVCacheFormat says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from chapters.ch10_quantized_kv.figures.cache_layouts import CASTS, form_of, token_bytes
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.kv_cache_format import Layout

LESSON = "/chapters/ch10_quantized_kv/"
FIGURE = "[data-figure=cache-layouts]"
SHOWN = {"token_interleaved": "token by token", "block_wide": "codes, then scales"}


def choose(page: Any, text: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile(rf"^{text}$")).click()


def fact(page: Any, name: str) -> float:
    text = page.locator(f"{FIGURE} dd.cl-{name}").inner_text()
    return float(text.replace(",", "").split()[0])


def starts(page: Any, kind: str) -> dict[int, int]:
    """Row → the first byte that is drawn of its codes or scales."""
    found = page.locator(f"{FIGURE} .cl-block rect.cl-{kind}").evaluate_all(
        "all => all.map(one => [Number(one.dataset.row), Number(one.dataset.start)])"
    )
    return {int(row): int(start) for row, start in found}


@pytest.mark.parametrize("layout", get_args(Layout))
def test_rows_of_the_figure_lie_where_the_format_says(layout: Layout, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, SHOWN[layout])
    for name in CASTS:
        choose(page, name)
        form = form_of(name, layout)
        spans = [form.spans(row // form.heads, row % form.heads) for row in range(form.rows)]
        assert starts(page, "codes") == {row: data.start for row, (data, _) in enumerate(spans)}
        assert starts(page, "scales") == {row: scales.start for row, (_, scales) in enumerate(spans)}
        assert fact(page, "bytes") == form.block_bytes
        assert fact(page, "ratio") == pytest.approx(
            token_bytes(form) / cost.kv_bytes_per_token(QWEN3_0_6B), abs=5.001e-3
        )
        bytes_ = page.locator(f"{FIGURE} .cl-record rect[data-address]")
        addresses = {int(one) for one in bytes_.evaluate_all("all => all.map(one => one.dataset.address)")}
        row = int(page.locator(f"{FIGURE} svg.cl-block").get_attribute("aria-valuenow"))
        assert {byte for span in spans[row] for byte in range(*span)} <= addresses


@pytest.mark.parametrize("width", [1280, 390])
def test_a_byte_tells_its_elements_and_their_scale(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    choose(page, "NVFP4")
    record = page.locator(f"{FIGURE} svg.cl-record")
    record.scroll_into_view_if_needed()
    page.locator(f"{FIGURE} .cl-record rect[data-byte='27']").hover(force=True)
    assert "elements 54 (lower half) and 55, as E2M1, of scale 3." in record.get_attribute("aria-valuetext")
    record.focus()
    record.press("End")
    assert "is padding" in record.get_attribute("aria-valuetext")
    block = page.locator(f"{FIGURE} svg.cl-block")
    block.focus()
    block.press("End")
    assert block.get_attribute("aria-valuetext").startswith("Token 15 of the block, head 7: ")
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
