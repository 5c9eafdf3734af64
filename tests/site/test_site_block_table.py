"""Chapter 4's figure of a paged cache does what PagedKVCache does: the same blocks, slots, copies and refusals."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chapters.ch04_paged_kv.paged_cache import OutOfBlocks, PagedKVCache
from qwen3_ref import QWEN3_0_6B

LESSON = "/chapters/ch04_paged_kv/"
FIGURE = "[data-figure=block-table]"
PROMPT, MOST = 11, 4


class Twin:
    """The cache that the figure stands for, and the sequence that is chosen in it."""

    def __init__(self) -> None:
        self.cache = PagedKVCache(QWEN3_0_6B, tokens=96, block_size=8, max_context=96)
        self.slots: list[int] = []
        self.refused = ""
        for tokens in (PROMPT, 6):
            self.grow(self.cache.allocate(), tokens)
        self.grow(0, 8)

    def grow(self, sequence: int, tokens: int) -> None:
        self.slots = self.cache.append([sequence], [tokens]).slot_mapping.tolist()
        self.chosen = sequence

    def act(self, name: str) -> None:
        self.refused = ""
        try:
            if name == "new sequence":
                self.new()
            elif name == "fork":
                self.chosen = self.cache.fork(self.chosen)
            elif name == "free":
                self.cache.free(self.chosen)
                self.slots, self.chosen = [], self.cache.sequences[-1]
            else:
                self.grow(self.chosen, {"+ 1 token": 1, "+ 5": 5}[name])
        except OutOfBlocks as full:
            self.refused = (
                f"{full.needed} more block{'s are' if full.needed > 1 else ' is'} needed and {full.free} of 12"
            )

    def new(self) -> None:
        sequence = self.cache.allocate()
        try:
            self.grow(sequence, PROMPT)
        except OutOfBlocks:
            self.cache.free(sequence)
            raise

    def possible(self) -> list[str]:
        room = len(self.cache.sequences) < MOST
        more = len(self.cache.sequences) > 1
        return ["+ 1 token", "+ 5", *(["new sequence", "fork"] if room else []), *(["free"] if more else [])]

    def facts(self) -> dict[str, str]:
        table, length = self.cache.block_table(self.chosen), self.cache.length(self.chosen)
        block, place = table[(length - 1) // 8], (length - 1) % 8
        free = self.cache._pool._free[::-1]
        shared = sum(self.cache._pool.users(block) > 1 for block in range(12))
        slots = f"[{self.slots[0]}, …, {self.slots[-1]}]" if len(self.slots) > 6 else str(self.slots)
        return {
            "token": f"{length - 1} of {length} token{'s' * (length > 1)}",
            "block_table": str(list(table)),
            "slot": f"{block} · 8 + {place} = {block * 8 + place}",
            "byte of its K": str(self.byte_of_k(block * 8 + place)),
            "slot_mapping of this append": slots,
            "blocks in use": f"{12 - len(free)} of 12",
            "free, the next one first": f"{', '.join(map(str, free[:5]))}, …" if len(free) > 5 else
            ", ".join(map(str, free)) or "none",
            "shared blocks": str(shared),
        }  # fmt: skip

    def byte_of_k(self, slot: int) -> int:
        k: torch.Tensor = self.cache.k[0]
        return k.flatten(0, 1).stride(0) * slot * k.element_size()


def shown(page: Any) -> dict[str, str]:
    names, values = (page.locator(f"{FIGURE} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    plain = [re.sub(r"(?<=\d),(?=\d{3}\b)", "", value) for value in values]
    return dict(zip(names, plain, strict=True))


def said(page: Any) -> str:
    return str(page.locator(f"{FIGURE} svg[role=slider]").get_attribute("aria-valuetext"))


def press(page: Any, name: str) -> None:
    page.locator(f"{FIGURE} .fig-buttons button", has_text=re.compile(rf"^{re.escape(name)}$")).press("Enter")


@pytest.mark.parametrize("seed", [5, 8, 9])
def test_random_use_of_the_figure_gives_the_blocks_of_the_real_cache(seed: int, visit: Callable[..., Any]) -> None:
    page, twin, chance, refusals = visit().open(LESSON), Twin(), random.Random(seed), 0
    assert shown(page) == twin.facts()
    for _ in range(60):
        weights = {"+ 5": 6, "fork": 2, "new sequence": 2}
        possible = twin.possible()
        name = chance.choices(possible, [weights.get(one, 1) for one in possible])[0]
        twin.act(name)
        press(page, name)
        assert shown(page) == twin.facts(), name
        if twin.refused:
            refusals += 1
            assert said(page).startswith(twin.refused)
            assert "Nothing has changed." in said(page)
    assert refusals


def test_a_fork_shares_its_blocks_and_the_first_to_write_copies_one(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    press(page, "fork")
    assert shown(page)["shared blocks"] == "3"
    press(page, "+ 1 token")
    assert said(page).startswith("Sequence 2 gets token 19. Block 3 is shared, so it is copied to block 4 first.")
    assert shown(page)["block_table"] == "[0, 1, 4]"
    page.locator(f"{FIGURE} .fig-radio", has_text="0").click()
    assert shown(page)["block_table"] == "[0, 1, 3]"


def test_keys_choose_a_token_and_disabled_buttons_do_nothing(visit: Callable[..., Any]) -> None:
    page = visit().open(LESSON)
    control = page.locator(f"{FIGURE} svg[role=slider]")
    control.focus()
    control.press("Home")
    assert (
        said(page)
        == "Token 0 of sequence 0: block_table[0] is 0, place 0, slot 0. Its K begins at byte 0 of the layer."
    )
    control.press("End")
    control.press("PageDown")
    assert shown(page)["slot"] == "1 · 8 + 2 = 10"
    for name in ("free", "free"):
        press(page, name)
    assert said(page).endswith("No sequence is left.")
    for name in ("fork", "+ 1 token", "free"):
        press(page, name)
    assert said(page).endswith("No sequence is left.")
    press(page, "start over")
    assert shown(page) == Twin().facts()


@pytest.mark.parametrize("width", [1280, 390])
def test_pointer_chooses_a_slot_of_the_sequence(width: int, visit: Callable[..., Any]) -> None:
    page = visit(width=width).open(LESSON)
    slot = page.locator(f"{FIGURE} rect[data-slot='9']")
    slot.scroll_into_view_if_needed()
    area = slot.bounding_box()
    page.mouse.click(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    assert shown(page)["slot"] == "1 · 8 + 1 = 9"
    foreign = page.locator(f"{FIGURE} rect[data-slot='16']").bounding_box()
    page.mouse.click(foreign["x"] + foreign["width"] / 2, foreign["y"] + foreign["height"] / 2)
    assert shown(page)["slot"] == "1 · 8 + 1 = 9"  # it belongs to sequence 1
    sizes = page.locator(f"{FIGURE} text").evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_block_table_says_something_without_javascript(visit: Callable[..., Any]) -> None:
    one = visit(javascript=False)
    one.page.goto(one.address + LESSON)
    assert len(one.page.locator(FIGURE).inner_text().split()) > 40
