"""The doctor: each finding from the state that causes it, each probe on a stand-in, the exit code."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from qwen3_ref import hub
from qwen_cuda.doctor import __main__ as doctor
from qwen_cuda.doctor import checks, probes
from qwen_cuda.doctor.finding import Finding, Job, exit_code, note, ok, problem, without_gpu
from qwen_cuda.doctor.probes import Compiler, Driver, Torch
from qwen_cuda.doctor.report import as_json, as_text

CPU = Torch("2.13.0+cpu")
CUDA = Torch("2.13.0", "13.0", (("NVIDIA H200", 9, 0),))
BLIND = Torch("2.13.0", "13.0")
DRIVER = Driver("580.1", ("NVIDIA H200",))
GXX = Compiler("/usr/bin/c++", "g++ 12")
NVCC = Compiler("/cuda/bin/nvcc", "13.0")
EVERYTHING: tuple[Job, ...] = ("generate", "test", "gpu")
HERE = Path("/data")

CASES: list[tuple[Finding, str, str, tuple[Job, ...]]] = [
    # finding, status, a part of what it says, what it breaks
    (checks.check_python((3, 11, 0), "Linux"), "ok", "3.11.0 on Linux", ()),
    (checks.check_python((3, 10, 9), "Linux"), "problem", "3.10.9", EVERYTHING),
    (checks.check_packages([], []), "ok", "all there", ()),
    (checks.check_packages(["typer"], ["pytest"]), "problem", "missing: typer, pytest", ("generate", "test")),
    (checks.check_packages([], ["pytest"]), "problem", "missing: pytest", ("test",)),
    (checks.check_torch(CPU), "ok", "2.13.0+cpu, built without CUDA", ()),
    (checks.check_torch(CUDA), "ok", "2.13.0, built for CUDA 13.0", ()),
    (checks.check_torch(None), "problem", "not installed", EVERYTHING),
    (checks.check_torch(Torch("2.6.1")), "problem", "2.6.1", EVERYTHING),
    (checks.check_torch(Torch(error="OSError: libc10.so")), "problem", "OSError: libc10.so", EVERYTHING),
    (checks.check_gpu(None, CPU), "ok", "none", ()),
    (checks.check_gpu(DRIVER, CUDA), "ok", "NVIDIA H200 (sm_90), driver 580.1", ()),
    (checks.check_gpu(DRIVER, Torch("2.13.0", "12.6", (("Tesla T4", 7, 5),))), "ok", "sm_75", ()),
    (checks.check_gpu(DRIVER, Torch("2.13.0", "12.6", (("Tesla V100", 7, 0),))), "problem", "sm_70", ("gpu",)),
    (checks.check_gpu(DRIVER, Torch("2.13.0", "12.6", (("V100", 7, 0), ("T4", 7, 5)))), "ok", "sm_70", ()),
    (checks.check_gpu(DRIVER, CPU), "problem", "this PyTorch was built without CUDA", ("gpu",)),
    (checks.check_gpu(DRIVER, BLIND), "problem", "PyTorch for CUDA 13.0 cannot open it", ("gpu",)),
    (checks.check_gpu(DRIVER, None), "problem", "no PyTorch", ("gpu",)),
    (checks.check_gpu(Driver(error="driver mismatch"), CPU), "problem", "driver mismatch", ("gpu",)),
    (checks.check_nvcc(None, CPU, False), "ok", "not needed", ()),
    (checks.check_nvcc(NVCC, CUDA, True), "ok", "matches PyTorch's CUDA 13.0", ()),
    (checks.check_nvcc(Compiler("/n", "13.2"), CUDA, True), "ok", "13.2", ()),
    (checks.check_nvcc(Compiler("/n", "12.8"), CUDA, True), "problem", "12.8", ("gpu",)),
    (checks.check_nvcc(None, CUDA, True), "problem", "not found", ("gpu",)),
    (checks.check_nvcc(Compiler("/n", "13.0", "unsupported GNU version"), CUDA, True), "problem", "GNU", ("gpu",)),
    (checks.check_architectures((75, 90), CUDA), "ok", "compiles for sm_90", ()),
    (checks.check_architectures((75, 80), Torch("2.13.0", "12.6", (("RTX 4090", 8, 9),))), "ok", "for sm_80", ()),
    (
        checks.check_architectures((75, 80, 90), Torch("2.13.0", "12.4", (("B200", 10, 0),))),
        "problem",
        "B200",
        ("gpu",),
    ),
    (checks.check_architectures((90,), Torch("2.13.0", "12.6", (("V100", 7, 0),))), "ok", "nothing to compile for", ()),
    (checks.check_architectures((), CPU), "ok", "nothing to compile for", ()),
    (checks.check_compiler(GXX), "ok", "C++20 works", ()),
    (checks.check_compiler(None), "problem", "not found", ("test", "gpu")),
    (checks.check_compiler(Compiler("/c++", "g++ 4", "no concepts")), "problem", "no concepts", ("test", "gpu")),
    (checks.check_ninja("1.13"), "ok", "1.13", ()),
    (checks.check_ninja(None), "problem", "not found", ("test", "gpu")),
    (checks.check_disk(50 * 10**9, HERE), "ok", "50.0 GB free at /data", ()),
    (checks.check_disk(10**8, HERE), "problem", "0.1 GB free", ("test", "gpu")),
    (checks.check_model(HERE, False, 0, HERE), "ok", "is in /data", ()),
    (checks.check_model(None, False, 0, HERE), "note", "neither in /data", ()),
    (checks.check_model(None, True, 10**9, HERE), "problem", "does not fit", ("generate",)),
    (checks.check_model(None, True, 10**10, HERE), "ok", "comes from the hub", ()),
    (checks.check_hub(True, "https://h", 3), "ok", "https://h answers", ()),
    (checks.check_hub(False, "https://h", 3), "note", "did not answer within 3 s", ()),
    (checks.check_hub(None, "https://h", 3), "ok", "HF_HUB_OFFLINE", ()),
    (checks.check_chromium("/usr/bin/chromium", True), "ok", "/usr/bin/chromium", ()),
    (checks.check_chromium(None, False), "note", "skipped", ()),
    (checks.check_chromium(None, True), "problem", "fail without it", ("test",)),
]


@pytest.mark.parametrize(("finding", "status", "says", "breaks"), CASES, ids=lambda value: str(value)[:40])
def test_each_state_of_the_machine_has_its_finding(
    finding: Finding, status: str, says: str, breaks: tuple[Job, ...]
) -> None:
    assert (finding.status, finding.breaks) == (status, breaks)
    assert says in finding.detail


@pytest.mark.parametrize("finding", [case[0] for case in CASES], ids=lambda finding: finding.detail[:40])
def test_whatever_is_not_ok_says_in_one_sentence_how_to_mend_it(finding: Finding) -> None:
    assert bool(finding.mend) == (finding.status != "ok")
    if finding.mend:
        assert finding.mend.endswith(".")
        assert "\n" not in finding.mend
        assert len(finding.mend) < 140


@pytest.mark.parametrize(
    ("breaks", "code"),
    [((), 0), (("generate",), 1), (("test",), 2), (("generate", "test"), 3), (("gpu",), 4), (("test", "gpu"), 6),
     (("generate", "test", "gpu"), 7)],
)  # fmt: skip
def test_the_exit_code_is_the_sum_of_what_would_fail(breaks: tuple[Job, ...], code: int) -> None:
    findings = [ok("a", "fine"), note("b", "well", "Mend it."), problem("c", "bad", "Mend it.", *breaks)]
    assert exit_code(findings) == code
    assert exit_code(without_gpu(findings)) == code & 3


def test_a_machine_without_a_gpu_has_no_failing_builds() -> None:
    findings = without_gpu([checks.check_torch(None)])
    assert exit_code(findings) == 3
    assert json.loads(as_json(findings, has_gpu=False))["works"] == {"generate": False, "test": False, "gpu": None}
    assert "builds for the GPU: no GPU here" in as_text(findings, has_gpu=False)


def test_the_text_has_a_row_for_each_finding_and_its_mending_below() -> None:
    findings = [ok("Python", "3.12"), problem("ninja", "not found", "Install it.", "gpu")]
    rows = as_text(findings, has_gpu=True).splitlines()
    assert rows[0].split() == ["ok", "Python", "3.12"]
    assert rows[1].split() == ["problem", "ninja", "not", "found"]
    assert rows[2].strip() == "-> Install it."
    assert "builds for the GPU: would fail" in rows[-1]


def tiny(folder: Path, size: int = 8) -> Path:
    """A checkpoint of one tensor with `size` bytes, of which the header promises 8."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}}).encode()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return folder


