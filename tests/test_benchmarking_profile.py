"""Profiles: what is asked of ncu, what is read from its table, what the page shows, and what is said where it fails."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch02_rms_norm import profiled
from docs.hooks import profiles
from qwen_cuda.benchmarking import profile
from qwen_cuda.benchmarking.ncu_csv import kernels

ROOT = Path(__file__).resolve().parents[1]
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CASES: list[profile.Settings] = [
    {"op": "rms_norm", "step": "v1", "rows": 8192, "hidden": 1024},
    {"op": "rms_norm", "rows": 8192, "hidden": 1024},
]


def table(*rows: dict[str, str]) -> str:
    """What ncu writes: its own lines, names, units, kernels; every cell in quotes."""
    names = ["ID", "Process ID", "Kernel Name", *rows[0]]
    cells = [["", "", "", *("unit" for _ in rows[0])]]
    cells += [[str(number), "4711", "void norm_rows<__nv_bfloat16, 4>(Operands<T1>)", *row.values()]
              for number, row in enumerate(rows)]  # fmt: skip
    lines = [",".join(f'"{cell}"' for cell in line) for line in (names, *cells)]
    return "\n".join(["==PROF== Connected to process 4711", *lines, "==PROF== Disconnected"]) + "\n"


def row(time: str, sectors: str, dram: str) -> dict[str, str]:
    return {
        "gpu__time_duration.sum": time,
        SECTORS: sectors,
        DRAM: dram,
        STALL.format("long_scoreboard"): "21.5",
        STALL.format("barrier"): "0.02",
        STALL.format("selected"): "1.00",
        STALL.format("lg_throttle"): "30.25",
        "lts__t_sector_hit_rate.pct": "n/a",
    }


TABLE = table(row("1,250,400", "31.8", "40.2"), row("9,400", "16", "88.4"))


def test_figures_are_read_in_the_order_of_the_launches() -> None:
    first, second = kernels(TABLE)
    assert first["kernel"] == "void norm_rows<__nv_bfloat16, 4>(Operands<T1>)"
    assert first["figures"] == {
        "time_us": pytest.approx(1250.4),
        "load_sectors_per_request": 31.8,
        "dram_percent": 40.2,
    }
    assert list(first["stalls"].items()) == [("lg_throttle", 30.25), ("long_scoreboard", 21.5), ("selected", 1.0)]
    assert second["figures"]["time_us"] == pytest.approx(9.4)


@pytest.mark.parametrize("text", ["", "==ERROR== Failed to find metric x\n", "==PROF== No kernels were profiled.\n"])
def test_a_log_without_a_table_has_no_kernels(text: str) -> None:
    assert kernels(text) == []


def fake_ncu(folder: Path, body: str) -> str:
    """A program in the place of ncu: `body` sees the words of its command line in sys.argv, and `log`."""
    path = folder / "ncu"
    path.write_text(f"#!{sys.executable}\nimport sys\nlog = sys.argv[sys.argv.index('--log-file') + 1]\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_metric_that_ncu_does_not_know_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""
if "--metrics" in sys.argv:
    print("==ERROR== Failed to find metric x")
    sys.exit(1)
open(log, "w").write({TABLE!r})
"""
    results = take(tmp_path, monkeypatch, body)
    assert [kernel["case"] for kernel in results["kernels"]] == CASES
    assert results["kernels"][1]["figures"]["dram_percent"] == 88.4
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "print('==ERROR== ERR_NVGPUCTRPERM - no permission')",
            "only administrators read a GPU's counters: run this as",
        ),
        ("print('some lines\\nBuildError: nvcc is needed'); sys.exit(1)", "ncu failed: BuildError: nvcc is needed"),
        ("sys.exit(3)", "ncu failed: exit status 3"),
        (f"open(log, 'w').write({table(row('1', '2', '3'))!r})", "ncu saw 1 kernels in 2 cases; each case must launch"),
        ("pass", "ncu saw 0 kernels in 2 cases"),
    ],
)
def test_what_goes_wrong_is_a_sentence(body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(profile.ProfileError, match=says.replace("(", r"\(")):
        take(tmp_path, monkeypatch, body)


def take(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> dict[str, Any]:
    """A profile of CASES by a program in the place of ncu."""
    ncu = fake_ncu(folder, body)
    monkeypatch.setattr(profile, "find_ncu", lambda: ncu)
    monkeypatch.setattr(profile, "version", lambda program: "Version 1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(profile, "choose_device", lambda name: torch.device("cpu"))
    return profile.profile("some.module", "ch02_x", CASES)


def test_without_ncu_or_gpu_the_command_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["chapters.ch02_rms_norm.profiled"]
    monkeypatch.setattr(profile.shutil, "which", lambda program: None)
    assert profile.main(arguments) == 1
    assert capsys.readouterr().err.startswith("ncu was not found: install Nsight Compute")
    monkeypatch.setattr(profile.shutil, "which", lambda program: f"/usr/bin/{program}")
    assert profile.main(arguments) == 1
    assert capsys.readouterr().err.startswith("PyTorch sees no CUDA GPU here")


def test_only_the_marked_call_is_profiled_at_the_clocks_of_the_benchmark() -> None:
    words = profile.command("ncu", Path("log"), "some.module", CASES, profile.METRICS)
    for option, value in {"--clock-control": "none", "--profile-from-start": "off", "--print-units": "base"}.items():
        assert words[words.index(option) + 1] == value
    assert json.loads(words[-1]) == CASES


def test_settings_are_typed_as_name_and_value() -> None:
    assert profile.settings("op=rms_norm rows=8192") == {"op": "rms_norm", "rows": 8192}
    with pytest.raises(argparse.ArgumentTypeError, match="'rows' is no setting"):
        profile.settings("op=rms_norm rows")


def test_some_cases_do_not_replace_the_page_s_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"chapter": "ch02_rms_norm", "provenance": {"gpu": "NVIDIA H200"}, "kernels": []}
    monkeypatch.setattr(profile, "profile", lambda *arguments: results)
    monkeypatch.setattr(profile, "ROOT", tmp_path)
    module = "chapters.ch02_rms_norm.profiled"
    assert profile.main([module, "--case", "op=rms_norm rows=1 hidden=8"]) == 0
    assert not list(tmp_path.iterdir())
    assert profile.main([module]) == 0
    assert json.loads((tmp_path / "docs/results/h200/ch02_profile.json").read_text()) == results


def test_the_page_shows_a_row_for_each_kernel_and_what_they_differ_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = take(tmp_path, monkeypatch, f"open(log, 'w').write({TABLE!r})")
    results["provenance"] |= {"gpu": "NVIDIA H200", "date": "2026-11-30T01:02:03+00:00"}
    text = profiles.render(results)
    cells = ["`rms_norm` v1, 8,192 × 1,024", "1,250.4", "40", "31.8"]
    assert f"| {' | '.join(cells)} | the queue of memory instructions (30.2), memory (21.5) |" in text
    assert "A load of v1 touches 32 sectors of 32 bytes, one of ours 16,\non average." in text
    assert "Memory is busy for 40 % of its peak with v1, for 88 % with ours." in text
    assert "one NVIDIA H200, 2026-11-30" in text


def test_without_a_profile_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    text = profiles.passage("ch02", "chapters.ch02_rms_norm.profiled", tmp_path)
    assert "python -m qwen_cuda.benchmarking.profile chapters.ch02_rms_norm.profiled" in text
    place = tmp_path / "docs/results/h200/ch02_profile.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"provenance": {"gpu": "G", "date": "2026-11-30"}, "kernels": []}))
    assert "one G, 2026-11-30" in profiles.passage("ch02", "chapters.ch02_rms_norm.profiled", tmp_path)


def test_the_settings_that_the_page_quotes_are_understood() -> None:
    page = (ROOT / "docs/profiling.md").read_text(encoding="utf-8")
    quoted = json.loads(page[page.index("'[{") + 1 : page.index("}]'") + 2])
    assert quoted == [case for case in profiled.CASES if case == quoted[0]]
    for option in ("--clock-control none", "--profile-from-start off"):
        assert option in page
    for metric in (DRAM, SECTORS, STALL.format("…")):
        assert metric in page


def test_the_page_s_script_for_pytorch_s_profiler_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (ROOT / "docs/profiling.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    exec(compile(script, "docs/profiling.md", "exec"), {})
    assert "add_rms_norm_" in (tmp_path / "build/trace.json").read_text()


@pytest.mark.parametrize("wrong", [{"op": "softmax"}, {"dtype": "int8"}, {"step": "v9"}])
def test_an_unknown_case_is_refused(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled.candidates, "ladder", lambda op, dtype: iter(()))
    case: dict[str, Any] = {"op": "rms_norm", "rows": 1, "hidden": 8} | wrong
    with pytest.raises(ValueError, match=f"'{next(iter(wrong.values()))}'"), profiled.prepared(**case):
        pass
