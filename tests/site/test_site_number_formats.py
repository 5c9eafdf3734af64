"""Chapter 10's figure of small floats: its codes, neighbours and roundings are those of qwen3_ref.narrow_floats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen3_ref.narrow_floats import (
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    ue8m0_at_least,
)

LESSON = "/chapters/ch10_quantized_kv/"
FIGURE = "[data-figure=number-formats]"
DECODE = {"E4M3": decode_e4m3, "E2M1": decode_e2m1, "UE8M0": decode_ue8m0}
ENCODE = {"E4M3": encode_e4m3, "E2M1": encode_e2m1, "UE8M0": lambda x: ue8m0_at_least(x.double())}
CODES = {"E4M3": (0, 1, 7, 8, 0x4D, 0x7E, 0x81, 0xFE), "E2M1": (0, 1, 5, 7, 9, 15), "UE8M0": (1, 125, 127)}


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def fact(page: Any, name: str) -> str:
    return str(page.locator(f"{FIGURE} dd.nf-{name}").inner_text())


def choose(page: Any, name: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile(rf"^{name}$")).click()


def put(page: Any, label: str, value: int) -> None:
    page.locator(f"{FIGURE} input[type=range][aria-label='{label}']").fill(str(value))


@pytest.mark.parametrize("name", CODES)
def test_codes_of_the_figure_stand_for_what_they_stand_for(name: str, visit: Callable[..., Any]) -> None:
    page = visit(scheme="dark").open(LESSON)
    choose(page, name)
    for code in CODES[name]:
        put(page, "code", code)
        value = float(DECODE[name](torch.tensor([code], dtype=torch.uint8))[0])
        assert number(fact(page, "value")) == pytest.approx(value, rel=1e-5)
        digits = "".join(page.locator(f"{FIGURE} .nf-bits text.cell").all_text_contents())
        assert int(digits, 2) == code
        for place in (0, 30, 50, 70, 100, 130, 150, 170, 200):
            put(page, "a number between its neighbours", place)
            x = number(page.locator(f"{FIGURE} .fig-slider.q output").inner_text())
            to = float(DECODE[name](ENCODE[name](torch.tensor([x])))[0])
            if place not in (50, 150) or len(str(x)) < 7:  # a tie is one if all its digits are shown
                assert number(fact(page, "rounded")) == pytest.approx(to, rel=1e-5), (code, place, x)


def test_every_positive_number_of_a_format_is_drawn(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    for name, size in (("E4M3", 256), ("E2M1", 16), ("UE8M0", 256)):
        choose(page, name)
        ticks = page.locator(f"{FIGURE} .nf-tick[data-value]")
        drawn = {float(value) for value in ticks.evaluate_all("all => all.map(tick => tick.dataset.value)")}
        numbers = DECODE[name](torch.arange(size, dtype=torch.uint8)).tolist()
        assert drawn == {value for value in numbers if value > 0 and math.isfinite(value)}


@pytest.mark.parametrize("width", [1280, 390])
def test_a_bit_can_be_flipped(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    before = number(fact(page, "value"))
    page.locator(f"{FIGURE} rect[data-bit='0']").click()
    assert number(fact(page, "value")) == -before
    put(page, "code", 0x7F)
    assert fact(page, "value") == "NaN"
    said = page.locator(f"{FIGURE} input[aria-label=code]").get_attribute("aria-valuetext")
    assert "01111111 is no number" in said
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_figures_of_chapter_10_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    for name in ("number-formats", "cache-layouts", "hadamard"):
        assert len(one.page.locator(f"[data-figure={name}]").inner_text().split()) > 40
