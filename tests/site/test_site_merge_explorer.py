"""Chapter 6's interactive figure: what partitions leave and what the merge gives are the reference's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen3_ref.functional import Partial, merge_partitions

LESSON = "/chapters/ch06_split_attention/"
FIGURE = "[data-figure=merge-explorer]"
KINDS = ("as they come", "one outlier", "rising", "none in 16 to 31")
TOKENS, MOST = 48, 6


def choose(page: Any, name: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=name).click()


def press(page: Any, name: str, times: int = 1) -> None:
    for _ in range(times):
        page.locator(f"{FIGURE} button", has_text=name).press("Enter")


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def move(page: Any, *keys: str) -> None:
    slider(page).focus()
    for key in keys:
        slider(page).press(key)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf").replace(",", ""))


def rows(page: Any) -> list[list[str]]:
    """The table of partitions: tokens, m, l, o, how often it counts."""
    return [row.locator("td").all_inner_texts() for row in page.locator(f"{FIGURE} tbody tr").all()]


def fact(page: Any, name: str) -> float:
    return number(page.locator(f"{FIGURE} dd.me-{name}").inner_text())


def drawn(page: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and values as the figure has them, in float64."""
    bars = page.locator(f"{FIGURE} .me-score")
    scores, values = (bars.evaluate_all(f"all => all.map(bar => bar.dataset.{name})") for name in ("score", "value"))
    as_numbers = [[float(x.replace("Infinity", "inf")) for x in some] for some in (scores, values)]
    return torch.tensor(as_numbers[0], dtype=torch.float64), torch.tensor(as_numbers[1], dtype=torch.float64)


def partial(scores: torch.Tensor, values: torch.Tensor) -> Partial:
    m = scores.max() if len(scores) else torch.tensor(-torch.inf, dtype=torch.float64)
    weights = torch.exp(scores - m) if m > -torch.inf else torch.zeros_like(scores)
    return Partial(m[None], weights.sum()[None], (weights * values).sum()[None])


def edges(page: Any) -> list[int]:
    """Where partitions begin and end, by their first column; an empty one lies where the one before ends."""
    found = [0]
    for tokens, *_ in rows(page):
        found.append(found[-1] if tokens == "none" else int(tokens.partition("–")[2]) + 1)
    return found


def check(page: Any) -> None:
    """The whole figure against the reference."""
    scores, values = drawn(page)
    cut = edges(page)
    assert cut[-1] == TOKENS
    partials = [partial(scores[a:b], values[a:b]) for a, b in itertools.pairwise(cut)]
    largest = max(float(one.m) for one in partials)
    for one, (_, *said) in zip(partials, rows(page), strict=True):
        *state, counts = (number(text) for text in said)
        assert state == pytest.approx([float(part) for part in one], abs=0.0051)
        assert counts == pytest.approx(math.exp(float(one.m) - largest), abs=6e-4)
    result = float(merge_partitions(partials))
    whole = float(merge_partitions([partial(scores, values)]))
    assert result == pytest.approx(whole, rel=1e-12)
    assert fact(page, "merged") == fact(page, "whole") == pytest.approx(whole, abs=6e-10)
    assert fact(page, "single") == pytest.approx(whole, abs=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_any_borders_give_the_result_of_one_pass(kind: str, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, kind)
    check(page)
    for key in ("PageUp", "ArrowRight", "Home", "End"):
        move(page, key)
        check(page)
    press(page, "next border")
    move(page, "ArrowLeft", "ArrowLeft", "ArrowLeft")
    choose(page, "last to first")
    check(page)


def test_partitions_can_be_added_taken_away_and_emptied(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    press(page, "+ partition", 4)
    assert len(rows(page)) == MOST
    check(page)
    move(page, "Home")  # the first border at token 0
    assert rows(page)[0] == ["none", "−∞", "0.00", "0.00", "0.000"]
    assert "has nothing to read and leaves m = −∞, ℓ = 0." in slider(page).get_attribute("aria-valuetext")
    check(page)
    press(page, "− partition", 7)
    assert len(rows(page)) == 1
    assert "There is nothing to merge" in slider(page).get_attribute("aria-valuetext")
    check(page)
    move(page, "ArrowRight")
    check(page)


def test_a_partition_of_missing_tokens_is_empty_too(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "none in 16 to 31")
    press(page, "− partition")  # three of 16 tokens each
    assert rows(page)[1][:3] == ["16–31", "−∞", "0.00"]
    check(page)


@pytest.mark.parametrize("width", [1280, 390])
def test_borders_can_be_dragged(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    slider(page).scroll_into_view_if_needed()
    area = slider(page).bounding_box()

    def place(token: int) -> tuple[float, float]:
        return area["x"] + area["width"] * token / TOKENS, area["y"] + 60

    page.mouse.move(*place(24))
    page.mouse.down()
    page.mouse.move(*place(30), steps=4)
    assert edges(page) == [0, 12, 30, 36, TOKENS]
    page.mouse.move(*place(47), steps=4)  # it stops at its neighbour
    page.mouse.up()
    assert edges(page) == [0, 12, 36, 36, TOKENS]
    page.mouse.move(*place(5))
    assert edges(page) == [0, 12, 36, 36, TOKENS]
    check(page)
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_merge_explorer_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
