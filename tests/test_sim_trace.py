"""The trace counts requests, sectors, bytes and bank conflicts as one counts them by hand."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_cuda import loading, simulator
from qwen_cuda.building import build, toolchain
from qwen_cuda.simulator import memory_model
from qwen_cuda.simulator.source_lines import short_name
from tests.build_kit import needs_compiler
from tests.sim_checked_kit import FAULTS, PATTERNS, call, marked, traced


@pytest.fixture(scope="module")
def patterns() -> ctypes.CDLL:
    build(FAULTS, PATTERNS)  # at once
    return loading.load(PATTERNS).handle


def only(requests: list[simulator.Request]) -> simulator.Request:
    (request,) = requests
    return request


# Kernel, its number, whose request; then bytes a lane, sectors, lines, bytes asked for, efficiency.
GLOBAL = [
    ("strided", 1, "in", 4, 4, 1, 128, 1.0),  # 32 × 4 bytes in a row
    ("strided", 2, "in", 4, 8, 2, 128, 0.5),
    ("strided", 8, "in", 4, 32, 8, 128, 0.125),  # a sector for each lane
    ("strided", 32, "in", 4, 32, 32, 128, 0.125),  # a line for each lane
    ("strided", 0, "in", 4, 1, 1, 4, 0.125),  # one word for all
    ("shifted", 1, "in", 4, 5, 2, 128, 0.8),  # begins inside a sector, and ends in a fifth
    ("shifted", 8, "in", 4, 4, 2, 128, 1.0),  # begins at a sector that is not the first of its line
    ("four_at_once", 1, "in", 16, 16, 4, 512, 1.0),
    ("four_at_once", 1, "out", 16, 16, 4, 512, 1.0),
    ("copied", 1, "in", 16, 16, 4, 512, 1.0),
    ("copied", 1, "out", 16, 16, 4, 512, 1.0),
    ("made_in_place", 1, "in", 4, 4, 1, 128, 1.0),
    ("made_in_place", 1, "out", 16, 16, 4, 512, 1.0),
    ("braces", 1, "out", 8, 8, 2, 256, 1.0),
    ("bf16_pairs", 1, "out", 4, 4, 1, 128, 1.0),
    ("updates", 1, "out", 4, 2, 1, 64, 1.0),  # two lanes to a word
]


@needs_compiler
@pytest.mark.parametrize(("name", "number", "target", "size", "sectors", "lines", "asked", "efficiency"), GLOBAL)
def test_global_requests_are_counted_as_by_hand(
    name: str,
    number: int,
    target: str,
    size: int,
    sectors: int,
    lines: int,
    asked: int,
    efficiency: float,
    patterns: ctypes.CDLL,
) -> None:
    request = only(traced(patterns, name, number).where(target=target))
    assert set(request.sizes.tolist()) == {size}  # one access, not several narrow ones
    assert request.lanes.tolist() == list(range(32))
    assert request.transactions == (sectors, lines)
    assert request.bytes_requested == asked
    assert request.bytes_moved == 32 * sectors
    assert request.efficiency == efficiency


@needs_compiler
@pytest.mark.parametrize(("stride", "conflicts"), [(0, 0), (1, 0), (2, 1), (4, 3), (32, 31), (33, 0)])
def test_bank_conflicts_of_a_stride(stride: int, conflicts: int, patterns: ctypes.CDLL) -> None:
    trace = traced(patterns, "shared_stride", stride)
    request = only(trace.where(space="shared", kind="load"))
    assert request.wavefronts == (1 + conflicts, 1)
    assert request.bank_conflicts == trace.bank_conflicts == conflicts
    assert request.transactions == (0, 0)


@needs_compiler
@pytest.mark.parametrize(("name", "size", "parts"), [("shared_float2", 8, 2), ("shared_float4", 16, 4)])
def test_vectors_in_shared_memory_are_served_in_parts(name: str, size: int, parts: int, patterns: ctypes.CDLL) -> None:
    trace = traced(patterns, name)
    vector = only(trace.where(line=marked("checked_patterns.cu", "shared_vector"), space="shared"))
    assert set(vector.sizes.tolist()) == {size}
    assert vector.wavefronts == (parts, parts)
    element = only(trace.where(line=marked("checked_patterns.cu", "shared_element"), space="shared"))
    assert element.wavefronts == (parts, 1)  # every second or fourth word: two or four lanes to a bank


@needs_compiler
def test_atomics_on_one_word_wait_and_loads_of_it_do_not(patterns: ctypes.CDLL) -> None:
    trace = traced(patterns, "shared_atomic")
    assert only(trace.where(kind="atomic")).bank_conflicts == 31
    assert only(trace.where(line=marked("checked_patterns.cu", "broadcast"), kind="load")).bank_conflicts == 0


@needs_compiler
def test_lanes_that_go_apart_make_requests_of_their_own(patterns: ctypes.CDLL) -> None:
    if toolchain.cxx().is_clang:
        pytest.skip("clang makes one store of those of both branches")
    trace = traced(patterns, "half_of_warp", 20)
    stores = trace.where(target="out")
    assert [request.lanes.tolist() for request in stores] == [list(range(20)), list(range(20, 32))]
    assert [request.transactions.sectors for request in stores] == [3, 2]
    assert trace.transactions == (3 + 3 + 2, 3)


@needs_compiler
def test_each_turn_of_a_loop_is_a_request(patterns: ctypes.CDLL) -> None:
    loads = traced(patterns, "in_a_loop", 5).where(line=marked("checked_patterns.cu", "loop"))
    assert [request.offsets.tolist() for request in loads] == [
        [128 * i + 4 * lane for lane in range(32)] for i in range(5)
    ]


@needs_compiler
def test_helper_functions_count_for_the_kernels_line(patterns: ctypes.CDLL) -> None:
    build(FAULTS)
    trace = traced(loading.load(FAULTS).handle, "in_helper", 0, 32, 32)
    site = only(trace.where(target="tile", kind="store", block=1)).site
    assert site.label == marked("checked_faults.cu", "in_helper")
    assert [(frame.function.split("(")[0], Path(frame.file).name) for frame in site.chain[:1]] == [
        ("store_at", "checked_helper.cuh")
    ]
    assert site.source.startswith("store_at(tile, ")


@needs_compiler
def test_timeline_tells_what_a_warp_did_in_order(patterns: ctypes.CDLL) -> None:
    trace = traced(patterns, "two_warps")
    first = [(step.kind, step.event.mask) for step in trace.timeline(block=1, warp=0).steps]
    everybody = (1 << 32) - 1
    meetings = [("warp function", everybody)] * 5
    assert first == [
        ("load", everybody),
        *meetings,
        ("store", 1),
        ("barrier", everybody),
        ("load", 1),
        ("load", 1),
        ("store", 1),
    ]
    assert [step.kind for step in trace.timeline(block=1, warp=1).steps] == [kind for kind, _ in first[:8]]
    text = str(trace.timeline(block=1, warp=1)).splitlines()
    assert "two_warps" in text[0]
    assert marked("checked_patterns.cu", "two_warps barrier") in text[8]
    assert "load in, bytes 128–255" in text[1]
    with pytest.raises(ValueError, match="launch 0, block 2, warp 0 is not in the trace"):
        trace.timeline(block=2)


@needs_compiler
def test_launches_have_their_kernels_and_shapes(patterns: ctypes.CDLL) -> None:
    with simulator.trace(patterns) as trace:
        for name in ("two_warps", "strided", "two_warps"):
            assert call(patterns, name, 1, 64, 32) == ""
    kernels = [(short_name(launch.kernel), launch.grid, launch.block) for launch in trace.launches]
    assert kernels == [("two_warps", (2, 1, 1), (64, 1, 1)), ("strided", (1, 1, 1), (32, 1, 1)), kernels[0]]
    counts = [len(trace.where(launch=launch)) for launch in range(3)]
    assert counts == [14, 2, 14]  # 4 loads, 4 stores to shared memory, 4 loads from it, 2 stores; a load, a store
    assert {(o.name, o.bytes) for o in trace.objects} == {("in", 256), ("out", 128), ("sums", 8)}


@needs_compiler
def test_summary_has_a_row_for_each_line_and_operand(patterns: ctypes.CDLL) -> None:
    summary = traced(patterns, "strided", 2).summary()
    (load, store) = summary.rows
    assert (load.label, load.kind, load.target) == (marked("checked_patterns.cu", "strided"), "load", "in")
    assert (load.requests, load.transactions, load.bytes_requested, load.bytes_moved) == (1, (8, 2), 128, 256)
    assert store.efficiency == 1.0
    text = str(summary)
    assert "load in" in text
    assert "50%" in text
    assert "<code>out[threadIdx.x] = in[threadIdx.x * stride];" in summary._repr_html_()


@needs_compiler
def test_a_trace_survives_the_kernels_error(patterns: ctypes.CDLL) -> None:
    with simulator.trace(patterns) as trace:
        assert "past the end of in" in call(patterns, "strided", 1, 20, 32)
    assert only(trace.where(target="in")).lanes.tolist() == list(range(20))


@needs_compiler
def test_memory_that_is_no_operand_is_traced_by_address(patterns: ctypes.CDLL) -> None:
    data = np.zeros(64, np.float32)
    patterns.strided_run.restype = ctypes.c_char_p
    with simulator.trace(patterns) as trace:
        address = ctypes.c_void_p(data.ctypes.data)
        assert patterns.strided_run(address, address, 2) == b""
    load = only(trace.where(kind="load"))
    assert load.object is None
    assert load.offsets.tolist() == [data.ctypes.data + 8 * lane for lane in range(32)]


def test_a_library_that_is_not_checked_is_refused() -> None:
    with pytest.raises(ValueError, match='variant="checked"'), simulator.trace(ctypes.CDLL(None)):
        pass


@pytest.mark.parametrize("body", [b"nothing\n", b'{"records": 2}\n' + bytes(32)])
def test_files_that_are_no_traces_are_refused(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(body)
    with pytest.raises(ValueError, match=f"{path} is (not a trace|cut off)"):
        simulator.Trace.read(path)


def test_an_empty_trace_is_empty(tmp_path: Path) -> None:
    head = {"library": "/no/such/library.so", "records": 0, "launches": [], "objects": [], "names": [], "sites": []}
    path = tmp_path / "trace"
    path.write_text(json.dumps(head) + "\n", encoding="utf-8")
    trace = simulator.Trace.read(path)
    assert trace.requests == []
    assert trace.efficiency == 1.0
    assert len(trace.summary().rows) == 0


def test_options_last_as_long_as_the_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_SEED", "5")
    monkeypatch.delenv("CUDASIM_THREADS", raising=False)
    with simulator.options(seed=3, threads=1):
        assert (os.environ["CUDASIM_SEED"], os.environ["CUDASIM_THREADS"]) == ("3", "1")
        with simulator.options(timeout=2):
            assert (os.environ["CUDASIM_SEED"], os.environ["CUDASIM_TIMEOUT"]) == ("3", "2")
    assert os.environ["CUDASIM_SEED"] == "5"
    assert "CUDASIM_THREADS" not in os.environ
    with pytest.raises(ValueError, match="threads is 0; it must be at least 1"), simulator.options(threads=0):
        pass


# ---- the counts themselves, against counts of single bytes and words
ACCESSES = st.lists(
    st.tuples(st.integers(0, 31), st.integers(0, 2**12), st.sampled_from([1, 2, 4, 8, 16])),
    min_size=1,
    max_size=32,
    unique_by=lambda access: access[0],
)


@settings(deadline=None)
@given(ACCESSES, st.sampled_from([32, 128]))
def test_segments_are_those_that_hold_a_byte(accesses: list[tuple[int, int, int]], size: int) -> None:
    _, addresses, sizes = zip(*accesses, strict=True)
    wanted = {byte for address, n in zip(addresses, sizes, strict=True) for byte in range(address, address + n)}
    assert memory_model.segments(addresses, sizes, size).tolist() == sorted({byte // size for byte in wanted})
    assert memory_model.distinct_bytes(addresses, sizes) == len(wanted)


@settings(deadline=None)
@given(ACCESSES)
def test_wavefronts_are_the_fullest_banks_of_each_part(accesses: list[tuple[int, int, int]]) -> None:
    accesses = [(lane, offset // size * size, 8 if size == 16 else size) for lane, offset, size in accesses]
    lanes, offsets, sizes = zip(*accesses, strict=True)
    served: dict[int, dict[int, set[int]]] = {}
    for lane, offset, size in accesses:
        part = 0 if size <= 4 else lane // 16
        for byte in range(offset, offset + size):
            served.setdefault(part, {}).setdefault(byte // 4 % 32, set()).add(byte // 4)
    expected = sum(max(map(len, banks.values())) for banks in served.values())
    assert memory_model.wavefronts(lanes, offsets, sizes) == (expected, len(served))
