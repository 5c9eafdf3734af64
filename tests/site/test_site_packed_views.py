"""Chapter 3's interactive figure: the rows, bytes and threads that it names are those of the weights and the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen3_ref import QWEN3_0_6B

ROOT = Path(__file__).resolve().parents[2]
LESSON = "/chapters/ch03_swiglu/"
FIGURE = "[data-figure=packed-views]"
PARTS = {
    "gate and up": {"gate": QWEN3_0_6B.intermediate_size, "up": QWEN3_0_6B.intermediate_size},
    "q, k and v": {"q": QWEN3_0_6B.q_size, "k": QWEN3_0_6B.kv_size, "v": QWEN3_0_6B.kv_size},
}
TOKENS, PACK = 4, 8


def choose(page: Any, name: str) -> None:
    page.locator(f"{FIGURE} .fig-radio", has_text=name).click()


def slider(page: Any) -> Any:
    return page.locator(f"{FIGURE} svg[role=slider]")


def said(page: Any) -> str:
    return str(slider(page).get_attribute("aria-valuetext")).replace(",", "")


def facts(page: Any) -> dict[str, list[str]]:
    """Name → every value that stands behind it."""
    found: dict[str, list[str]] = {}
    names, values = (page.locator(f"{FIGURE} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    for name, value in zip(names, values, strict=True):
        found.setdefault(name, []).append(value.replace(",", ""))
    return found


def views(parts: dict[str, int], packed: bool) -> dict[str, torch.Tensor]:
    """The parts of what the projections of four tokens make, without data."""
    if packed:
        whole = torch.empty(TOKENS, sum(parts.values()), device="meta")
        return dict(zip(parts, whole.split(list(parts.values()), dim=-1), strict=True))
    return {name: torch.empty(TOKENS, size, device="meta") for name, size in parts.items()}


def test_sizes_in_the_script_are_those_of_the_model_and_the_kernel() -> None:
    script = (ROOT / "docs/assets/js/figures/packed-views.js").read_text(encoding="utf-8")
    kernel = (ROOT / "kernels/cuda/silu_mul.cu").read_text(encoding="utf-8")
    few, _ = re.findall(r"launch_packs<(\d+), kAligned", kernel)
    assert f"const THREADS = {few};" in script
    assert f"const HIDDEN = {QWEN3_0_6B.hidden_size};" in script
    assert f"const HEAD_DIM = {QWEN3_0_6B.head_dim};" in script


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("projections", PARTS)
def test_strides_and_offsets_are_those_of_pytorchs_views(
    projections: str, packed: bool, visit: Callable[..., Any]
) -> None:
    page = visit().open(LESSON)
    choose(page, projections)
    choose(page, "packed" if packed else "apart")
    shown = facts(page)
    expected = views(PARTS[projections], packed).values()
    assert shown["strides, first element"] == [
        f"({view.stride(0)} {view.stride(1)}) {view.storage_offset()}" for view in expected
    ]
    launches = "1" if packed else str(len(PARTS[projections]))
    assert shown["matrix products launched"] == shown["times that x is read"] == [launches]
    weights = sum(PARTS[projections].values()) * QWEN3_0_6B.hidden_size
    assert shown["bytes of weights"] == [str(2 * weights)]
    assert shown["multiply-adds"] == [str(TOKENS * weights)]


@pytest.mark.parametrize("packed", [True, False])
def test_each_thread_reads_its_pack_of_gate_and_up(packed: bool, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "packed" if packed else "apart")
    gate, up = views(PARTS["gate and up"], packed).values()
    size = gate.shape[1]
    control = slider(page)
    control.focus()
    for keys, pack in ((["Home"], 0), (["ArrowRight"], 1), (["PageUp"], 385), (["End"], 1535), (["ArrowRight"], 1535)):
        for key in keys:
            control.press(key)
        row, column = divmod(pack * PACK, size)
        first, second = (2 * (row * view.stride(0) + view.storage_offset() + column) for view in (gate, up))
        words = said(page)
        assert f"Thread {pack % 64} of block {pack // 64} has pack {pack}: " in words
        assert f"columns {column} to {column + 7} of row {row}. It reads gate at byte {first} " in words
        if packed:
            assert f"and up {second - first} bytes behind it." in words
            rows = f"Rows {column} to {column + 7} and {size + column} to {size + column + 7} of the packed weight"
            assert rows in words
        else:
            assert f"and up at byte {second} of another tensor." in words


def test_columns_of_a_head_follow_from_the_packed_row(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    choose(page, "q, k and v")
    control = slider(page)
    control.focus()
    control.press("Home")
    assert said(page).startswith("Columns 0 to 7 of q belong to head 0 and lie at byte 0 of qkv in row 0.")
    control.press("End")
    last = 2 * (TOKENS * sum(PARTS["q, k and v"].values()) - PACK)
    assert said(page).startswith(f"Columns 1016 to 1023 of v belong to head 7 and lie at byte {last} of qkv in row 3.")


@pytest.mark.parametrize("width", [1280, 390])
def test_pointer_and_buttons_choose_packs(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    box = page.locator(f"{FIGURE} rect[data-row='2']").nth(1)  # up of row 2
    box.scroll_into_view_if_needed()
    area = box.bounding_box()
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    chosen = int(slider(page).get_attribute("aria-valuenow"))
    assert abs(chosen - (2 * 384 + 192)) <= 2
    page.locator(f"{FIGURE} button", has_text="step").press("Enter")
    page.locator(f"{FIGURE} button", has_text="row on").press("Enter")
    page.locator(f"{FIGURE} button", has_text="back").press("Enter")
    assert int(slider(page).get_attribute("aria-valuenow")) == chosen + 384
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_packed_views_say_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
