"""Tuning scripts: what they replace is in the kernels, and each variant differs from the kernel as it is."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from qwen_cuda.benchmarking import tuning
from qwen_cuda.benchmarking.tuning import Trial
from qwen_cuda.building import ROOT, Edit, Library
from qwen_cuda.building.sources import Reader, gather

SCRIPTS = sorted((ROOT / "chapters").glob("ch*/tuning.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.parent.name)
def test_what_a_tuning_script_replaces_is_in_its_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module(f"chapters.{path.parent.name}.tuning")
    built: dict[str, Library] = {}

    def remember(
        results: str, description: str, argv: list[str] | None, libraries: dict[str, Library], *_: object
    ) -> int:
        built.update(libraries)
        return 0

    monkeypatch.setattr(script, "tune", remember)
    assert script.main([]) == 0
    assert tuning.AS_IT_IS in built
    assert len(built) > 3
    folder = ROOT / "kernels" / "cuda" / "include"
    texts = set()
    for name, library in built.items():
        reader = Reader(library.edits)
        texts.add(tuple(gather(library.sources[0], [folder], reader).values()))
        reader.check_all_planted()
        assert bool(library.edits) == (name != tuning.AS_IT_IS)
    assert len(texts) >= len(built) - 1, "two variants are the same"  # one may force what is chosen anyway


def test_tuning_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def trials(device: torch.device) -> list[Trial]:
        raise AssertionError("nothing is to be tried")

    assert tuning.tune("x", "what it is", ["--device", "cpu"], {}, trials) == 2
    assert "tuning needs a GPU" in capsys.readouterr().err


def test_variants_of_a_kernel_have_it_first_and_without_dependent_launch_last() -> None:
    plain = Library("cuda", (ROOT / "kernels" / "cuda" / "silu_mul.cu",))
    found = tuning.variants(plain, {"x": (Edit("silu_mul.cu", "a", "b"),)})
    assert list(found) == [tuning.AS_IT_IS, "x", tuning.WITHOUT_PDL]
    assert found[tuning.AS_IT_IS] is plain
