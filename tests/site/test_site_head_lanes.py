"""Chapter 4's figure of a head's lanes: the elements, loads and shuffles that it names are those of the kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chapters.ch04_paged_kv.candidates import HEADS, KV_HEADS

ROOT = Path(__file__).resolve().parents[2]
LESSON = "/chapters/ch04_paged_kv/"
FIGURE = "[data-figure=head-lanes]"
WARP, HEAD_DIM, BYTES = 32, 128, 2


def choose(page: Any, lanes: int) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile(rf"^{lanes}$")).click()


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def said(page: Any) -> str:
    return str(slider(page).get_attribute("aria-valuetext"))


def facts(page: Any) -> dict[str, int]:
    names, values = (page.locator(f"{FIGURE} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def test_lanes_of_the_figure_are_those_that_the_kernel_launches() -> None:
    script = (ROOT / "docs/assets/js/figures/head-lanes.js").read_text(encoding="utf-8")
    kernel = (ROOT / "kernels/cuda/qk_norm_rope_cache_write.cu").read_text(encoding="utf-8")
    offered = {int(lanes) for lanes in re.findall(r"\d+", re.findall(r"const CHOICES = \[(.*?)\]", script)[0])}
    assert {int(lanes) for lanes in re.findall(r"launch_heads<T, (\d+),", kernel)} <= offered
    assert f"const HEADS = {HEADS + 2 * KV_HEADS};" in script
    assert f"const HEAD_DIM = {HEAD_DIM};" in script


@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_facts_of_a_mapping_follow_from_the_number_of_lanes(lanes: int, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, lanes)
    pairs, heads = HEAD_DIM // 2 // lanes, WARP // lanes
    assert facts(page) == {
        "heads a warp": heads,
        "bytes a lane, each load": pairs * BYTES,
        "bytes a warp, each load": WARP * pairs * BYTES,
        "loads for a token's heads": 2 * (HEADS + 2 * KV_HEADS) // heads,
        "squares of a lane": HEAD_DIM // lanes,
        "levels in registers": int(math.log2(pairs)),
        "levels by shuffles": int(math.log2(lanes)),
        "levels in all": 6,
    }
    owned = page.locator(f"{FIGURE} rect.cell.k.chosen").count()
    assert owned == 2 * pairs
    registers, shuffles = (page.locator(f"{FIGURE} path.{kind}").count() for kind in ("hl-register", "hl-shuffle"))
    assert registers + shuffles == 2 * (HEAD_DIM // 2 - 1)  # an edge for each input of an addition
    assert shuffles == 2 * (lanes - 1)


def test_a_lane_owns_its_partners_and_keys_choose_it(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, 8)
    control = slider(page)
    control.focus()
    control.press("Home")
    assert said(page).startswith("Lane 0 of 8 owns elements 0 to 7 and, 64 further, 64 to 71: two loads of 16 bytes.")
    control.press("End")
    assert said(page).startswith("Lane 7 of 8 owns elements 56 to 63 and, 64 further, 120 to 127")
    control.press("ArrowRight")
    assert control.get_attribute("aria-valuenow") == "7"
    choose(page, 32)  # the same element stays chosen
    assert said(page).startswith("Lane 28 of 32 owns elements 56 and 57 and, 64 further, 120 and 121")
    assert said(page).endswith("1 level of the tree in its registers, then shuffles over distances 1, 2, 4, 8, 16.")


@pytest.mark.parametrize("width", [1280, 390])
def test_pointer_and_buttons_choose_lanes(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    control = slider(page)
    control.scroll_into_view_if_needed()
    area = control.bounding_box()
    page.mouse.click(area["x"] + area["width"] * 20.5 / 32, area["y"] + 112)
    assert control.get_attribute("aria-valuenow") == "20"
    page.locator(f"{FIGURE} button", has_text="step").press("Enter")
    page.locator(f"{FIGURE} button", has_text="step").press("Enter")
    page.locator(f"{FIGURE} button", has_text="back").press("Enter")
    assert control.get_attribute("aria-valuenow") == "21"
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_head_lanes_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
