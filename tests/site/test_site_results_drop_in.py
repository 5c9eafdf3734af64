"""The page of our operators in a Hugging Face model: true to its results, and readable while there are none."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="this Python has no matplotlib")

from docs.hooks import ROOT, drop_in, results
from tests.site.invented import GPU, put

PAGE, NAME = ROOT / "docs" / "drop_in.md", "drop_in_random-0.6b"
NAMES = ("rms_norm", "mlp", "rms_norm+mlp", "all")
RATIOS = dict(zip(NAMES, (1.25, 0.9, 1.375, 1.5), strict=True))


def comparison(op: str, mode: str, prompt: int, name: str) -> dict[str, Any]:
    ratio = RATIOS[name] if mode == "eager" else 1 + (RATIOS[name] - 1) / 10
    speedup = {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return {"op": op, "mode": mode, "prompt": prompt, "configuration": name, "rounds": 8, "speedup": speedup}


def arm(name: str, rounding: str, **other: Any) -> dict[str, Any]:
    return {
        "configuration": name, "rounding": rounding, "difference": {"mean": 0.01, "largest": 0.25, "top1": 0.995},
        "exact": {"rms": 0.02, "largest": 0.3}, "ratio": 0.875, "identical": 4, "partings": [],
    } | other  # fmt: skip


def invented_results(model: str = "random-0.6b") -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    runs = [(op, mode, n) for mode in ("eager", "graph") for op in ("decode", "prefill") for n in (128, 1024)]
    cases = [
        {"op": op, "variant": "unpatched", "shape": {"model": model, "mode": mode, "prompt": n},
         "us": {"median": 33000.0 if mode == "eager" else 1500.0}}
        for op, mode, n in runs
    ]  # fmt: skip
    parting = {"prompt": 2, "place": 7, "margin": 0.03, "margin_ulps": 2.0, "tie": True}
    return {
        "schema": 1,
        "chapter": f"drop_in_{model}",
        "provenance": GPU | {"transformers": "5"},
        "model": {"name": model, "type": "qwen3", "layers": 28, "dtype": "bfloat16", "seed": 0},
        "cases": cases,
        "speed": {
            "operators_per_step": {"unpatched": 1500, "rms_norm": 900, "mlp": 1400, "rms_norm+mlp": 800, "all": 700},
            "comparisons": [comparison(*run, name) for run in runs for name in NAMES],
        },
        "validation": {
            "prompts": [5, 17],
            "new_tokens": 32,
            "unpatched": {"rms": 0.02, "largest": 0.3},
            "arms": [arm("all", "hf"), arm("all", "single", identical=1, partings=[parting])],
        },
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of the page, and of the operators' own results."""
    for name in ("docs/drop_in.md", "docs/results/h200/ch02_rms_norm.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_passage_of_the_page_is_known_measured_or_not(tree: Path) -> None:
    used = set(re.findall(r"<!-- results: drop_in/([\w-]+) -->", PAGE.read_text()))
    assert used == set(drop_in.texts(tree))
    put(tree, NAME, invented_results())
    assert used == set(drop_in.texts(tree))


def test_without_results_the_page_says_how_to_get_them(tree: Path) -> None:
    results.sync(root=tree)
    text = (tree / "docs" / "drop_in.md").read_text()
    assert text.count("`make drop-in MODEL=random-0.6b` on a GPU writes one.") == 4
    assert "figures/" not in text
    assert not (tree / "docs" / "figures").exists()


def test_the_page_is_filled_and_filled_again_without_change(tree: Path) -> None:
    put(tree, NAME, invented_results())
    put(tree, "drop_in_tiny", invented_results("tiny"))
    assert len(results.sync(root=tree)) == 2
    assert results.sync(root=tree) == []
    text = (tree / "docs" / "drop_in.md").read_text()
    assert "No measurement" not in text
    assert "| decode 128, graph | 1.50 ms | 1.02 (1.01–1.03) | 0.99 (0.98–1.00) |" in text
    assert "| decode 128, Python | 33.00 ms | 1.25 (1.24–1.26) |" in text
    assert "all of ours it has 800 operators less" in text
    assert "launched from Python, 11.00 ms of 33.00 ms; CUDA graph, 71.4 µs of 1.50 ms." in text
    assert "| all, once | 0.25 | 99.5% | 0.875 | 1 of 2 | 2.0 ulp |" in text
    assert "Texts: 32 greedy tokens" in text
    assert "`rms_norm`, 1 row" in text
    assert text.index("*The shape of Qwen3-0.6B") < text.index("*The tiny checkpoint.*")
    (name,) = set(re.findall(r"\((figures/[\w-]+\.svg)\)", text))
    picture = (tree / "docs" / name).read_text()
    assert ET.fromstring(picture).tag.endswith("svg")
    assert list(drop_in.figures(tree).values()) == [picture]


def test_a_slower_model_is_said_to_be_slower(tree: Path) -> None:
    data = invented_results()
    for one in data["speed"]["comparisons"]:
        one["speedup"] = {"ratio": 0.8, "low": None, "high": None}
    put(tree, NAME, data)
    assert "nothing (8.25 ms more) of 33.00 ms" in drop_in.texts(tree)["launches"]
    assert "| 0.80 |" in drop_in.texts(tree)["speed"]
    for picture in drop_in.figures(tree).values():
        ET.fromstring(picture)


def test_results_that_were_not_timed_or_lie_on_another_gpu_come_second(tree: Path) -> None:
    put(tree, NAME, invented_results() | {"speed": None})
    assert "No measurement" in drop_in.texts(tree)["speed"]
    other = invented_results()
    other["provenance"]["gpu"] = "NVIDIA A100"
    put(tree, NAME, other, "a100")
    assert "one NVIDIA A100" in drop_in.texts(tree)["speed"]
    put(tree, NAME, invented_results())
    assert "A100" not in drop_in.texts(tree)["speed"]
