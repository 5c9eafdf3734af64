"""The interactive figures answer to pointer and keyboard, tell the truth, and say something without JavaScript."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from qwen3_ref import QWEN3_0_6B, cost

LESSON = "/chapters/ch01_math_reference/"
ROPE = "[data-figure=rope-rotation]"
GQA = "[data-figure=gqa-map]"


def whole_dot(distance: int) -> float:
    """q·k over all pairs when every pair holds the same vector, of length 1 in q and 0.8 in k."""
    half = QWEN3_0_6B.head_dim // 2
    return sum(0.8 * math.cos(distance * QWEN3_0_6B.rope_theta ** (-i / half)) for i in range(half))


def fact(page: Any, name: str) -> str:
    """The value behind a name in the list of facts."""
    text = page.locator(f"{ROPE} dt", has_text=name).locator("xpath=following-sibling::dd[1]").inner_text()
    return str(text).replace("−", "-").replace(",", "")


TONE = {"m": "q", "n": "k"}  # whose position it is


def position(page: Any, who: str) -> int:
    return int(page.locator(f"{ROPE} .fig-slider.{TONE[who]} output").inner_text().replace(",", ""))


def set_position(page: Any, who: str, value: int) -> None:
    slider = page.locator(f"{ROPE} .fig-slider.{TONE[who]} input")
    slider.focus()
    slider.press("Home")
    for key, size in (("PageUp", 64), ("ArrowRight", 1)):
        for _ in range(value // size):
            slider.press(key)
        value %= size


def status(page: Any, figure: str, pattern: str) -> str:
    """The sentence that is read aloud, once it matches."""
    line = page.locator(f"{figure} [role=status]")
    line.filter(has_text=re.compile(pattern)).wait_for()
    return str(line.inner_text())


@pytest.mark.parametrize("width", [1280, 390])
def test_rope_dot_product_is_the_one_of_the_formula(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    set_position(page, "m", 75)
    set_position(page, "n", 7)
    assert (position(page, "m"), position(page, "n")) == (75, 7)
    assert float(fact(page, "q·k of all 64 pairs")) == pytest.approx(whole_dot(68), abs=6e-4)


def test_rope_shifting_both_changes_angles_and_not_the_dot_product(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    distance = position(page, "m") - position(page, "n")
    before, turned = fact(page, "q·k of all 64 pairs"), fact(page, "q turns by")
    for name in ("+100", "+1", "−1", "+100"):
        page.locator(f"{ROPE} button", has_text=re.compile(f"^{re.escape(name)}$")).click()
    assert position(page, "m") - position(page, "n") == distance
    assert fact(page, "q turns by") != turned
    assert fact(page, "q·k of all 64 pairs") == before
    assert "stays" in status(page, ROPE, "Both moved")


def test_rope_distance_changes_the_dot_product(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    before = fact(page, "q·k of all 64 pairs")
    page.locator(f"{ROPE} .fig-slider.q input").press("ArrowRight")
    assert fact(page, "q·k of all 64 pairs") != before


def test_rope_key_never_stands_after_its_query(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    set_position(page, "n", 130)
    assert position(page, "m") == 130
    page.locator(f"{ROPE} .fig-slider.q input").press("Home")
    assert (position(page, "m"), position(page, "n")) == (0, 0)


def test_rope_pair_is_chosen_by_keyboard_and_by_pointer(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    hands = page.locator(f"{ROPE} .rope-hands")
    hands.focus()
    hands.press("Home")
    assert fact(page, "a full turn takes") == "6.3 tokens"
    hands.press("End")
    assert fact(page, "a full turn takes") == "5.06 million tokens"
    hands.press("Home")
    for _ in range(3):
        hands.press("ArrowRight")
    assert hands.get_attribute("aria-valuenow") == "3"
    hands.locator("[data-pair='40'] .hit").click()
    assert hands.get_attribute("aria-valuenow") == "40"
    assert "channels 40 and 104" in status(page, ROPE, "Pair 40 ")


def test_rope_vector_follows_the_pointer(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    handle = page.locator(f"{ROPE} .handle.q")
    handle.scroll_into_view_if_needed()
    ring = page.locator(f"{ROPE} .ring").bounding_box()
    x, y = ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(x, y - ring["height"] / 2, steps=8)  # straight up: 90 degrees
    page.mouse.up()
    start, wavelength = 180 / 7, 2 * math.pi * 1e6 ** (14 / 64)
    assert position(page, "m") == pytest.approx((90 - start) / 360 * wavelength, abs=2)
    held = position(page, "m")
    page.mouse.move(x - 60, y)  # the button is up: nothing follows
    assert position(page, "m") == held


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("head", [0, 5, 15])
def test_gqa_pointer_shows_which_kv_head_a_query_head_reads(head: int, width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    page.locator(f"{GQA} [data-head='{head}'] .tile").hover()
    said = status(page, GQA, rf"^Query head {head} reads")
    assert f"⌊{head}/2⌋ = {head // QWEN3_0_6B.group_size}, together with query head {head ^ 1}." in said
    assert page.locator(f"{GQA} .link.chosen").count() == 1
    assert page.locator(f"{GQA} .head.chosen").count() == 2  # the query head and its KV head


def test_gqa_heads_are_walked_by_keyboard(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    heads = page.locator(f"{GQA} .gqa-heads")
    heads.focus()
    heads.press("End")
    assert heads.get_attribute("aria-valuetext") == "query head 15 reads KV head 7"
    heads.press("ArrowLeft")
    heads.press("ArrowLeft")
    assert heads.get_attribute("aria-valuetext") == "query head 13 reads KV head 6"
    heads.press("Home")
    assert heads.get_attribute("aria-valuetext") == "query head 0 reads KV head 0"


@pytest.mark.parametrize(("kind", "kv_heads"), [("MHA", 16), ("GQA", 8), ("MQA", 1)])
def test_gqa_bytes_are_those_of_the_cost_model(kind: str, kv_heads: int, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    page.locator(f"{GQA} label", has_text=kind).click()
    slider = page.locator(f"{GQA} .fig-slider input")
    slider.press("Home")
    per_token = cost.kv_bytes_per_token(QWEN3_0_6B) * kv_heads // QWEN3_0_6B.num_key_value_heads
    assert f"{kind} keeps {per_token // cost.KIB} KiB a token; 1 token takes" in status(
        page, GQA, f"{kind} keeps.*1 token "
    )
    slider.press("End")
    gib = per_token * 32768 / cost.GIB
    said = status(page, GQA, "32,768 tokens")
    amount = f"{gib:.0f} GiB" if gib == int(gib) else f"{gib:.2f} GiB" if gib > 1 else f"{gib * 1024:.0f} MiB"
    assert f"{amount} in all 28: {per_token * 32768 / (2 * cost.parameters(QWEN3_0_6B)):.2f} of" in said


def test_figures_follow_the_width_of_the_page(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    drawing = page.locator(f"{GQA} .gqa-heads")
    wide = drawing.get_attribute("viewBox")
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(f"document.querySelector('{GQA} .gqa-heads').getAttribute('viewBox') !== '{wide}'")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(f"{GQA} .gqa-heads text").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 12


def test_figures_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    for figure in (ROPE, GQA):
        root = one.page.locator(figure)
        assert root.inner_text().strip() or root.locator("img").count()


def test_figure_that_fails_leaves_its_fallback(visit: Callable[..., Any]) -> None:
    one = visit()
    page = one.open(LESSON)
    page.evaluate(
        "document.querySelector('.md-content article').insertAdjacentHTML('beforeend',"
        " '<div data-figure=\"faulty\"><p>in words</p></div>');"
        "Figures.define('faulty', () => { throw new Error('on purpose'); })"
    )
    assert page.locator("[data-figure=faulty]").inner_text() == "in words"
    assert len(one.problems) == 1
    assert "on purpose" in one.problems.pop()
