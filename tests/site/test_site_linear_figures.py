"""Chapter 7's interactive figures: bytes and flop are those of the shapes, what is on its way is Little's law."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from chapters.ch07_decode_gemv.candidates import LAYERS

LESSON = "/chapters/ch07_decode_gemv/"
ROOFLINE, LOADS = "[data-figure=linear-roofline]", "[data-figure=loads-in-flight]"
NAMES = {"qkv": "QKV", "o": "O", "gate_up": "gate/up", "down": "down", "head": "head"}


def fact(page: Any, figure: str, name: str) -> float:
    text = page.locator(f"{figure} dd.{name}").inner_text()
    return float(re.sub(r"[^\d.]", "", text.partition(" ")[0]))


def set_slider(page: Any, figure: str, label: str, value: int) -> None:
    """By the keyboard, which moves it by one from its least value."""
    slider = page.locator(f"{figure} input[aria-label='{label}']")
    slider.press("Home")
    for _ in range((value - 1) // 64 if "roofline" in figure else 0):
        slider.press("PageUp")
    for _ in range((value - 1) % 64 if "roofline" in figure else value - 1):
        slider.press("ArrowRight")


def test_the_roofline_counts_each_layer_from_its_shape(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    for rows in (1, 321):
        set_slider(page, ROOFLINE, "rows of x", rows)
        for layer in LAYERS:
            page.locator(f"{ROOFLINE} .fig-radio", has_text=re.compile(rf"^{NAMES[layer.op]}$")).click()
            nbytes = 2 * (layer.n * layer.k + rows * (layer.n + layer.k))
            flop = 2 * rows * layer.n * layer.k
            assert fact(page, ROOFLINE, "lr-bytes") == pytest.approx(nbytes / 1e6, rel=6e-3)
            unit = 1e9 if page.locator(f"{ROOFLINE} dd.lr-flop").inner_text().endswith("G") else 1e6
            assert fact(page, ROOFLINE, "lr-flop") * unit == pytest.approx(flop, rel=6e-3)
            assert fact(page, ROOFLINE, "lr-intensity") == pytest.approx(flop / nbytes, rel=6e-3)
            least = max(nbytes / 4.8e6, flop / 989e6)
            assert fact(page, ROOFLINE, "lr-us") == pytest.approx(least, rel=6e-3)
            label = page.locator(f"{ROOFLINE} svg").get_attribute("aria-label")
            assert ("Memory decides" in label) == (nbytes / 4.8e6 >= flop / 989e6)


def test_loads_in_flight_are_limited_by_registers_and_give_littles_bandwidth(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    for rows, warps, blocks in ((1, 8, 2), (4, 8, 2), (16, 12, 3), (24, 8, 4), (24, 32, 1)):
        for label, value in (("rows of W a warp", rows), ("warps a block", warps), ("blocks an SM", blocks)):
            set_slider(page, LOADS, label, value)
        registers = fact(page, LOADS, "lf-registers")
        assert registers >= 28 + 4 * rows
        fit = min(32, 64 // warps, int(65536 // (32 * warps * registers)))
        held = min(fit, blocks)
        nbytes = held * warps * 32 * rows * 16
        assert (fact(page, LOADS, "lf-fit"), fact(page, LOADS, "lf-warps")) == (fit, held * warps)
        assert fact(page, LOADS, "lf-bytes") == pytest.approx(nbytes / 1024, abs=0.51)
        assert fact(page, LOADS, "lf-speed") == pytest.approx(min(4.8, 132 * nbytes / 600e-9 / 1e12), abs=0.0051)
        said = page.locator(f"{LOADS} svg").get_attribute("aria-label")
        assert ("Not one such block fits" in said) == (fit == 0)
        assert ("blocks fit on an SM" in said) == (0 < fit < blocks)


def test_figures_of_linear_layers_fit_a_phone_and_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    page = visit(width=390).open(LESSON)
    for figure in (ROOFLINE, LOADS):
        texts = page.locator(f"{figure} text")
        assert min(texts.evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    silent = visit(javascript=False)
    silent.page.goto(silent.address + LESSON)
    for figure in (ROOFLINE, LOADS):
        assert len(silent.page.locator(figure).inner_text().split()) > 40
