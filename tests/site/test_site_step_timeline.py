"""Chapter 9's figure of a step: its times are those of the cost model, at every setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chapters.ch09_graph_capture.cost_model import Step, Way

LESSON = "/chapters/ch09_graph_capture/"
FIGURE = "[data-figure=step-timeline]"
WAYS: tuple[Way, ...] = ("one by one", "graph", "dependent")
SETTINGS = [(142, 3.5, 1.8, 0.73, 40), (142, 2.0, 4.0, 0.51, 0), (30, 6.0, 1.0, 0.0, 80), (300, 0.5, 0.5, 3.0, 10)]


def put(page: Any, **sizes: float) -> None:
    for name, value in sizes.items():
        page.locator(f"{FIGURE} input[data-size={name}]").fill(str(value))


def shown(page: Any) -> dict[str, str]:
    texts = page.locator(f"{FIGURE} text.amount")
    return dict(texts.evaluate_all("all => all.map(e => [e.dataset.way, e.textContent])"))


def told(us: float) -> str:
    return f"{us:,.0f} µs" if us >= 100 else f"{us:.1f} µs"


def test_times_of_the_timeline_are_the_models(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    for kernels, launch, kernel, gap, ahead in SETTINGS:
        put(page, kernels=kernels, launch=launch, kernel=kernel, gap=gap, ahead=ahead)
        step = Step(kernels, launch, kernel, gap, ahead / 100)
        assert shown(page) == {way: told(step.total_us(way)) for way in WAYS}
        said = str(page.locator(f"{FIGURE} svg").get_attribute("aria-label"))
        waits = "the device waits for the host" if launch > kernel + gap else "the host is ahead of the device"
        assert waits in said
        assert f"{step.total_us('one by one') / step.total_us('graph'):.2f} and" in said


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_timeline_from_near_fits_its_page(width: int, scheme: str, visit: Callable[..., Any]) -> None:
    page = visit(width=width, scheme=scheme).open(LESSON)
    page.locator(f"{FIGURE} .fig-radio", has_text="kernels").click()
    assert page.locator(f"{FIGURE} rect.st-device").count() == 3 * 8 + 1  # and one that explains the colour
    step = Step(142, 3.5, 1.8, 0.73, 0.4)
    assert shown(page) == {way: told(step.spans(way)[1][7][1]) for way in WAYS}
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_timeline_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