def test_a_whole_checkpoint_is_accepted(tmp_path: Path) -> None:
    assert checks.check_tiny(tiny(tmp_path)).status == "ok"


def test_the_checkpoint_in_the_repository_is_whole() -> None:
    assert checks.check_tiny(hub.TINY_DIR).status == "ok"


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_truncated_or_padded_checkpoint_is_a_problem(tmp_path: Path, size: int) -> None:
    finding = checks.check_tiny(tiny(tmp_path, size))
    assert finding.breaks == ("generate", "test")
    assert "its header says" in finding.detail


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:0", b"\1"]
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_a_problem(tmp_path: Path, name: str, content: bytes) -> None:
    (tiny(tmp_path) / name).write_bytes(content)
    finding = checks.check_tiny(tmp_path)
    assert finding.breaks == ("generate", "test")
    assert "damaged" in finding.detail


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (tiny(tmp_path) / name).unlink()
    assert name in checks.check_tiny(tmp_path).detail


def test_a_hub_that_does_not_answer_costs_a_bounded_time() -> None:
    with socket.socket() as listener:  # accepts connections in its queue and never says a word
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert probes.hub_answers(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.2) is False
    assert probes.hub_answers("http://127.0.0.1:9", seconds=1) is False
    assert probes.hub_answers("not an address", seconds=1) is False


