"""A picture of one warp's request to global memory: which lane asks for which bytes, and which sectors move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qwen_cuda.simulator import memory_model
from qwen_cuda.simulator.drawing import TONES, Drawing
from qwen_cuda.simulator.memory_model import LINE_BYTES, SECTOR_BYTES, WARP
from qwen_cuda.simulator.requests import Request
from qwen_cuda.simulator.summary import percent

WIDTH, MARGIN = 720.0, 14.0
LANE_Y, LANE_HEIGHT = 66.0, 22.0
MEMORY_Y, MEMORY_HEIGHT = 176.0, 26.0
SECTORS_OF_LINE = LINE_BYTES // SECTOR_BYTES


@dataclass(frozen=True, eq=False)
class AccessPattern:
    """The picture of a request. `svg()` is its text; a notebook shows it by itself."""

    request: Request

    @property
    def headline(self) -> str:
        """What is asked for, and what moves for it."""
        r, moved = self.request, self.request.transactions
        size = int(r.sizes.max())
        lanes = f"{r.lanes.size} lane{'s' if r.lanes.size != 1 else ''} × {size} byte{'s' if size != 1 else ''}"
        return f"{r.kind} {r.target}, {lanes}: {_count(moved.sectors, 'sector')} in {_count(moved.lines, 'line')}"

    @property
    def balance(self) -> str:
        """Bytes wanted and moved."""
        r = self.request
        return f"{r.bytes_requested} bytes wanted, {r.bytes_moved} moved: {percent(r.efficiency)} used"

    def svg(self) -> str:
        """Lanes above, memory below, a line from each lane to its bytes. Tinted: what moves; solid: what is wanted."""
        r = self.request
        tone = TONES[r.kind]
        drawing = Drawing(WIDTH, MEMORY_Y + MEMORY_HEIGHT + 54, f"Access pattern: {self.headline}", self._description())
        drawing.text(MARGIN, 26, self.headline, "strong")
        drawing.text(WIDTH - MARGIN, 26, self.balance, "" if r.efficiency == 1 else "acc", anchor="end")
        drawing.text(MARGIN, LANE_Y - 10, f"lanes of warp {r.warp}, block {r.block}", "small")
        drawing.text(WIDTH - MARGIN, LANE_Y - 10, r.site.label, "small", anchor="end")

        place = self._draw_memory(drawing, tone)
        pitch = (WIDTH - 2 * MARGIN) / WARP
        active = dict(zip(r.lanes.tolist(), range(r.lanes.size), strict=True))
        for lane in range(WARP):
            x = MARGIN + lane * pitch
            style = f"solid {tone}" if lane in active else "empty"
            drawing.rect(x + 1, LANE_Y, pitch - 2, LANE_HEIGHT, style, self._hint(lane, active.get(lane)))
            drawing.text(x + pitch / 2, LANE_Y + 15, str(lane), "on" if lane in active else "tiny", anchor="middle")
            if lane in active:
                first = int(r.addresses[active[lane]])
                middle = (place(first) + place(first + int(r.sizes[active[lane]]) - 1)) / 2
                drawing.line(x + pitch / 2, LANE_Y + LANE_HEIGHT, middle, MEMORY_Y, f"link {tone}")
        return str(drawing)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _draw_memory(self, drawing: Drawing, tone: str) -> Callable[[int], float]:
        """Draws the lines that are touched. Returns the x of (the middle of) a byte."""
        r = self.request
        lines = memory_model.segments(r.addresses, r.sizes, LINE_BYTES).tolist()
        moved = set(memory_model.segments(r.addresses, r.sizes, SECTOR_BYTES).tolist())
        gap = 10.0 if len(lines) <= 16 else 4.0
        width = (WIDTH - 2 * MARGIN - gap * (len(lines) - 1)) / len(lines)
        sector = width / SECTORS_OF_LINE
        start = {line: MARGIN + i * (width + gap) for i, line in enumerate(lines)}
        shift = int(r.addresses[0] - r.offsets[0])  # from an offset in the operand to an address

        def place(address: int) -> float:
            return start[address // LINE_BYTES] + (address % LINE_BYTES + 0.5) * width / LINE_BYTES

        for line in lines:
            for k in range(SECTORS_OF_LINE):
                style = f"moved {tone}" if line * SECTORS_OF_LINE + k in moved else "empty"
                drawing.rect(start[line] + k * sector, MEMORY_Y, sector, MEMORY_HEIGHT, style)
            if len(lines) <= 8:
                drawing.text(start[line], MEMORY_Y + MEMORY_HEIGHT + 16, f"byte {line * LINE_BYTES - shift}", "small")
        byte = width / LINE_BYTES
        for first, last in _runs(r):
            for line in range(first // LINE_BYTES, last // LINE_BYTES + 1):
                low, high = max(first, line * LINE_BYTES), min(last, (line + 1) * LINE_BYTES - 1)
                drawing.rect(
                    place(low) - byte / 2, MEMORY_Y + 7, (high - low + 1) * byte, MEMORY_HEIGHT - 14, f"solid {tone}"
                )
        if len(lines) > 8:
            low, high = lines[0] * LINE_BYTES - shift, (lines[-1] + 1) * LINE_BYTES - shift
            drawing.text(
                MARGIN,
                MEMORY_Y + MEMORY_HEIGHT + 16,
                f"{len(lines)} lines between bytes {low} and {high} of {r.target}",
                "small",
            )
        note = "a box: one sector of 32 bytes, four to a line; tinted: it moves; solid: bytes that a lane wants"
        drawing.text(MARGIN, MEMORY_Y + MEMORY_HEIGHT + 40, note, "small")
        return place

    def _hint(self, lane: int, index: int | None) -> str:
        if index is None:
            return f"lane {lane} takes no part"
        low, size = int(self.request.offsets[index]), int(self.request.sizes[index])
        return f"lane {lane}: bytes {low} to {low + size - 1} of {self.request.target}"

    def _description(self) -> str:
        r = self.request
        pairs = ", ".join(
            f"lane {lane} byte {byte}" for lane, byte in zip(r.lanes.tolist(), r.offsets.tolist(), strict=True)
        )
        return f"{self.balance}. First byte of each lane in {r.target}: {pairs}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _runs(request: Request) -> list[tuple[int, int]]:
    """First and last address of each stretch of wanted bytes."""
    steps = np.arange(int(request.sizes.max()))
    grid = request.addresses[:, None] + steps
    wanted = np.unique(grid[steps < request.sizes[:, None]])
    cuts = np.flatnonzero(np.diff(wanted) != 1)
    firsts, lasts = np.concatenate([[0], cuts + 1]), np.concatenate([cuts, [wanted.size - 1]])
    return [(int(wanted[a]), int(wanted[b])) for a, b in zip(firsts, lasts, strict=True)]


def access_pattern(request: Request) -> AccessPattern:
    """The picture of a request to global memory.

    Raises:
        ValueError: the request is to shared memory; see `bank_map`.
    """
    if request.space != "global":
        raise ValueError(f"request goes to {request.target}, in shared memory; draw its banks with bank_map.")
    return AccessPattern(request)
