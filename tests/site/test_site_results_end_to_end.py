"""Whole requests on the site: true to their results, of one run or of several, and readable while there are none."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="this Python has no matplotlib")

from chapters.ch11_generator.end_to_end.catalogue import PEERS, TITLES
from chapters.ch11_generator.end_to_end.merging import merged
from chapters.ch11_generator.end_to_end.ours import OURS, W8
from chapters.ch11_generator.targets import judge
from docs.hooks import ROOT, plots_ch11, results
from qwen_cuda.benchmarking import Ceilings, Quantiles
from qwen_cuda.benchmarking.report import Case
from tests.site.invented import GPU, put

NAME = "ch11_generator"
PAGE = ROOT / "docs" / "end_to_end.md"
README, HOME = ROOT / "README.md", ROOT / "docs" / "index.md"
LESSON = ROOT / "chapters" / NAME / "README.md"
LATER = "2026-01-01T01"
CEILINGS = Ceilings(read_gbps=4000.0, copy_gbps=4000.0, matmul_tflops={"bfloat16": 700.0}, graph_node_us=0.7)
# Decode tok/s at 128; at other prompts it is less by so many times.
OF_OURS, OF_PEERS = (2500, 3000, 2700, 2800, 2000, 1000, 1250, 800, 200, 100, 40), (38, 300, 900, 700, 600)
SPEEDS = dict(zip(TITLES, (*OF_OURS, *OF_PEERS), strict=True))
SLOWER = {128: 1.0, 1024: 1.25, 8192: 2.0}


def measured(variants: Iterable[str] = TITLES, prompts: Iterable[int] = SLOWER, **provenance: Any) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    cases, ratios, memory = [], [], []
    for prompt in prompts:
        shape: dict[str, int | str] = {"model": "random-0.6b", "prompt": prompt, "new_tokens": 128}
        for name in variants:
            tok_s = SPEEDS[name] / SLOWER[prompt]
            rate, us = Quantiles(tok_s, tok_s, tok_s), Quantiles(1500.0, 1500.0, 1500.0)
            nbytes = 1_000_000_000 if name != W8 else 800_000_000
            for op in ("request", "decode"):
                cases.append(Case(op, name, shape, "bfloat16", "cold", bytes=nbytes, tok_s=rate))
            cases.append(Case("first_token", name, shape, "bfloat16", "cold", bytes=nbytes, us=us))
            memory.append({"variant": name, "prompt": prompt, "held_bytes": 2**30, "peak_bytes": 3 * 2**29})
        pairs = [(W8, OURS), *((mine, peer) for peer in PEERS for mine in (OURS, W8))]
        for of, over in pairs:
            if of in variants and over in variants:
                speedup = {"ratio": SPEEDS[of] / SPEEDS[over], "low": 1.0, "high": 99.0}
                common = {"prompt": prompt, "of": of, "over": over, "rounds": 3, "speedup": speedup}
                ratios += [common | {"op": op} for op in ("request", "decode")]
    return {
        "schema": 1,
        "chapter": NAME,
        "provenance": GPU | {"transformers": "5.17.0", "cuda": "13.0"} | provenance,
        "ceilings": json.loads(json.dumps(CEILINGS.__dict__)),
        "notes": ["one"],
        "cases": [case.to_dict(CEILINGS) for case in cases],
        "end_to_end": {
            "model": {"name": "random-0.6b", "weights": "random", "bytes": 2**30},
            "max_length": 8336,
            "bounds": {},
            "memory": memory,
            "ratios": ratios,
            "runs": [{"date": provenance.get("date", GPU["date"]), "contexts": list(prompts), "only": None}],
        },
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "hooks").mkdir(parents=True)
    shutil.copy(PAGE, tmp_path / "docs")
    (tmp_path / "docs" / "hooks" / "plots_ch11.py").touch()
    (tmp_path / "chapters" / NAME).mkdir(parents=True)
    return tmp_path


def test_page_and_lesson_of_whole_requests_show_every_passage_once() -> None:
    used = re.findall(r"<!-- results: ch11/([\w-]+) -->", PAGE.read_text())
    used += re.findall(r"<!-- results: ([\w-]+) -->", LESSON.read_text())
    used += (names := [re.findall(r"results: ch11/([\w-]+) -->", page.read_text()) for page in (README, HOME)])[0]
    assert names == [["headline"]] * 2
    assert sorted(used) == sorted(plots_ch11.texts(measured()))


def test_the_headline_has_the_slowest_first() -> None:
    rows = [line for line in plots_ch11.texts(measured())["headline"].splitlines() if line.startswith("| ")][1:]
    figures = [float(row.split("|")[2].replace(",", "")) for row in rows]
    assert len(rows) > 2
    assert figures == sorted(figures)
    assert rows[-1].startswith(f"| {TITLES[W8]} |")


def test_whole_requests_without_results_say_how_to_measure_them(tree: Path) -> None:
    results.sync(root=tree)
    text = (tree / "docs" / PAGE.name).read_text()
    assert text.count("`make bench-chapter 11` on a GPU writes one.") == 8
    assert "figures/" not in text


def test_whole_requests_are_filled_and_filled_again_without_change(tree: Path) -> None:
    put(tree, NAME, measured())
    assert {path.name for path in results.sync(root=tree)} == {PAGE.name, "decode.svg", "request.svg"}
    assert results.sync(root=tree) == []
    text = (tree / "docs" / PAGE.name).read_text()
    assert "| ours | 2,500 | 2,000 | 1,250 |" in text
    assert "random weights in the shape of Qwen3-0.6B" in text
    assert "| 128 | 1,000 | 4,000 | 62% | 800 | 5,000 | 60% |" in text
    assert "the head as int8 (chapter 8) | 3,000 (× 1.20) | 2,400 (× 1.20) | 1,500 (× 1.20) |" in text
    assert "without programmatic dependent launch (chapter 9) | 1,250 (-50%)" in text
    assert "| ours | 1.20 (1.00–99.00) |" in text, "int8 over bf16 of ours"
    assert "| torch.compile, coordinate descent, one graph | 2.78 (1.00–99.00) |" in text
    assert "| ours | 1,024 (1,536) |" in text
    assert "Not measured" not in text
    picture = (tree / "chapters" / NAME / "figures" / "decode.svg").read_text()
    assert ET.fromstring(picture).tag.endswith("svg")
    for name in re.findall(r"\]\(([^)]+\.svg)\)", text):
        assert (tree / "docs" / name).resolve().is_file()


def test_absent_peers_and_prompts_are_said_and_shown_as_dashes() -> None:
    data = measured((OURS, W8, "torch_compile"), (128,))
    data["cases"] += measured((OURS,), (1024,))["cases"]
    data["end_to_end"]["memory"] = []
    texts = plots_ch11.texts(data)
    assert "Not measured: transformers, eager; transformers, static cache, compiled; vLLM" in texts["throughput"]
    assert "| torch.compile, coordinate descent, one graph | 900 | – |" in texts["throughput"]
    assert "Nobody of these was measured." in texts["memory"]
    assert "(× " in texts["chain"], "the int8 head against the row before it"
    assert "2,500 (×" not in texts["chain"], "the row before was not measured"
    assert "not measured" in texts["targets"]


def test_targets_of_whole_requests_can_be_met_and_missed() -> None:
    verdicts = {one.name: one.passed for one in judge(measured())}
    assert verdicts["decode, prompt 128: must"] is True
    assert verdicts["decode, prompt 1,024: must"] is False
    assert verdicts["decode, prompt 8,192: goal"] is False
    assert verdicts["whole requests beside vLLM’s engine"] is True
    slow = measured()
    for case in slow["cases"]:
        if (case["op"], case["variant"], case["shape"]["prompt"]) == ("request", OURS, 1024):
            case["tok_s"]["median"] = 1.0
    assert {one.passed for one in judge(slow) if "beside" in one.name} == {False}
    assert {one.passed for one in judge(measured((W8,)))} == {None}


def test_runs_of_one_commit_and_machine_add_up(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    first = measured((OURS, W8, "transformers"), (128,))
    second = measured((OURS, W8, "torch_compile"), (128, 1024), date=LATER)
    second["ceilings"]["read_gbps"], second["notes"] = 3000.0, ["two"]
    assert merged(path, first) == (first, None)
    path.write_text(json.dumps(first))
    both, said = merged(path, second)
    assert said is None
    found = [(c["op"], c["variant"], c["shape"]["prompt"]) for c in both["cases"]]
    assert len(found) == len(set(found)) == 3 * (4 + 3)
    assert {name for _, name, _ in found} == {OURS, W8, "transformers", "torch_compile"}
    assert both["ceilings"]["read_gbps"] == 4000.0
    assert both["notes"] == ["one", "two"]
    overs = {(one["over"], one["prompt"]) for one in both["end_to_end"]["ratios"]}
    assert overs >= {("transformers", 128), ("torch_compile", 128), ("torch_compile", 1024)}
    assert len(both["end_to_end"]["runs"]) == 2
    assert plots_ch11.texts(both)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"commit": "f" * 40}, "its commit is"),
        ({"gpu": "another"}, "its gpu is"),
        ({"transformers": "6"}, "its transformers is"),
    ],
)
def test_runs_that_do_not_belong_together_are_not_mixed(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path, new = tmp_path / "a.json", measured((OURS, W8))
    path.write_text(json.dumps(measured(**change)))
    kept, said = merged(path, new)
    assert kept == new
    assert said is not None
    assert said.startswith(f"a.json is written anew: {reason}")


def test_no_results_of_an_unknown_commit_or_another_model_are_added_to(tmp_path: Path) -> None:
    path, new = tmp_path / "a.json", measured((OURS,), date=LATER)
    path.write_text(json.dumps(measured(commit="unknown")))
    assert "nobody knows" in str(merged(path, measured((OURS,), commit="unknown", date=LATER))[1])
    other = measured()
    other["end_to_end"]["max_length"] = 9000
    path.write_text(json.dumps(other))
    assert "its max_length is another" in str(merged(path, new)[1])
    path.write_text("{}")
    assert "it is no file of such results" in str(merged(path, new)[1])
