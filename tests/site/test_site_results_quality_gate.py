"""The passages of the quality gate: true to its results, and readable while there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="this Python has no matplotlib")

from docs.hooks import quality_gate


def arm(name: str, flips: int = 0, **other: Any) -> dict[str, Any]:
    return {
        "name": name, "tokens": 1536, "flips": flips, "agreement": 1 - flips / 1536, "agreement_interval": [0.9, 0.995],
        "logit_error": {"mean": 0.012, "max": 0.34}, "kl_nats": {"mean": 4.6e-6, "max": 2e-4},
        "perplexity": {"reference": 1.3, "model": 1.3013, "change": 0.001},
    } | other  # fmt: skip


def invented_results(model: str = "tiny", layers: str = "head", flips: int = 0, **other: Any) -> dict[str, Any]:
    """Results in the schema, with figures of no model."""
    quantized = {"layers": layers, "bits": 8, "group": 128, "bf16_bytes": 2**21, "bytes": 2**20, "weight_error": 0.0073}
    flipped = [{"text": 0, "place": 20, "expected": "a", "chosen": "b", "margin": 0.01 * (i + 1)} for i in range(flips)]
    return {
        "schema": 1,
        "chapter": f"quality_gate_{model}_{layers}",
        "provenance": {"gpu": "NVIDIA H200", "commit": "0" * 40, "date": "2026-01-01"},
        "judged": True,
        "passed": flips < 16,
        "complaints": [],
        "criteria": {"agreement": 0.99, "margin": 0.25, "texts": 20, "tokens": 32},
        "model": {"name": model, "layers": 6},
        "texts": {"file": "passages.json", "digest": "00", "count": 24, "context": 16, "tokens": 64},
        "rounding": arm("bf16 rounding", 3),
        "quantized": arm(f"int8, {layers}", flips, flipped=flipped, **quantized),
        "variants": [],
    } | other


def put(root: Path, results: dict[str, Any], gpu: str = "h200") -> None:
    path = root / "docs" / "results" / gpu / f"{results['chapter']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results), encoding="utf-8")


def rows(passage: str) -> list[list[str]]:
    """The cells of a table's lines, without its head."""
    lines = [line for line in passage.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_without_a_judgement_the_passages_say_how_to_get_one(tmp_path: Path) -> None:
    put(tmp_path, {"schema": 1, "chapter": "quality_gate_tiny_head", "judged": False, "passed": False, "reason": "x"})
    for passage in quality_gate.passages(tmp_path).values():
        assert "make quality-gate" in passage


def test_the_noise_of_bf16_stands_beside_each_judged_model(tmp_path: Path) -> None:
    put(tmp_path, invented_results(flips=2))
    put(tmp_path, invented_results(layers="all", flips=40))
    found = rows(quality_gate.passages(tmp_path)["quality"])
    assert [row[0] for row in found] == [
        "tiny: bf16 rounding", "tiny: int8, head", "tiny: int8, all",
    ]  # fmt: skip
    assert [row[1] for row in found] == ["3 of 1,536", "2 of 1,536", "40 of 1,536"]
    assert [row[3] for row in found] == ["–", "0.02", "0.4"]
    assert [row[-1] for row in found] == ["", "passed", "**not passed**"]
    assert found[1][2] == "99.87% (90.0% to 99.5%)"
    assert found[1][4:7] == ["0.012, 0.34", "4.6e-06", "+0.10%"]


def test_variants_are_compared_for_error_and_bytes(tmp_path: Path) -> None:
    sizes = {"bf16_bytes": 4 * 2**20, "bytes": 9 * 2**18, "weight_error": 0.0056}
    put(tmp_path, invented_results(variants=[arm("int8, head, group 32", 1, **sizes)]))
    assert rows(quality_gate.passages(tmp_path)["variants"]) == [
        ["tiny: int8, head, group 32", "2.2 MiB", "0.562", "0.56%", "0.012, 0.34", "4.6e-06", "1"]
    ]


def test_the_main_gpus_judgement_goes_before_another_one(tmp_path: Path) -> None:
    put(tmp_path, invented_results(flips=5), gpu="a100")
    put(tmp_path, invented_results(flips=1), gpu="h200")
    put(tmp_path, invented_results("other", provenance={"gpu": None, "commit": "1" * 40, "date": "2026"}), gpu="cpu")
    passage = quality_gate.passages(tmp_path)["quality"]
    assert [row[1] for row in rows(passage)] == ["3 of 1,536", "0 of 1,536", "3 of 1,536", "1 of 1,536"]
    assert "other on 24 × 64 tokens of `passages.json`, a CPU" in passage
