"""What a report says of the machine: ceilings of our own kernels, a busy or slowed GPU, peers, a progress bar."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from qwen_cuda.benchmarking import Case, Ceilings, Quantiles, Report, bandwidth, gpu_state, measure_ceilings, peers
from qwen_cuda.benchmarking.bandwidth import SOURCE, Streams
from qwen_cuda.benchmarking.gpu_state import GpuState, before, during
from qwen_cuda.benchmarking.progress import progress
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import load

CPU = torch.device("cpu")
SMS = 3
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")


FAULTS = {
    "a pack is left out": (Edit("bandwidth.cu", "j * kThreads < left", "j * kThreads + 1 < left"), "words that were"),
    "a register is stored twice": (Edit("bandwidth.cu", "to[i] = tile[j];", "to[i] = tile[0];"), "the copy differs"),
}


@pytest.fixture(scope="module")
def simulated() -> Callable[..., Streams]:
    """Our kernels in the simulator, with a fault planted in them."""
    planted = [(), *((edit,) for edit, _ in FAULTS.values())]
    libraries = {edits: Library("sim", (SOURCE,), edits=edits) for edits in planted}
    build(*libraries.values())  # together
    return lambda *edits: Streams(load(libraries[edits]).handle, SMS, stream=lambda: 0)


def random_words(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int32)


# A tile has at most 512 * 8 packs of 4 words: less than a tile, whole tiles for each block, and a piece at the end.
@pytest.mark.parametrize("packs", [1, 511, 512 * 8, 512 * 8 * SMS * 2 + 517])
def test_our_reader_reads_every_word_and_our_copy_copies_every_word(
    packs: int, simulated: Callable[..., Streams]
) -> None:
    data = random_words(4 * packs)
    streams = simulated()
    assert streams.wrong(data, torch.empty_like(data)) is None
    streams.empty()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reader_or_copy_that_leaves_something_out_is_not_used(fault: str, simulated: Callable[..., Streams]) -> None:
    edit, says = FAULTS[fault]
    data = random_words(4 * 4097)
    assert says in (simulated(edit).wrong(data, torch.empty_like(data)) or "")


def test_without_nvcc_there_is_a_sentence_in_place_of_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_build(library: Library) -> Any:
        raise bandwidth.BuildError("nvcc is needed to build for a GPU.")

    monkeypatch.setattr(bandwidth, "load", no_build)
    bandwidth.streams.cache_clear()
    said = bandwidth.streams(torch.device("cuda:9"))
    bandwidth.streams.cache_clear()
    assert isinstance(said, str)
    assert said.endswith("nvcc is needed to build for a GPU.")


@pytest.mark.cuda
@NO_GPU
def test_our_kernels_are_right_on_a_gpu_and_raise_the_ceilings() -> None:
    device = torch.device("cuda")
    streams = bandwidth.streams(device)
    assert isinstance(streams, Streams), streams
    for words in (4, 4 * 4097, 2**22 + 12):
        data = random_words(words).cuda()
        assert streams.wrong(data, torch.empty_like(data)) is None
    ceilings = measure_ceilings(device, quick=True)
    assert ceilings.graph_node_us is not None
    assert 0.2 < ceilings.graph_node_us < 10
    assert set(ceilings.reached_by) == {"read", "copy"}


def test_the_floor_counts_copies_and_empty_kernels() -> None:
    ceilings = Ceilings(100.0, 50.0, {}, graph_node_us=1.5)
    assert ceilings.floor_us(200_000) == pytest.approx(2.0)
    assert ceilings.floor_us(200_000, bandwidth="copy") == pytest.approx(4.0)
    assert ceilings.floor_us(200_000, nodes=2) == pytest.approx(3.0)
    assert Ceilings(100.0, 50.0, {}).floor_us(0, nodes=2) == 0, "without a GPU there is no such floor"


def test_the_better_ceiling_keeps_the_name_of_its_kernel() -> None:
    first = Ceilings(100.0, 50.0, {"float32": 1.0}, 1.5, {"read": "a", "copy": "b"})
    second = Ceilings(90.0, 60.0, {"float32": 2.0}, 1.4, {"read": "c", "copy": "d"})
    best = Ceilings(100.0, 60.0, {"float32": 2.0}, 1.4, {"read": "a", "copy": "d"})
    assert first.best(second) == second.best(first) == best


def answers(table: dict[str, str | None]) -> Callable[..., str | None]:
    """In place of nvidia-smi: what it prints for each query."""

    def output(*command: str) -> str | None:
        query = next(word for word in command if word.startswith("--query-"))
        return table.get(query.removeprefix("--query-").partition("=")[2].partition(",")[0])

    return output


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str | None]], GpuState]:
    """The state of a GPU whose nvidia-smi prints the given texts."""

    def state(table: dict[str, str | None]) -> GpuState:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
        monkeypatch.setattr("qwen_cuda.benchmarking.machine._output", answers(table))
        monkeypatch.setattr(gpu_state.os, "getpid", lambda: 77)
        return gpu_state.gpu_state(torch.device("cuda"))

    return state


def test_other_processes_are_named_without_their_paths(smi: Callable[..., GpuState]) -> None:
    apps = "77, python3, 500\n78, /opt/my server, with comma/serve, 1024\n79, [Not Found], [N/A]\n"
    state = smi({"pid": apps, "utilization.gpu": "37\n", "clocks_event_reasons.active": "0x0000000000000001"})
    assert state.others == (("serve", 1024), ("[Not Found]", None))
    said = before(state)
    assert said[0] == "2 other processes use the GPU: serve (1,024 MiB), [Not Found]. Times may be too long."
    assert said[1] == "The GPU was busy for 37 % of the time before the run. Times may be too long."
    assert during(state) == [], "an idle GPU lowers its clocks, and that is no warning"


def test_a_gpu_of_our_own_is_no_warning(smi: Callable[..., GpuState]) -> None:
    for table in ({"pid": "77, python3, 500", "utilization.gpu": "0"}, {"pid": ""}, {}):
        assert before(smi(table)) == []
    assert gpu_state.gpu_state(CPU) == GpuState()


def test_lowered_clocks_are_explained_by_either_name_of_the_query(smi: Callable[..., GpuState]) -> None:
    want = ["The GPU lowers its clocks, because of the power limit and temperature."]
    assert during(smi({"clocks_event_reasons.active": "0x0000000000000024"})) == want
    assert during(smi({"clocks_throttle_reasons.active": "0x0000000000000024"})) == want
    assert during(smi({"clocks_event_reasons.active": "[N/A]"})) == []


def test_a_warning_is_said_at_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: Ceilings(9.0, 8.0, {}))
    busy = GpuState(others=(("serve", 1024),), slowed_by=("temperature",))
    monkeypatch.setattr(gpu_state, "gpu_state", lambda device: busy)
    report = Report("ch02_x", CPU)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"warning: {note}" for note in report.notes]
    assert len(said) == 2
    assert (report.provenance["other_processes"], report.provenance["slowed_by"]) == (1, ["temperature"])


def test_a_table_shows_warm_cases_beside_cold_ones_and_notes_with_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings(100.0, 50.0, {}, graph_node_us=1.0)
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: ceilings)
    report = Report("ch02_x", CPU)
    us = Quantiles(4.0, 4.0, 4.0)
    report.add(Case("norm", "ours", {"rows": 1}, "bfloat16", "cold", bytes=100_000, bandwidth="copy", nodes=1, us=us))
    report.add(Case("norm", "ours", {"rows": 1}, "bfloat16", "warm", nodes=1, us=us))
    report.note("norm [1, 1024]: left out.")
    out = io.StringIO()
    report.print(Console(file=out, width=120))
    text = out.getvalue()
    assert "ours, warm" in text
    assert "50.0" in text, "the copy floor of 2 µs"
    assert "25.0" in text, "the node floor of 1 µs"
    assert "norm [1, 1024]: left out." in text
    assert "an empty kernel in a CUDA graph: 1.00 µs" in text


def test_missing_peers_are_one_sentence_without_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    empty = peers.vllm({"QWEN_PEERS": str(tmp_path)})
    (tmp_path / peers.LIBRARY).write_bytes(b"no library")
    broken = peers.vllm({"QWEN_PEERS": str(tmp_path)})
    for said in (peers.vllm({}), empty, broken):
        assert isinstance(said, str)
        assert said.startswith("vLLM's operators are left out: ")
        assert str(tmp_path) not in said
        assert "\n" not in said


def test_a_progress_bar_shows_on_a_terminal_only() -> None:
    piped, terminal = io.StringIO(), io.StringIO()
    for file, is_terminal in ((piped, False), (terminal, True)):
        with progress(3, Console(file=file, force_terminal=is_terminal, width=100)) as begin:
            for part in ("first", "second", "rms_norm [8, 1024]"):
                begin(part)
    assert piped.getvalue() == ""
    assert "rms_norm [8, 1024]" in terminal.getvalue()
    assert "2/3" in terminal.getvalue(), "the last part is still running"
