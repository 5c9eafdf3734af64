"""What one warp did, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from qwen_cuda.simulator.drawing import TONES, Drawing
from qwen_cuda.simulator.memory_model import WARP
from qwen_cuda.simulator.requests import Event, Meeting, Request
from qwen_cuda.simulator.source_lines import short_name
from qwen_cuda.simulator.summary import percent
from qwen_cuda.simulator.trace_file import Launch

ALL_LANES = (1 << WARP) - 1
LETTER = 7  # about the width of a letter in a drawing


def in_order(events: Sequence[Event]) -> list[Event]:
    """The events of one warp in an order that agrees with that of each lane."""
    waiting: list[deque[Event]] = [deque() for _ in range(WARP)]
    for lane, queue in enumerate(waiting):
        of_lane = [(int(e.order[e.lanes == lane][0]), i) for i, e in enumerate(events) if lane in e.lanes]
        queue.extend(events[i] for _, i in sorted(of_lane))
    done: list[Event] = []
    seen: set[int] = set()
    while heads := [queue[0] for queue in waiting if queue]:
        # An event is next when it is so for all its lanes. There may be none: lanes that went through a loop in turns.
        ready = [event for event in heads if all(waiting[lane][0] is event for lane in event.lanes if waiting[lane])]
        chosen = (ready or heads)[0]
        for queue in waiting:
            if queue and queue[0] is chosen:
                queue.popleft()
        if id(chosen) not in seen:
            seen.add(id(chosen))
            done.append(chosen)
    return done


def lanes_text(mask: int) -> str:
    """Such as "all lanes", "lane 3" or "lanes 0–15, 20"."""
    if mask == ALL_LANES:
        return "all lanes"
    lanes = [lane for lane in range(WARP) if mask >> lane & 1]
    parts: list[str] = []
    start = 0
    for i in range(1, len(lanes) + 1):
        if i == len(lanes) or lanes[i] != lanes[i - 1] + 1:
            parts.append(str(lanes[start]) if i - start == 1 else f"{lanes[start]}–{lanes[i - 1]}")
            start = i
    if len(parts) > 4:
        return f"{len(lanes)} lanes"
    return ("lane " if len(lanes) == 1 else "lanes ") + ", ".join(parts)


@dataclass(frozen=True)
class Step:
    """An instruction of the warp. `what` says what it does, `cost` what it costs the memory."""

    number: int
    event: Event
    what: str
    cost: str

    @property
    def kind(self) -> str:
        """ "load", "store", "atomic", "barrier" or "warp function"."""
        if isinstance(self.event, Request):
            return self.event.kind
        return "warp function" if isinstance(self.event, Meeting) and self.event.named_lanes else "barrier"


def step_of(number: int, event: Event) -> Step:
    """Puts an event into words."""
    if isinstance(event, Meeting):
        named = event.named_lanes
        mask = f", mask {named:#010x}" if named and named != ALL_LANES else ""
        return Step(number, event, f"{event.name}{mask}", "")
    assert isinstance(event, Request)
    low, high = int(event.offsets.min()), int((event.offsets + event.sizes).max())
    what = f"{event.kind} {event.target}" + (f", bytes {low}–{high - 1}" if event.object else "")
    if event.space == "global":
        count = event.transactions.sectors
        return Step(number, event, what, f"{count} sector{'s' if count != 1 else ''}, {percent(event.efficiency)} used")
    conflicts = event.bank_conflicts
    return Step(number, event, what, f"{conflicts} bank conflict{'s' if conflicts != 1 else ''}" if conflicts else "")


@dataclass(frozen=True)
class Timeline:
    """The steps of one warp of a launch, with the bytes of an operand or variable that the warp touches."""

    launch: Launch
    block: int
    warp: int
    events: Sequence[Event]
    steps: Sequence[Step] = field(init=False)

    def __post_init__(self) -> None:
        steps = tuple(step_of(i + 1, event) for i, event in enumerate(in_order(self.events)))
        object.__setattr__(self, "steps", steps)

    def __str__(self) -> str:
        rows = [
            (str(s.number), s.event.site.label, s.what, lanes_text(s.event.mask), s.cost, s.event.site.source)
            for s in self.steps
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        lines = [f"{self.launch.kernel}: block {self.block}, warp {self.warp}"]
        for row in rows:
            rest = (cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join([row[0].rjust(widths[0]), *rest]).rstrip())
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """A row for each step: its line, the lanes that take part, what it does."""
        row, cell, top = 22, 8, 62
        files = {step.event.site.label.partition(":")[0] for step in self.steps}
        labels = [step.event.site.label for step in self.steps]
        name = f"{short_name(self.launch.kernel)}, block {self.block}, warp {self.warp}"
        heading = name
        if len(files) == 1:
            labels = [f"line {label.partition(':')[2]}" for label in labels]
            heading += f", in {files.pop()}"
        texts = [step.what + (f" · {step.cost}" if step.cost else "") for step in self.steps]
        left = 48 + LETTER * max(map(len, labels))
        right = left + WARP * cell + 16
        told = " ".join(f"{s.number}. {s.what}, {lanes_text(s.event.mask)}." for s in self.steps)
        width = max(720, right + LETTER * max(map(len, texts)) + 16)
        drawing = Drawing(width, top + row * len(self.steps) + 14, f"{name}, step by step", told)
        drawing.text(16, 26, heading, "strong")
        drawing.text(left - 12, top - 8, "lane", "small", anchor="end")
        for lane in (0, 8, 16, 24, 31):
            drawing.text(left + (lane + 0.5) * cell, top - 8, str(lane), "small", anchor="middle")
        for index, (step, label, text) in enumerate(zip(self.steps, labels, texts, strict=True)):
            y = top + index * row
            drawing.text(16, y + 15, str(step.number), "small")
            drawing.text(left - 12, y + 15, label, "small", anchor="end")
            active = set(step.event.lanes.tolist())
            for lane in range(WARP):
                style = f"solid {TONES[step.kind]}" if lane in active else "faint"
                drawing.rect(left + lane * cell + 1, y + 3, cell - 2, row - 8, style)
            drawing.text(right, y + 15, text)
        return str(drawing)
