"""Chapter 2's interactive figures: they show what the kernels do, answer to keyboard and pointer, and fit a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = ROOT / "chapters" / "ch02_rms_norm"
LESSON = "/chapters/ch02_rms_norm/"
WARP = "[data-figure=warp-reduction]"
MEMORY = "[data-figure=coalescing]"
LANES = 32


def press(page: Any, figure: str, name: str, times: int = 1) -> None:
    """Works one of the figure's buttons by keyboard, also where it says that it is disabled."""
    for _ in range(times):
        page.locator(f"{figure} button", has_text=name).press("Enter")


def choose(page: Any, figure: str, name: str) -> None:
    page.locator(f"{figure} .fig-radio", has_text=name).click()


def drawing(page: Any, figure: str) -> Any:
    """The part of the figure in which the keyboard chooses a lane."""
    return page.locator(f"{figure} svg[role=slider]")


def said_of_lanes(page: Any, figure: str) -> list[str]:
    """What a screen reader hears of each lane, lane by lane."""
    lanes = drawing(page, figure)
    lanes.focus()
    lanes.press("Home")
    said = []
    for _ in range(LANES):
        said.append(lanes.get_attribute("aria-valuetext"))
        lanes.press("ArrowRight")
    return said


def fact(page: Any, figure: str, name: str) -> str:
    """The value behind a name in the figure's list of facts."""
    value = page.locator(f"{figure} dt", has_text=name).locator("xpath=following-sibling::dd[1]")
    return str(value.inner_text()).replace(",", "")


