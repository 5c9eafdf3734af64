"""Chapter 11's interactive figure: noise, kept tokens and draws are those of the reference sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen3_ref.gumbel import gumbel_noise
from qwen3_ref.sampling import Sampler, SamplingParams

LESSON = "/chapters/ch11_generator/"
FIGURE = "[data-figure=sampling-explorer]"
LOGITS = torch.tensor([3.2, 2.6, 2.3, 1.9, 1.5, 1.2, 0.8, 0.3, -0.2, -0.9, -1.8, -3.0])
SLIDERS = {"temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "seed": "seed"}


def move(page: Any, label: str, value: float) -> None:
    script = "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }"
    page.locator(f"{FIGURE} input[aria-label='{label}']").evaluate(script, value)


def drawn(page: Any, name: str) -> list[str]:
    return list(page.locator(f"{FIGURE} .se-row").evaluate_all(f"rows => rows.map(row => row.dataset.{name})"))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0, seed=1),
        SamplingParams(0.6, top_k=7, top_p=0.9, seed=42),
        SamplingParams(2.5, min_p=0.33, seed=99),
        SamplingParams(0.0, top_k=3, seed=5),
        SamplingParams(0.8, top_k=4, top_p=0.65, min_p=0.2, seed=7),
    ],
    ids=str,
)
def test_the_explorer_draws_as_the_reference(params: SamplingParams, visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    for name, label in SLIDERS.items():
        move(page, label, getattr(params, name))
    sampler = Sampler(params)
    kept = sampler.filtered(LOGITS)
    if params.greedy:
        kept = torch.where(kept == kept.max(), kept, -torch.inf)
    assert [not reason for reason in drawn(page, "dropped")] == kept.isfinite().tolist()
    after = [float(p) for p in drawn(page, "after")]
    assert after == pytest.approx(kept.softmax(-1).tolist(), abs=1e-6)
    tokens = [sampler(LOGITS) for _ in range(1000)]
    assert [int(count) for count in drawn(page, "count")] == [Counter(tokens)[i] for i in range(len(LOGITS))]
    names = drawn(page, "token")
    for draw in (0, 321, 999):
        move(page, "draw", draw)
        assert [float(x) for x in drawn(page, "noise")] == gumbel_noise(params.seed or 0, draw, len(LOGITS)).tolist()
        assert page.locator(f"{FIGURE} dd.se-chosen").inner_text() == names[tokens[draw]]


def test_the_explorer_is_walked_by_keyboard_and_fits_a_phone(visit: Callable[..., Any]) -> None:
    page = visit(width=390, scheme="dark").open(LESSON)
    draw = page.locator(f"{FIGURE} input[aria-label='draw']")
    draw.press("ArrowRight")
    page.locator(f"{FIGURE} button", has_text="next draw").press("Enter")
    assert draw.input_value() == "2"
    top_k = page.locator(f"{FIGURE} input[aria-label='top-k']")
    for _ in range(3):
        top_k.press("ArrowRight")
    status = page.locator(f"{FIGURE} [role=status]")
    status.filter(has_text="3 of 12 tokens are kept. Draw 2 of seed 1 takes").wait_for()
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_explorer_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
