"""Chapter 5's interactive figure: what it keeps at each step is the softmax of what has been read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

LESSON = "/chapters/ch05_grouped_attention/"
FIGURE = "[data-figure=online-softmax]"
SCRIPT = (Path(__file__).resolve().parents[2] / "docs/assets/js/figures/online-softmax.js").read_text(encoding="utf-8")
HEADER = (Path(__file__).resolve().parents[2] / "kernels/cuda/include/online_softmax.cuh").read_text(encoding="utf-8")
SCORES, VALUES = (
    torch.tensor(json.loads(re.search(rf"const {name} = (\[[^\]]+\])", SCRIPT)[1])).double()  # type: ignore[index]
    for name in ("SCORES", "VALUES")
)
ORDERS = {
    "as they come": torch.arange(len(SCORES)),
    "rising": SCORES.argsort(),
    "falling": SCORES.argsort(descending=True),
}


def choose(page: Any, name: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=name).click()


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def facts(page: Any) -> dict[str, str]:
    names, values = (page.locator(f"{FIGURE} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return {name: value.replace("−", "-") for name, value in zip(names, values, strict=True)}


def kept(page: Any) -> list[float]:
    """m, ℓ, o and o ÷ ℓ."""
    shown = facts(page)
    names = ("m, the largest score", "ℓ, the sum of weights", "o, the sum of weight · v", "o ÷ ℓ")
    return [float(shown[name].replace("∞", "inf")) for name in names]


def said(page: Any) -> str:
    return str(slider(page).get_attribute("aria-valuetext"))


def test_the_least_number_of_the_script_is_that_of_the_kernels() -> None:
    (least,) = re.findall(r"const LEAST = (-[\d.e]+\+38);", SCRIPT)
    assert f"kNoScore = {least}f;" in HEADER


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_each_step_holds_the_softmax_of_what_was_read(order: str, width: int, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, order)
    choose(page, "four tokens a step" if width == 4 else "a token a step")
    scores, values = SCORES[ORDERS[order]], VALUES[ORDERS[order]]
    control = slider(page)
    control.focus()
    control.press("Home")
    assert facts(page)["ℓ, the sum of weights"] == "0.000"
    rises = 0
    for read in range(width, len(scores) + 1, width):
        control.press("ArrowRight")
        seen = scores[:read]
        weights = torch.exp(seen - seen.max())
        o = float(weights @ values[:read])
        expected = [float(seen.max()), float(weights.sum()), o, float(torch.softmax(seen, 0) @ values[:read])]
        assert kept(page) == pytest.approx(expected, abs=6e-4)
        rises += read == width or bool(seen.max() > scores[: read - width].max())
        assert facts(page)["new maxima so far"] == str(rises)
        assert facts(page)["exponentials so far"] == str(read + read // width)
    assert "All are read: the result o ÷ ℓ is" in said(page)
    control.press("ArrowRight")
    assert int(control.get_attribute("aria-valuenow")) == len(scores) // width


@pytest.mark.parametrize(("start", "spoilt"), [("least finite", False), ("as −∞", True)])
def test_a_first_score_of_minus_infinity_spoils_what_begins_at_minus_infinity(
    start: str, spoilt: bool, visit: Callable[..., Any]
) -> None:
    page = visit().open(LESSON)
    choose(page, "some are −∞")
    choose(page, start)
    slider(page).press("End")
    hidden = SCORES.clone()
    hidden[[0, 1, 5]] = -torch.inf
    if spoilt:
        assert "NaN" in facts(page)["o ÷ ℓ"]
        slider(page).press("Home")
        slider(page).press("ArrowRight")
        assert "−∞ − (−∞) is NaN" in said(page)
    else:
        assert kept(page)[3] == pytest.approx(float(torch.softmax(hidden, 0) @ VALUES), abs=6e-4)


def test_nan_reaches_the_result_and_no_token_gives_zero(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "one is NaN")
    slider(page).press("End")
    m, _, _, result = kept(page)
    assert m == 3.1  # a NaN is no new maximum; without its token the largest score is this
    assert math.isnan(result)
    choose(page, "no token")
    assert said(page) == "No token: ℓ is 0, and the kernel writes 0 instead of dividing by it."
    assert facts(page)["o ÷ ℓ"] == "0.000"


@pytest.mark.parametrize("width", [1280, 390])
def test_pointer_and_buttons_choose_steps(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    bar = page.locator(f"{FIGURE} rect[data-token='7']")
    bar.scroll_into_view_if_needed()
    area = bar.bounding_box()
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    assert slider(page).get_attribute("aria-valuenow") == "8"
    page.locator(f"{FIGURE} button", has_text="step").press("Enter")
    assert slider(page).get_attribute("aria-valuenow") == "9"
    page.locator(f"{FIGURE} button", has_text="back").press("Enter")
    page.locator(f"{FIGURE} button", has_text="start").press("Enter")
    assert slider(page).get_attribute("aria-valuenow") == "0"
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_online_softmax_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
