"""Builds of kernel libraries: each content once, whole or not at all, and with faults planted on demand."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_cuda.building import BuildError, Edit, Library, build, ninja_run, recipes, store, toolchain
from tests.build_kit import answer, environment, needs_compiler, source, wrapped_compiler

pytestmark = needs_compiler


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder into which this test builds."""
    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "builds"))
    return tmp_path / "builds"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What each run of ninja did, by label."""
    done: list[list[str]] = []
    real = ninja_run.run

    def run(ninja: list[str], edges: list[ninja_run.Edge], folder: Path, title: str) -> None:
        done.append([edge.label for edge in edges])
        real(ninja, edges, folder, title)

    monkeypatch.setattr(ninja_run, "run", run)
    return done


def libraries_in(builds: Path) -> list[str]:
    return sorted(path.name for path in builds.rglob("lib*.so"))


def test_what_is_built_is_found_again_without_ninja(
    builds: Path, tmp_path: Path, runs: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    library = source(tmp_path / "one.cu", "return 41 + 1;")
    first = build(library)
    assert "building 1 kernel library (once)" in capsys.readouterr().err
    assert build(library, library) == first * 2
    assert len(runs) == 1
    assert capsys.readouterr().err == ""
    assert answer(first[0]) == 42


def test_all_that_is_missing_is_built_in_one_run_and_what_exists_is_left(
    builds: Path, tmp_path: Path, runs: list[list[str]]
) -> None:
    one, two, three = (source(tmp_path / f"{name}.cu", f"return {ord(name)};") for name in ("a", "b", "c"))
    build(one)
    paths = build(one, two, three, two)
    assert [sorted(run) for run in runs[1:]] == [
        ["compiling b.cu", "compiling c.cu", "linking libb.so", "linking libc.so"]
    ]
    assert paths[1] == paths[3]


def test_a_library_is_found_by_the_content_of_all_that_it_reads(builds: Path, tmp_path: Path) -> None:
    library = source(tmp_path / "k.cu", "return VALUE;", '#include "outer.h"')
    (tmp_path / "outer.h").write_text('#  include  <stddef.h>\n#include "deep/inner.h"\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "inner.h").write_text("#define VALUE 1\n")
    (tmp_path / "other.h").write_text("#define VALUE 2\n")
    first = build(library)
    (tmp_path / "other.h").write_text("#define VALUE 3\n")
    assert build(library) == first
    (tmp_path / "deep" / "inner.h").write_text("#define VALUE 4\n")
    changed = build(library)
    assert (answer(first[0]), answer(changed[0])) == (1, 4)
    (tmp_path / "deep" / "inner.h").write_text("#define VALUE 1\n")
    assert build(library) == first


def test_a_copy_elsewhere_is_the_same_library(builds: Path, tmp_path: Path) -> None:
    assert build(source(tmp_path / "here" / "k.cu")) == build(source(tmp_path / "there" / "k.cu"))


def test_variants_flags_and_compilers_are_part_of_the_key(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = source(tmp_path / "k.cu")
    first = build(plain, Library("sim", plain.sources, "asan"))
    monkeypatch.setenv("CXX", str(wrapped_compiler(tmp_path / "bin", tmp_path / "log")))
    assert len({*first, *build(plain)}) == 3
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(recipes, "_SIM_FLAGS", (*recipes._SIM_FLAGS, "-DOTHER"))
    assert build(plain)[0] not in first


def test_of_many_sources_only_the_changed_ones_are_compiled_again(
    builds: Path, tmp_path: Path, runs: list[list[str]]
) -> None:
    source(tmp_path / "a.cu", "return b();", "int b();")
    (tmp_path / "b.cu").write_text("int b() { return 1; }\n")
    library = Library("sim", (tmp_path / "a.cu", tmp_path / "b.cu"))
    assert answer(build(library)[0]) == 1
    (tmp_path / "b.cu").write_text("int b() { return 2; }\n")
    assert answer(build(library)[0]) == 2
    assert runs[1] == ["compiling b.cu", "linking liba.so"]


@pytest.fixture
def layered(tmp_path: Path) -> Library:
    """A source that reaches low.h only through high.h, which lies beside it."""
    library = source(tmp_path / "src" / "k.cu", "return high();", '#include "lib/high.h"')
    (tmp_path / "src" / "lib").mkdir()
    (tmp_path / "src" / "lib" / "high.h").write_text('#include "low.h"\ninline int high() { return 10 * low(); }\n')
    (tmp_path / "src" / "lib" / "low.h").write_text("inline int low() { return 1 + 1; }\n")
    return library


def test_a_planted_fault_is_in_the_library_and_not_in_the_file(builds: Path, layered: Library, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    header = Library("sim", layered.sources, edits=(Edit("low.h", "1 + 1", "1 + 2"),))
    both = Library("sim", layered.sources, edits=(*header.edits, Edit("src/k.cu", "high();", "high() + 5;")))
    assert [answer(path) for path in build(layered, header, both)] == [20, 30, 35]
    assert {path: path.read_bytes() for path in before} == before


def test_an_edited_library_names_the_real_files_for_a_debugger(builds: Path, layered: Library, tmp_path: Path) -> None:
    faulty = Library("sim", layered.sources, edits=(Edit("low.h", "1 + 1", "1 + 2"),))
    content = build(faulty)[0].read_bytes()
    assert str(tmp_path / "src" / "k.cu").encode() in content
    assert b"/edited/" not in content
    assert store.UNFINISHED.encode() not in content


def test_a_fault_can_be_planted_in_a_header_of_the_project(builds: Path, tmp_path: Path) -> None:
    library = source(tmp_path / "k.cu", "return int(qwen::Dtype::kFloat16);", '#include "operators.h"')
    faulty = Library("sim", library.sources, edits=(Edit("operators.h", "kFloat16 = 1", "kFloat16 = 7"),))
    assert [answer(path) for path in build(library, faulty)] == [1, 7]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Edit("low.h", "1 + 3", ""), "'1 + 3' occurs 0 times there and must occur 1"),
        (Edit("low.h", "1", "2"), "'1' occurs 2 times there and must occur 1"),
        (Edit("low.h", "1", "2", count=3), "'1' occurs 2 times there and must occur 3"),
        (Edit("ow.h", "1 + 1", "2"), "ow.h cannot be edited: the library is not built from a file of that name."),
    ],
)
def test_an_edit_that_does_not_fit_says_so(builds: Path, layered: Library, edit: Edit, says: str) -> None:
    with pytest.raises(BuildError) as caught:
        build(Library("sim", layered.sources, edits=(edit,)))
    assert says in caught.value.sentence
    assert not builds.exists()


def test_an_edit_that_fits_two_files_is_refused(builds: Path, layered: Library, tmp_path: Path) -> None:
    (tmp_path / "src" / "low.h").write_text("// 1 + 1\n")
    source(layered.sources[0], "return high();", '#include "low.h"\n#include "lib/high.h"')
    with pytest.raises(BuildError, match="name its folder too"):
        build(Library("sim", layered.sources, edits=(Edit("low.h", "1 + 1", "2"),)))
    named = Library("sim", layered.sources, edits=(Edit("lib/low.h", "1 + 1", "7"),))
    assert answer(build(named)[0]) == 70


def test_a_compiler_error_names_the_line_and_leaves_nothing(builds: Path, layered: Library) -> None:
    broken = Library("sim", layered.sources, edits=(Edit("low.h", "1 + 1", "1 + one"),))
    with pytest.raises(BuildError) as caught:
        build(broken)
    assert "\n" not in caught.value.sentence
    assert caught.value.sentence.startswith("compiling k.cu failed: ")
    assert f"{layered.sources[0].parent}/lib/low.h:1:31: error: " in caught.value.sentence
    assert "return 1 + one;" in caught.value.output
    assert store.UNFINISHED not in str(caught.value)
    assert sorted(path.name for path in builds.iterdir()) == ["lock"]
    assert answer(build(layered)[0]) == 20


def test_a_link_error_says_what_the_linker_said(builds: Path, tmp_path: Path) -> None:
    source(tmp_path / "a.cu")
    source(tmp_path / "b.cu")
    with pytest.raises(BuildError, match=r"linking liba\.so failed: .*multiple definition"):
        build(Library("sim", (tmp_path / "a.cu", tmp_path / "b.cu")))


def test_a_missing_source_is_named(builds: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gone\.cu cannot be read: No such file or directory\.$"):
        build(Library("sim", (tmp_path / "gone.cu",)))


CHILD = """
import signal, sys
from pathlib import Path
from qwen_cuda.building import Library, build
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests themselves run in the background
print(build(Library("sim", (Path(sys.argv[1]),)))[0])
"""


def start(file: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """A Python of its own that builds `file`."""
    command = [sys.executable, "-c", CHILD, str(file)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_processes_do_the_work_once(tmp_path: Path) -> None:
    log, builds = tmp_path / "log", tmp_path / "builds"
    source(tmp_path / "k.cu")
    env = environment(builds, wrapped_compiler(tmp_path / "bin", log, "sleep 1"))
    first = start(tmp_path / "k.cu", env)
    wait_for(log.exists)
    second = start(tmp_path / "k.cu", env)
    outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert outputs[0][0] == outputs[1][0] != ""
    assert "another process builds kernels" in outputs[1][1]
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_build_that_ends_early_leaves_nothing_half_made(number: signal.Signals, tmp_path: Path, builds: Path) -> None:
    log, survived = tmp_path / "log", tmp_path / "survived"
    library = source(tmp_path / "k.cu")
    compiler = wrapped_compiler(tmp_path / "bin", log, f"sleep 2; touch {survived}")
    process = start(tmp_path / "k.cu", environment(builds, compiler))
    wait_for(log.exists)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)  # of a process group with children, as a closed terminal or a full memory does
    else:
        process.send_signal(number)
    process.communicate(timeout=120)
    assert libraries_in(builds) == []
    if number == signal.SIGINT:  # it had the time to clean up
        assert sorted(path.name for path in builds.iterdir()) == ["lock"]
        time.sleep(2.5)
        assert not survived.exists()  # its compilers ended with it
    assert answer(build(library)[0]) == 1
    assert list(builds.glob(f"{store.UNFINISHED}*")) == []


def test_without_locks_builds_still_work(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    (builds / f"{store.UNFINISHED}of-somebody-else").mkdir(parents=True)
    assert answer(build(source(tmp_path / "k.cu"))[0]) == 1
    assert (builds / f"{store.UNFINISHED}of-somebody-else").exists()


def test_the_slower_of_two_builders_uses_the_result_of_the_faster(tmp_path: Path) -> None:
    made, place = tmp_path / "made", tmp_path / "kind" / "place"
    made.mkdir()
    (made / "libk.so").write_text("slow")
    place.mkdir(parents=True)
    (place / "libk.so").write_text("fast")
    store.move(made, place)
    assert (place / "libk.so").read_text() == "fast"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_progress_and_a_log_one_line(tmp_path: Path) -> None:
    edges = [ninja_run.Edge(f"{name}", ["sh", "-c", f"sleep 1.2; touch {name}"], name) for name in ("a", "b$")]
    ninja, log, terminal = toolchain.ninja().words, io.StringIO(), Terminal()
    ninja_run.run(ninja, edges, tmp_path, "building", log)
    assert log.getvalue() == "building ...\n"
    for name in ("a", "b$"):
        (tmp_path / name).unlink()
    ninja_run.run(ninja, edges, tmp_path, "building", terminal)
    shown = terminal.getvalue()
    assert "\rbuilding ... 1 s" in shown  # while nothing ends
    assert "\rbuilding ... 2 of 2 steps, " in shown
    assert shown.endswith("\r\x1b[K")


def test_ninja_uses_the_cores_that_the_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert ninja_run.jobs() == 3
    monkeypatch.setenv("MAX_JOBS", "2")
    assert ninja_run.jobs() == 2
