"""The interactive figure of the quality gate: its integers are those of chapter 8, and an outlier can be made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.fake_quant import fake_quantize

LESSON = "/quality_gate/"
FIGURE = "[data-figure=quantization-error]"
COUNT, LIMIT = 128, 0.4
GROUPS = {"32": 32, "64": 64, "128": 128, "per channel": None}


def choose(page: Any, name: str, text: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has=page.locator(f"input[name=qe-{name}][value='{text}']")).click()


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def move(page: Any, *keys: str) -> None:
    slider(page).focus()
    for key in keys:
        slider(page).press(key)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def fact(page: Any, name: str) -> float:
    return number(page.locator(f"{FIGURE} dd.qe-{name}").inner_text().partition(" of ")[0])


def drawn(page: Any, name: str) -> Tensor:
    """`[128]` of what the figure draws: weight, back (what its integer stands for) or input."""
    bars = page.locator(f"{FIGURE} .qe-weight")
    return torch.tensor([float(x) for x in bars.evaluate_all(f"all => all.map(bar => bar.dataset.{name})")])


def check(page: Any, group: str, bits: int) -> None:
    """The whole figure against the chapter's quantisation and exact arithmetic."""
    weight, back = drawn(page, "weight"), drawn(page, "back")
    # The rest of the channel has 896 more weights; of them only the largest matters.
    rest = float(slider(page).get_attribute("data-rest"))
    row = torch.cat([weight, torch.tensor([rest] * 128)]) if group == "per channel" else weight
    assert torch.equal(back, fake_quantize(row[None], GROUPS[group], bits)[0, :COUNT])
    size = GROUPS[group] or COUNT
    at = int(slider(page).get_attribute("aria-valuenow"))
    begin = at // size * size
    members = row if group == "per channel" else weight[begin : begin + size]
    scale = float(members.abs().max()) / (2 ** (bits - 1) - 1)
    assert fact(page, "scale") == pytest.approx(scale, rel=6e-3)
    assert fact(page, "half") == pytest.approx(scale / 2, rel=6e-3)
    assert fact(page, "integer") == round(float(back[at]) / scale)
    assert fact(page, "value") == pytest.approx(float(back[at]), abs=6e-6)
    assert fact(page, "zeros") == int((back[begin : begin + size] == 0).sum())
    error = (back - weight).double()
    assert fact(page, "rms") == pytest.approx(float(error.square().mean().sqrt()), rel=6e-3)
    inputs = drawn(page, "input").double()
    assert fact(page, "exact") == pytest.approx(float(inputs @ weight.double()), abs=6e-7)
    assert fact(page, "whole") == pytest.approx(float(inputs @ back.double()), abs=6e-7)
    assert fact(page, "error") == pytest.approx(float(inputs @ error), abs=6e-7)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", GROUPS)
def test_integers_are_those_of_the_chapter(group: str, bits: int, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "group", group)
    choose(page, "bits", str(bits))
    check(page, group, bits)
    for key in ("PageDown", "ArrowUp", "Home", "PageUp", "End"):
        move(page, key)
        check(page, group, bits)


def test_an_outlier_spoils_its_own_group_and_no_other(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "group", "32")
    page.locator(f"{FIGURE} button", has_text="no outlier").press("Enter")
    calm = drawn(page, "back") - drawn(page, "weight")
    assert drawn(page, "weight").abs().max() < LIMIT / 3
    move(page, *["PageUp"] * 4)  # weight 44 is in the second group
    check(page, "32", 8)
    found = drawn(page, "back") - drawn(page, "weight")
    changed = (found != calm).nonzero().flatten()
    assert changed.min() >= 32
    assert changed.max() < 64
    assert found[32:64].square().mean() > 4 * calm[32:64].square().mean()
    choose(page, "group", "128")
    assert fact(page, "rms") > 2 * float(calm.square().mean().sqrt())


def test_the_expected_error_is_that_of_evenly_spread_rounding(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    inputs, scale = drawn(page, "input").double(), float(drawn(page, "weight").abs().max()) / 127
    expected = scale * math.sqrt(float(inputs.square().sum()) / 12)
    assert fact(page, "expected") == pytest.approx(expected, rel=1e-3)
    assert abs(fact(page, "error")) < 4 * expected


@pytest.mark.parametrize("width", [1280, 390])
def test_a_weight_can_be_dragged(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    slider(page).scroll_into_view_if_needed()
    area = slider(page).bounding_box()
    zero, height = area["y"] + 20 + 66, 66  # the middle of the weights, and as far as they go

    def place(index: int, value: float) -> tuple[float, float]:
        return area["x"] + area["width"] * (index + 0.5) / COUNT, zero - height * value / LIMIT

    before = drawn(page, "weight")
    page.mouse.move(*place(100, 0))
    page.mouse.down()
    page.mouse.move(*place(90, -0.2), steps=4)  # the weight that was taken up follows, and no other
    after = drawn(page, "weight")
    assert (after != before).nonzero().flatten().tolist() == [100]
    assert float(after[100]) == pytest.approx(-0.2, abs=LIMIT / height)
    page.mouse.move(*place(100, 3), steps=4)  # it stops at the edge
    page.mouse.up()
    assert float(drawn(page, "weight")[100]) == pytest.approx(LIMIT)
    page.mouse.move(*place(100, 0))
    assert float(drawn(page, "weight")[100]) == pytest.approx(LIMIT)
    check(page, "128", 8)
    assert slider(page).get_attribute("aria-valuenow") == "100"
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_weights_are_walked_by_keyboard_and_said_aloud(visit: Callable[..., Any]) -> None:
    page = visit(scheme="dark").open(LESSON)
    move(page, "Home", "ArrowLeft")
    assert slider(page).get_attribute("aria-valuenow") == "0"
    move(page, "End", "ArrowRight", "ArrowLeft")
    assert slider(page).get_attribute("aria-valuenow") == "126"
    move(page, *["PageUp"] * 9)
    said = slider(page).get_attribute("aria-valuetext")
    assert said.startswith("Weight 126 is 0.4000, ")
    assert " times the rms of the others. Its group of 128 has the scale 0.00315: " in said
    status = page.locator(f"{FIGURE} [role=status]")
    status.filter(has_text="Weight 126 is 0.4000").wait_for()


def test_quantization_error_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