def number_in(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in {text!r}"
    return int(match[1])


def own_sums(page: Any) -> list[int]:
    """What the lanes hold before the first shuffle."""
    press(page, WARP, "start")
    return [number_in(rf"lane {lane} has (\d+)\.", said) for lane, said in enumerate(said_of_lanes(page, WARP))]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_lane_adds_the_lane_that_differs_in_one_bit(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    values = own_sums(page)
    assert len(set(values)) > 3  # equal numbers would hide a wrong partner
    for shuffle, bit in enumerate((16, 8, 4, 2, 1), start=1):
        press(page, WARP, "step")
        sums = [values[lane] + values[lane ^ bit] for lane in range(LANES)]
        for lane, said in enumerate(said_of_lanes(page, WARP)):
            expected = f"lane {lane} reads lane {lane ^ bit}: {values[lane]} + {values[lane ^ bit]} = {sums[lane]}, "
            assert said == f"Shuffle {shuffle}: {expected}the sum of {2**shuffle} lanes."
        values = sums
        assert fact(page, WARP, "lanes with work") == "32 of 32"
        assert fact(page, WARP, "barriers so far") == "0"
    assert len(set(values)) == 1
    assert fact(page, WARP, "that hold the sum") == "32 of 32"


def test_drawn_numbers_are_those_that_are_said(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    first = own_sums(page)
    press(page, WARP, "step", 5)
    drawn = page.locator(f"{WARP} .wr-lanes text.cell").all_text_contents()
    assert len(drawn) == 6 * LANES
    rows = [[int(text) for text in drawn[row * LANES : (row + 1) * LANES]] for row in range(6)]
    assert rows[0] == first
    assert rows[5] == [sum(first)] * LANES


def test_tree_leaves_more_threads_idle_in_each_round(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, WARP, "tree")
    press(page, WARP, "start")
    values = [int(text) for text in page.locator(f"{WARP} .wr-lanes text.cell").all_text_contents()]
    for rounds, offset in enumerate((16, 8, 4, 2, 1), start=1):
        press(page, WARP, "step")
        assert fact(page, WARP, "threads with work") == f"{offset} of 32"
        assert fact(page, WARP, "barriers so far") == str(1 + rounds)
        for thread, said in enumerate(said_of_lanes(page, WARP)):
            if thread < offset:
                pair = f"{values[thread]} + {values[thread + offset]} = {values[thread] + values[thread + offset]}"
                assert f"thread {thread} reads word {thread + offset}: {pair}" in said
            else:
                assert f"thread {thread} has nothing to add and waits" in said
        values = [values[thread] + values[thread + offset] for thread in range(offset)]
        assert page.locator(f"{WARP} .wr-lanes .slot.idle").count() == sum(LANES - (16 >> r) for r in range(rounds))
    assert fact(page, WARP, "that hold the sum") == "1 of 32"


def test_block_needs_one_word_a_warp_and_one_barrier(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    press(page, WARP, "start")
    press(page, WARP, "step", 6)
    words = [int(text) for text in page.locator(f"{WARP} .wr-block text.cell").all_text_contents()]
    assert len(words) == 8
    assert fact(page, WARP, "barriers so far") == "0"
    press(page, WARP, "step")
    assert fact(page, WARP, "barriers so far") == "1"
    assert int(page.locator(f"{WARP} .wr-block text.chosen").text_content()) == sum(words)
    assert page.locator(f"{WARP} button", has_text="step").get_attribute("aria-disabled") == "true"
    press(page, WARP, "step")  # no further
    assert fact(page, WARP, "barriers so far") == "1"


def test_figure_counts_the_barriers_and_threads_of_the_steps(visit: Callable[..., Any]) -> None:
    threads = {}
    for step in ("v2_block_per_row", "v3_warp_shuffle"):
        source = (CHAPTER / "steps" / f"{step}.cu").read_text(encoding="utf-8")
        threads[step] = number_in(r"constexpr int kThreads = (\d+);", source)
    script = (ROOT / "docs" / "assets" / "js" / "figures" / "warp-reduction.js").read_text(encoding="utf-8")
    assert set(threads.values()) == {number_in(r"const BLOCK = (\d+);", script)}
    page = visit().open(LESSON)
    assert fact(page, WARP, "in all") == "1"
    choose(page, WARP, "tree")
    levels = threads["v2_block_per_row"].bit_length() - 1
    assert fact(page, WARP, "in all") == str(levels + 1)  # one before each level, one before the sum is read


@pytest.mark.parametrize("figure", [WARP, MEMORY])
@pytest.mark.parametrize("width", [1280, 390])
def test_pointer_and_keyboard_choose_the_same_lane(figure: str, width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    lanes = drawing(page, figure)
    page.locator(f"{figure} [data-lane='20']").hover()
    assert lanes.get_attribute("aria-valuenow") == "20"
    lanes.focus()
    lanes.press("ArrowLeft")
    assert lanes.get_attribute("aria-valuenow") == "19"
    lanes.press("End")
    lanes.press("ArrowRight")
    assert lanes.get_attribute("aria-valuenow") == "31"


def trace() -> dict[str, Any]:
    return json.loads((CHAPTER / "figures" / "coalescing.json").read_text(encoding="utf-8"))


# From lane to lane: elements further in the row; then bytes that a lane reads, and whether each lane has its own row.
ACCESS = {"v1": (0, 2, True), "v2": (1, 2, False), "v4": (8, 16, False)}


@pytest.mark.parametrize("step", ACCESS)
def test_sectors_follow_from_what_each_lane_reads(step: str, visit: Callable[..., Any]) -> None:
    apart, wide, own_row = ACCESS[step]
    page = visit().open(LESSON)
    choose(page, MEMORY, step)
    starts = [2 * lane * (1024 if own_row else apart) for lane in range(LANES)]
    sectors = {byte // 32 for start in starts for byte in range(start, start + wide)}
    assert fact(page, MEMORY, "bytes that the lanes want") == str(LANES * wide)
    assert fact(page, MEMORY, "sectors of 32 bytes") == str(len(sectors))
    assert fact(page, MEMORY, "bytes moved") == str(32 * len(sectors))
    share = 100 * LANES * wide / (32 * len(sectors))
    assert fact(page, MEMORY, "of them wanted") == f"{share:.3g} %".replace("6.25", "6.3")
    for lane, said in enumerate(said_of_lanes(page, MEMORY)):
        row, element = (lane, 0) if own_row else (0, lane * apart)
        last = element + wide // 2 - 1
        what = f"element {element}" if last == element else f"elements {element} to {last}"
        assert f"lane {lane} reads {what} of row {row}. The warp touches {len(sectors)} sectors" in said


@pytest.mark.parametrize(("step", "lanes"), [("v1", {3}), ("v2", set(range(16))), ("v4", {2, 3})])
def test_one_sector_shows_who_wants_its_numbers(step: str, lanes: set[int], visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, MEMORY, step)
    cells = page.locator(f"{MEMORY} .co-zoom text.cell").all_text_contents()
    assert {int(text) for text in cells} == lanes
    assert page.locator(f"{MEMORY} .co-zoom rect").count() == 16
    assert len(cells) == (1 if step == "v1" else 16)


def test_totals_are_those_of_the_trace(visit: Callable[..., Any]) -> None:
    data = trace()
    page = visit().open(LESSON)
    size = data["rows"] * data["hidden"] * data["element_bytes"]
    for step in data["steps"]:
        choose(page, MEMORY, step["step"].split("_")[0])
        totals = step["totals"]
        assert fact(page, MEMORY, "requests of warps") == str(totals["requests"])
        assert fact(page, MEMORY, "sectors asked for") == str(totals["sectors"])
        assert fact(page, MEMORY, "as the lanes want it") == f"{totals['bytes'] // size} ×"
        assert fact(page, MEMORY, "as the sectors bring it") == f"{32 * totals['sectors'] // size} ×"


def test_requests_are_walked_by_button_and_by_slider(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, MEMORY, "v1")
    place = page.locator(f"{MEMORY} .fig-place")
    count = sum(run["repeats"] for run in trace()["steps"][0]["warp"])
    press(page, MEMORY, "step", 2)
    press(page, MEMORY, "16 on")
    press(page, MEMORY, "back")
    assert place.inner_text() == f"request 18 of {count:,}"
    assert "All were asked for before" in drawing(page, MEMORY).get_attribute("aria-valuetext")
    slider = page.locator(f"{MEMORY} input[type=range]")
    slider.press("End")
    assert place.inner_text() == f"request {count:,} of {count:,}"
    press(page, MEMORY, "step")
    assert place.inner_text() == f"request {count:,} of {count:,}"
    slider.press("Home")
    assert place.inner_text() == f"request 1 of {count:,}"
    choose(page, MEMORY, "v4")
    assert place.inner_text() == "request 1 of 1"
    assert slider.is_disabled()


def test_kernel_figures_follow_the_width_of_the_page(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    wide = {figure: drawing(page, figure).get_attribute("viewBox") for figure in (WARP, MEMORY)}
    page.set_viewport_size({"width": 390, "height": 900})
    for figure in (WARP, MEMORY):
        page.wait_for_function(
            "([figure, wide]) => document.querySelector(`${figure} svg[role=slider]`).getAttribute('viewBox') !== wide",
            arg=[figure, wide[figure]],
        )
        sizes = page.locator(f"{figure} text").evaluate_all(
            "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_kernel_figures_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    for figure in (WARP, MEMORY):
        text = one.page.locator(figure).inner_text()
        assert len(text.split()) > 20
        assert "{" not in text  # the figure's data is not for reading
