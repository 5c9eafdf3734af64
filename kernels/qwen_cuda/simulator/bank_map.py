"""A picture of one warp's request to shared memory: which lane falls on which bank, and who must wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qwen_cuda.simulator import memory_model
from qwen_cuda.simulator.drawing import TONES, Drawing
from qwen_cuda.simulator.memory_model import BANK_BYTES, BANKS
from qwen_cuda.simulator.requests import Request
from qwen_cuda.simulator.timeline import lanes_text

WIDTH, LEFT, RIGHT = 720.0, 68.0, 12.0
TOP, ROW = 78.0, 20.0
PHASES = {1: "", 2: "half", 4: "quarter"}


@dataclass(frozen=True, eq=False)
class BankMap:
    """The picture of a request. `svg()` is its text; a notebook shows it by itself."""

    request: Request

    @property
    def rows(self) -> list[tuple[int, dict[int, list[tuple[int, list[int]]]]]]:
        """For each part of the warp that is served at a time: its number, and bank → [(word, lanes), …]."""
        r = self.request
        parts = memory_model.phases(r.lanes, r.sizes)
        found: list[tuple[int, dict[int, list[tuple[int, list[int]]]]]] = []
        for part in np.unique(parts).tolist():
            words: dict[int, list[int]] = {}
            for index in np.flatnonzero(parts == part).tolist():
                first, last = int(r.offsets[index]), int(r.offsets[index] + r.sizes[index]) - 1
                for word in range(first // BANK_BYTES, last // BANK_BYTES + 1):
                    words.setdefault(word, []).append(int(r.lanes[index]))
            banks: dict[int, list[tuple[int, list[int]]]] = {}
            for word in sorted(words):
                asked = [[lane] for lane in words[word]] if r.kind == "atomic" else [words[word]]
                banks.setdefault(word % BANKS, []).extend((word, lanes) for lanes in asked)
            found.append((part, banks))
        return found

    @property
    def headline(self) -> str:
        """What is asked for, and how often memory must be asked."""
        r, (needed, ideal) = self.request, self.request.wavefronts
        size = int(r.sizes.max())
        times = f"served in {needed} wavefront{'s' if needed != 1 else ''}"
        if needed > ideal:
            times += f", {needed - ideal} of them for bank conflicts"
        return f"{r.kind} {r.target}, {r.lanes.size} lanes × {size} byte{'s' if size != 1 else ''}: {times}"

    def svg(self) -> str:
        """A column for each bank, a box for each word that it must serve, with its lanes. Red: it has to wait."""
        rows = self.rows
        heights = [max(len(words) for words in banks.values()) for _, banks in rows]
        height = TOP + sum(heights) * ROW + 14 * len(rows) + 32
        title = f"Bank map: {self.headline}"
        drawing = Drawing(WIDTH, height, title, self._description(rows))
        drawing.text(16, 26, self.headline, "acc strong" if self.request.bank_conflicts else "strong")
        drawing.text(16, 48, self.request.site.label, "small")
        pitch = (WIDTH - LEFT - RIGHT) / BANKS
        drawing.text(LEFT - 10, TOP - 8, "bank", "small", anchor="end")
        for bank in range(BANKS):
            drawing.text(LEFT + (bank + 0.5) * pitch, TOP - 8, str(bank), "tiny", anchor="middle")
        y = TOP
        for (part, banks), deep in zip(rows, heights, strict=True):
            name = PHASES[max(1, len(rows))] if len(rows) in PHASES else "part"
            drawing.text(
                LEFT - 10, y + 14, f"{name} {part}".strip() if len(rows) > 1 else "lane", "small", anchor="end"
            )
            for bank in range(BANKS):
                self._draw_bank(drawing, LEFT + bank * pitch, y, pitch, banks.get(bank, []))
            y += deep * ROW + 14
        note = "a column: a bank, which serves one 4-byte word at a time; a box: a word, with its lane (×n: n lanes)"
        drawing.text(16, y + 12, note, "small")
        return str(drawing)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _draw_bank(
        self, drawing: Drawing, x: float, y: float, pitch: float, words: list[tuple[int, list[int]]]
    ) -> None:
        if not words:
            drawing.rect(x + 1, y, pitch - 2, ROW - 3, "empty")
        tone = TONES[self.request.kind]
        for depth, (word, lanes) in enumerate(words):
            hint = f"word {word}: {lanes_text(sum(1 << lane for lane in lanes))}"
            drawing.rect(x + 1, y + depth * ROW, pitch - 2, ROW - 3, f"solid {'acc' if depth else tone}", hint)
            label = str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}"
            drawing.text(x + pitch / 2, y + depth * ROW + 13, label, "on", anchor="middle")

    def _description(self, rows: list[tuple[int, dict[int, list[tuple[int, list[int]]]]]]) -> str:
        worst = [(len(words), bank, part) for part, banks in rows for bank, words in banks.items()]
        most, bank, _ = max(worst)
        if not self.request.bank_conflicts:
            return f"{self.headline}. No bank is asked for two words at a time."
        return f"{self.headline}. Bank {bank} is asked for {most} different words at a time."


def bank_map(request: Request) -> BankMap:
    """The picture of a request to shared memory.

    Raises:
        ValueError: the request is to global memory; see `access_pattern`.
    """
    if request.space != "shared":
        raise ValueError(f"request goes to {request.target}, in global memory; draw it with access_pattern.")
    return BankMap(request)
