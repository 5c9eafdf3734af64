"""Chapter 10's figure of the Hadamard transform: each stage has the numbers and the signs of the matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch10_quantized_kv.figures.outliers import CASTS, FILE, peak, round_trip
from qwen3_ref.kv_quantization import hadamard_transform

LESSON = "/chapters/ch10_quantized_kv/"
FIGURE = "[data-figure=hadamard]"


def press(page: Any, text: str, times: int = 1) -> None:
    for _ in range(times):
        page.locator(f"{FIGURE} button", has_text=text).press("Enter")


def drawn(page: Any) -> Tensor:
    bars = page.locator(f"{FIGURE} .ha-bar")
    return torch.tensor([float(one) for one in bars.evaluate_all("all => all.map(bar => bar.dataset.value)")])


def fact(page: Any, name: str) -> float:
    text = page.locator(f"{FIGURE} dd.ha-{name}").inner_text()
    return float(text.replace("−", "-").split()[0])


def after(x: Tensor, stages: int) -> Tensor:
    """The first stages alone: the transform of each 2^stages neighbours."""
    return hadamard_transform(x.view(-1, 2**stages), 2 ** (-stages / 2)).flatten()


def test_each_stage_has_the_numbers_of_the_transform(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    key = torch.tensor(json.loads(FILE.read_text(encoding="utf-8"))["key"]["numbers"])
    for stage in range(8):
        want = after(key, stage)
        assert torch.allclose(drawn(page), want, atol=1e-4)
        assert fact(page, "peak") == pytest.approx(peak(want), abs=6e-3)
        error = float((round_trip(want, CASTS["MXFP4"]) - want).norm() / want.norm())
        assert fact(page, "error") == pytest.approx(100 * error, abs=0.5)
        press(page, "step")


def test_the_network_shows_the_signs_of_the_matrix(visit: Callable[..., Any]) -> None:
    page = visit(scheme="dark").open(LESSON)
    press(page, "step", 7)
    chosen = page.locator(f"{FIGURE} svg.ha-map")
    chosen.focus()
    chosen.press("Home")
    for _ in range(5):
        chosen.press("ArrowRight")
    parts = page.locator(f"{FIGURE} .ha-part").evaluate_all(
        "all => all.map(one => [one.dataset.stage, one.dataset.element, one.dataset.sign].map(Number))"
    )
    for stage in range(8):
        of_stage = {int(element): int(sign) for at, element, sign in parts if int(at) == stage}
        assert len(of_stage) == 2 ** (7 - stage)
        # What is left of the matrix when its first stages are undone.
        first = torch.block_diag(*[hadamard_transform(torch.eye(2**stage), 1.0)] * (128 // 2**stage))
        last = first @ hadamard_transform(torch.eye(128), 1.0) / 2**stage
        for element, sign in of_stage.items():
            assert float(last[element, 5]) == (-1.0 if sign else 1.0)


@pytest.mark.parametrize("width", [1280, 390])
def test_one_outlier_becomes_128_equal_numbers_and_back(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile("^one outlier$")).click()
    assert fact(page, "peak") == pytest.approx(128**0.5, abs=6e-3)
    press(page, "step", 8)
    assert fact(page, "peak") == 1
    page.locator(f"{FIGURE} .fig-radio", has_text=re.compile("^all alike$")).click()
    assert fact(page, "peak") == pytest.approx(128**0.5, abs=6e-3)
    page.locator(f"{FIGURE} [role=status]").filter(has_text="After all seven stages the largest").wait_for()
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