def test_the_cache_of_models_is_where_huggingface_hub_keeps_it() -> None:
    assert probes.hub_cache({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert probes.hub_cache({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/b/hub")
    assert probes.hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert probes.hub_cache({}) == Path.home() / ".cache" / "huggingface" / "hub"


def test_a_model_counts_as_cached_only_when_it_is_complete(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).touch()
    assert probes.cached_model(tmp_path, checks.MODEL) is None
    (snapshot / "model.safetensors").touch()
    assert probes.cached_model(tmp_path, checks.MODEL) == snapshot


def test_the_doctor_speaks_of_the_model_that_generate_takes() -> None:
    assert checks.MODEL == hub.DEFAULT_REPO
    assert doctor.checkout() / "qwen3_ref" / "tiny" == hub.TINY_DIR


def test_the_doctor_needs_nothing_but_the_standard_library() -> None:
    root = Path(__file__).resolve().parents[1]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import qwen_cuda.doctor.__main__\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(root / "kernels")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['qwen_cuda']\n"


def test_the_doctor_asks_for_every_dependency() -> None:
    project = tomllib.loads((doctor.checkout() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.match(r"\w+", line)[0] for line in project["dependencies"]]  # type: ignore[index]
    names.remove("ninja")  # a program, wherever it comes from, with a row of its own
    assert names == list(doctor.BASE_MODULES)


def test_the_doctor_can_be_read_by_python_3_9() -> None:
    package = Path(checks.__file__).parent
    for source in (package.parent / "__init__.py", *package.glob("*.py"), *package.parent.glob("building/*.py")):
        ast.parse(source.read_text(encoding="utf-8"), str(source), feature_version=(3, 9))


def test_the_command_reports_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = doctor.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == code
    assert report["works"]["generate"] is True  # these tests run with all that `generate` needs
    assert {row["name"] for row in report["findings"]} >= {"Python", "PyTorch", "GPU", "nvcc", "disk", "model hub"}
