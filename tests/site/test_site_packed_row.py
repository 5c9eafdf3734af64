"""Chapter 8's figure of a packed row: its lanes and groups are the kernels', its bits those of the conversion."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from chapters.ch08_w8a16_head.targets import GROUP, K

LESSON = "/chapters/ch08_w8a16_head/"
FIGURE = "[data-figure=packed-row]"
WARP, WORD = 32, 4


def choose(page: Any, width: int) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile(rf"^{width}$")).click()


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def press(page: Any, text: str) -> None:
    page.locator(f"{FIGURE} button", has_text=text).press("Enter")


def columns(page: Any, tone: str) -> set[int]:
    """The first columns of the words that are drawn so."""
    words = page.locator(f"{FIGURE} rect.cell.w.{tone}")
    return {int(column) for column in words.evaluate_all("all => all.map(word => word.dataset.column)")}


def fact(page: Any, name: str) -> int:
    text = page.locator(f"{FIGURE} dd.pr-{name}").inner_text()
    return int(text.replace(",", "").replace("−", "-"))


@pytest.mark.parametrize("width", [4, 16])
def test_a_lane_of_the_figure_loads_the_bytes_that_the_kernel_gives_it(width: int, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, width)
    assert (fact(page, "warp"), fact(page, "loads"), fact(page, "products")) == (32 * width, K // 32 // width, width)
    for lane in (0, 9, 31):
        slider(page).press("Home")
        for _ in range(lane):
            slider(page).press("ArrowRight")
        for step in range(K // (WARP * width)):
            first = step * WARP * width
            own = set(range(first + lane * width, first + (lane + 1) * width, WORD))
            assert columns(page, "chosen") == own
            assert columns(page, "now") == set(range(first, first + WARP * width, WORD)) - own
            group = (first + lane * width) // GROUP
            assert page.locator(f"{FIGURE} text.pr-scale").text_content() == f"s{group}"
            said = str(slider(page).get_attribute("aria-valuetext"))
            assert f"lane {lane} has columns {min(own)} to {min(own) + width - 1}, of group {group};" in said
            press(page, "step")
        while page.locator(f"{FIGURE} button", has_text="back").get_attribute("aria-disabled") == "false":
            press(page, "back")


def test_bits_of_the_figure_are_those_of_the_float(visit: Callable[..., Any]) -> None:
    page = visit(scheme="dark").open(LESSON)
    control = page.locator(f"{FIGURE} input[type=range]")
    for value in (-128, -127, -1, 0, 1, 127):
        control.fill(str(value))
        digits = "".join(page.locator(f"{FIGURE} .pr-bits text.cell").all_text_contents())
        stored, flipped, pattern = digits[:8], digits[8:16], digits[16:]
        assert int(stored, 2) == value % 256
        assert int(flipped, 2) == fact(page, "flipped") == value + 128
        (number,) = struct.unpack(">f", int(pattern, 2).to_bytes(4, "big"))
        assert number == fact(page, "large") == 2**23 + 128 + value
        assert fact(page, "value") == value


@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_can_be_pointed_at(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    choose(page, 16)
    slider(page).scroll_into_view_if_needed()
    word = page.locator(f"{FIGURE} rect[data-column='644']").bounding_box()  # of lane 8, in the second load
    page.mouse.click(word["x"] + word["width"] / 2, word["y"] + word["height"] / 2)
    assert slider(page).get_attribute("aria-valuenow") == "8"
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_packed_row_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
