"""Random orders of threads, AddressSanitizer and ThreadSanitizer find the planted faults, and nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from qwen_cuda.building import Library
from qwen_cuda.loading import load
from tests.build_kit import needs_compiler
from tests.simulator_programs import SOURCES, build, compiler, run

CASES = re.findall(r'\{"(\w+)"', (SOURCES / "planted.cu").read_text())
RACES = [name for name in CASES if "_without_" in name]
OVERRUNS = [name for name in CASES if name.endswith("_out_of_bounds")]
SOUND = [name for name in CASES if name not in RACES + OVERRUNS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return build(folder, "plain", ["planted.cu"])


@pytest.fixture(scope="module")
def address_sanitizer(folder: Path) -> Path:
    return _sanitized(folder, "address")


@pytest.fixture(scope="module")
def thread_sanitizer(folder: Path) -> Path:
    return _sanitized(folder, "thread")


def _sanitized(folder: Path, kind: str) -> Path:
    """The planted faults under a sanitizer; skips where the compiler lacks its runtime, or it does not start here."""
    probe = folder / f"probe-{kind}"
    flag = f"-fsanitize={kind}"
    made = subprocess.run([compiler(), flag, "-x", "c++", "-", "-o", probe], input="int main() {}", text=True)
    if made.returncode != 0 or subprocess.run([probe]).returncode != 0:
        pytest.skip(f"this compiler's {flag} does not work here")
    return build(folder, kind, ["planted.cu"], flag)


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_are_right_in_any_order(plain: Path, name: str) -> None:
    for seed in range(12):
        assert run(plain, name, CUDASIM_SEED=str(seed)).returncode == 0, f"seed {seed}"


def test_a_missing_barrier_is_right_in_order_and_wrong_in_most_others(plain: Path) -> None:
    name = "read_of_neighbour_without_barrier"
    assert run(plain, name).returncode == 0
    wrong = sum(run(plain, name, CUDASIM_SEED=str(seed)).returncode == 3 for seed in range(1, 13))
    assert wrong >= 10


def test_a_seed_repeats_its_order(plain: Path) -> None:
    first, second = (
        [run(plain, "reuse_of_a_buffer_without_barrier", CUDASIM_SEED=str(seed)).stdout for seed in range(1, 9)]
        for _ in range(2)
    )
    assert first == second


@needs_compiler
def test_preemption_at_accesses_shows_an_update_that_is_not_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = load(Library("sim", (SOURCES / "planted.cu",), "checked")).handle
    fault, sound = b"global_histogram_without_atomic", b"global_histogram"
    monkeypatch.setenv("CUDASIM_SEED", "1")
    assert checked.run_case(fault) == 0  # threads change places at barriers only
    monkeypatch.setenv("CUDASIM_PREEMPT", "3")
    assert checked.run_case(fault) == 3
    assert checked.run_case(sound) == 0


@pytest.mark.parametrize("name", SOUND)
def test_sanitizers_keep_silent_on_sound_kernels(address_sanitizer: Path, thread_sanitizer: Path, name: str) -> None:
    for program in (address_sanitizer, thread_sanitizer):
        done = run(program, name)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", OVERRUNS)
def test_address_sanitizer_finds_overruns_and_names_block_and_thread(address_sanitizer: Path, name: str) -> None:
    done = run(address_sanitizer, name)
    assert "ERROR: AddressSanitizer" in done.stdout
    assert "planted.cu:" in done.stdout
    assert re.search(r"block \(\d,0,0\).*thread \d+", done.stdout), done.stdout


@pytest.mark.parametrize("name", RACES)
def test_thread_sanitizer_finds_races_in_one_run_in_order(thread_sanitizer: Path, name: str) -> None:
    done = run(thread_sanitizer, name)
    assert "WARNING: ThreadSanitizer: data race" in done.stdout
    assert "planted.cu:" in done.stdout
