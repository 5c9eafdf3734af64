"""The drawings of a trace show each lane, sector and bank once, and can be read in any colour scheme."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from qwen_cuda import simulator
from qwen_cuda.simulator.drawing import COLORS, TONES, Drawing
from qwen_cuda.simulator.requests import Meeting
from qwen_cuda.simulator.source_lines import Frame, Site
from qwen_cuda.simulator.timeline import Timeline, in_order, lanes_text
from qwen_cuda.simulator.trace_file import Launch, MemoryObject

SITE = Site(0, (Frame("kernel", "/src/copy.cu", 7),))
SVG = "{http://www.w3.org/2000/svg}"


def request(
    offsets: list[int],
    size: int = 4,
    space: str = "global",
    kind: str = "load",
    lanes: list[int] | None = None,
    order: int = 0,
    bytes_before: int = 0,
) -> simulator.Request:
    """A request of the lanes 0, 1, … (or `lanes`) with these byte offsets."""
    who = np.array(lanes if lanes is not None else range(len(offsets)))
    target = MemoryObject("x<y>", space, 8192, 4096 + bytes_before, "")
    sizes = np.full(who.size, size)
    return simulator.Request(
        0, 0, 0, SITE, who, np.full(who.size, order), kind, space, target, np.array(offsets), sizes
    )


def meeting(name: str, mask: int, lanes: list[int], order: list[int]) -> Meeting:
    return Meeting(0, 0, 0, SITE, np.array(lanes), np.array(order), name, mask)


def parsed(drawing: object) -> ElementTree.Element:
    text = drawing._repr_svg_()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return ElementTree.fromstring(text)


def boxes(root: ElementTree.Element, style: str) -> list[ElementTree.Element]:
    return [
        rect for rect in root.iter(f"{SVG}rect") if rect.get("class", "").split()[: len(style.split())] == style.split()
    ]


def words(root: ElementTree.Element) -> str:
    return " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


COALESCED, STRIDED = [4 * i for i in range(32)], [128 * i for i in range(32)]


@pytest.mark.parametrize(
    ("made", "sectors", "lines"),
    [(request(COALESCED), 4, 1), (request(STRIDED), 32, 32), (request(COALESCED, bytes_before=4), 5, 2)],
    ids=["coalesced", "strided", "misaligned"],
)
def test_access_pattern_tints_the_sectors_that_move(made: simulator.Request, sectors: int, lines: int) -> None:
    root = parsed(simulator.access_pattern(made))
    assert len(boxes(root, "moved q")) == sectors
    assert len(boxes(root, "moved q")) + len(boxes(root, "empty")) == 4 * lines
    assert len(list(root.iter(f"{SVG}line"))) == 32
    assert f"{sectors} sectors" in words(root)


def test_access_pattern_leads_each_lane_to_its_bytes() -> None:
    root = parsed(simulator.access_pattern(request(COALESCED)))
    for line in root.iter(f"{SVG}line"):  # one line of memory, as wide as the warp: straight down
        assert float(line.get("x1", "nan")) == pytest.approx(float(line.get("x2", "nan")), abs=1.5)
    shuffled = request(COALESCED[::-1])
    ends = [float(line.get("x2", "nan")) for line in parsed(simulator.access_pattern(shuffled)).iter(f"{SVG}line")]
    assert ends == sorted(ends, reverse=True)


def test_access_pattern_leaves_lanes_that_take_no_part_empty() -> None:
    root = parsed(simulator.access_pattern(request([0, 4], lanes=[3, 17], kind="store")))
    assert len(list(root.iter(f"{SVG}line"))) == 2
    hints = [rect.findtext(f"{SVG}title") or "" for rect in root.iter(f"{SVG}rect")]
    assert "lane 17: bytes 4 to 7 of x<y>" in hints
    assert sum("takes no part" in hint for hint in hints) == 30


@pytest.mark.parametrize(("stride", "red"), [(1, 0), (2, 16), (32, 31), (33, 0)])
def test_bank_map_shows_in_red_who_must_wait(stride: int, red: int) -> None:
    root = parsed(simulator.bank_map(request([4 * stride * lane for lane in range(32)], space="shared")))
    assert len(boxes(root, "solid acc")) == red
    assert len(boxes(root, "solid q")) == 32 - red
    assert len(boxes(root, "solid q")) + len(boxes(root, "empty")) == 32


def test_bank_map_of_a_broadcast_is_one_box() -> None:
    root = parsed(simulator.bank_map(request([40] * 32, space="shared")))
    assert len(boxes(root, "solid q")) == 1
    assert "×32" in words(root)
    atomic = parsed(simulator.bank_map(request([40] * 32, space="shared", kind="atomic")))
    assert len(boxes(atomic, "solid acc")) == 31


def test_bank_map_of_wide_loads_has_a_row_for_each_part() -> None:
    root = parsed(simulator.bank_map(request([16 * lane for lane in range(32)], 16, "shared")))
    assert len(boxes(root, "solid q")) == 128
    assert all(f"quarter {part}" in words(root) for part in range(4))


def test_timeline_agrees_with_the_order_of_each_lane() -> None:
    low, high = list(range(16)), list(range(16, 32))
    barrier = meeting("__syncthreads", 0, list(range(32)), [1] * 16 + [2] * 16)
    events = [
        barrier,
        request([4] * 16, lanes=high, order=1),
        request([8] * 16, lanes=low, order=0),
        request([0] * 16, lanes=high, order=0),
    ]
    done = in_order(events)
    assert done[-1] is barrier
    assert done.index(events[3]) < done.index(events[1])
    assert len(done) == 4


def test_timeline_ends_though_no_order_fits() -> None:
    first, second = request([0, 0], lanes=[0, 1]), request([4, 4], lanes=[0, 1])
    first.order[:], second.order[:] = [0, 1], [1, 0]  # lane 0 did one before the other, lane 1 after it
    assert len(in_order([first, second])) == 2


def test_timeline_marks_the_lanes_of_each_step() -> None:
    events = [request(COALESCED), meeting("__shfl_xor_sync", 0xFFFF, list(range(16)), [1] * 16)]
    line = Timeline(Launch("kernel(int)", (1, 1, 1), (32, 1, 1), 0), 0, 0, events)
    root = parsed(line)
    assert len(boxes(root, "solid q")) == 32
    assert len(boxes(root, "solid v")) == len(boxes(root, "faint")) == 16
    assert "__shfl_xor_sync, mask 0x0000ffff" in words(root)
    assert "copy.cu:7" in str(line)


@pytest.mark.parametrize(
    ("mask", "text"),
    [(0xFFFFFFFF, "all lanes"), (1 << 31, "lane 31"), (0b110111, "lanes 0–2, 4–5"), (0x55555555, "16 lanes")],
)
def test_lanes_are_named_shortly(mask: int, text: str) -> None:
    assert lanes_text(mask) == text


@pytest.mark.parametrize(
    "drawing",
    [
        simulator.access_pattern(request(STRIDED)),
        simulator.bank_map(request(STRIDED, space="shared")),
        Timeline(Launch("k(int)", (1, 1, 1), (32, 1, 1), 0), 0, 0, [request(COALESCED)]),
    ],
    ids=["access pattern", "bank map", "timeline"],
)
def test_drawings_tell_their_content_and_take_the_pages_colours(drawing: object) -> None:
    root = parsed(drawing)
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    text = drawing._repr_svg_()  # type: ignore[attr-defined]
    bare = re.sub(r"var\(--[\w-]+, [^()]*\)", "", text)  # whatever is left has one colour in all schemes
    assert not re.search(r"#[0-9a-f]{3,6}\b|\b(black|white|red)\b", bare)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", "0")) + float(rect.get("width", "nan")) <= width + 0.01
        assert float(rect.get("y", "0")) + float(rect.get("height", "nan")) <= height
    assert "x<y>" in ElementTree.tostring(root, encoding="unicode", method="text") or "timeline" in str(type(drawing))


def test_colours_are_those_of_the_site() -> None:
    css = (Path(__file__).parents[1] / "docs/assets/css/site.css").read_text(encoding="utf-8")
    light = css.partition('[data-md-color-scheme="slate"]')[0]
    for name, value in COLORS.items():
        assert f"--{name}: {value};" in light
    assert set(TONES.values()) < set(COLORS)
    assert "acc" not in TONES.values()  # red says that something costs


def test_text_is_escaped() -> None:
    drawing = Drawing(10, 10, "a < b", "c & d")
    drawing.text(1, 1, "<&>")
    root = ElementTree.fromstring(str(drawing))
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == ("a < b", "c & d")
    assert words(root) == "<&>"


def test_a_request_is_drawn_by_the_drawing_of_its_memory() -> None:
    with pytest.raises(ValueError, match="in global memory"):
        simulator.bank_map(request(COALESCED))
    with pytest.raises(ValueError, match="in shared memory"):
        simulator.access_pattern(request(COALESCED, space="shared"))
