"""The pages tell the truth: numbers are the cost model's, messages the code's, and the ledger's scripts still agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qwen3_ref import QWEN3_0_6B, cost

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "chapters/**/*.md", "kernels/**/*.md", "qwen3_ref/**/*.md")
    for path in ROOT.glob(pattern)
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").replace("\u00a0", " ")


def test_glossary_defines_many_terms_briefly_and_once() -> None:
    terms = re.findall(r"^### (.+)\n((?:(?!#).+\n?)+)", read("docs/glossary.md"), re.MULTILINE)
    assert len(terms) >= 40
    assert len({name.lower() for name, _ in terms}) == len(terms)
    for name, text in terms:
        sentences = re.findall(r"[.!?](?=\s|$)", text)
        assert 1 <= len(sentences) <= 3, name


def test_glossary_and_home_quote_the_cost_model() -> None:
    config = QWEN3_0_6B
    glossary, home = read("docs/glossary.md"), read("docs/index.md")
    for number in (
        f"{cost.parameters(config):,} in all",
        f"{cost.layer_parameters(config):,}\nparameters",
        f"{2 * cost.parameters(config) / cost.GIB:.2f} GiB",
        f"{config.vocab_size:,}",
        f"{config.head_dim}",
        f"{config.rope_theta:,.0f}",
        f"{config.max_position_embeddings:,} positions",
        f"{8192 * cost.kv_bytes_per_token(config) // cost.MIB} MiB at 8,192 tokens",
    ):
        assert number in glossary
    for number in (
        f"{cost.layer_weight_bytes(config) / cost.MIB:.0f} MiB",
        f"{cost.head_weight_bytes(config) / cost.MIB:.2f} MiB",
        f"{cost.kv_bytes_per_token(config) // cost.KIB} KiB",
    ):
        assert number in glossary
        assert number in home


def test_figure_counts_the_weights_of_the_cost_model() -> None:
    script = read("docs/assets/js/figures/gqa-map.js")
    assert f"const WEIGHTS = {cost.parameters(QWEN3_0_6B)} * BYTES;" in script
    assert f"const LAYERS = {QWEN3_0_6B.num_hidden_layers};" in script
    assert f"const HEAD_DIM = {QWEN3_0_6B.head_dim};" in script


MESSAGES = re.findall(r"<!-- message: ([^:\n]+): (.+?) -->", read("docs/troubleshooting.md"))


@pytest.mark.parametrize(("place", "words"), MESSAGES, ids=[words[:40] for _, words in MESSAGES])
def test_troubleshooting_quotes_a_message_of_the_code(place: str, words: str) -> None:
    path = ROOT / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    joined = re.sub(r'"\s*\n\s*f?"', "", code)  # a sentence may be cut into literals over several lines
    assert words in joined
    if "\\n" not in words:
        assert words.split(":")[0] in " ".join(read("docs/troubleshooting.md").replace(f"{place}: {words}", "").split())


def test_troubleshooting_gives_every_message_its_source() -> None:
    assert len(MESSAGES) >= 15


ENTRIES = re.findall(
    r"^### (.+?)\n.*?```python\n(.+?)```.*?```text\n(.+?)```", read("docs/experiments.md"), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("title", "script", "printed"), ENTRIES, ids=[title for title, _, _ in ENTRIES])
def test_ledger_script_still_prints_what_the_ledger_says(title: str, script: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    number = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
    assert re.sub(number, "#", done.stdout).split() == re.sub(number, "#", printed).split()
    for said, was in zip(re.findall(number, done.stdout), re.findall(number, printed), strict=True):
        # Another CPU sums in another order: the last digit printed may differ, the finding may not.
        assert float(said) == pytest.approx(float(was), rel=0.1), title


def test_ledger_entries_have_all_four_parts() -> None:
    entries = re.split(r"^### ", read("docs/experiments.md"), flags=re.MULTILINE)[1:]
    assert len(entries) >= 6
    assert len(ENTRIES) >= 3
    for entry in entries:
        assert re.findall(r"^\*\*(\w+)\.\*\*", entry, re.MULTILINE) == [
            "Hypothesis",
            "Prediction",
            "Measurement",
            "Verdict",
        ]


def test_every_command_that_a_page_names_is_in_the_makefile() -> None:
    commands = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.MULTILINE))
    for path in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= commands, path


def slug(heading: str) -> str:
    """The anchor that code hosts make from a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_links_of_a_page_work_on_a_code_host(page: Path) -> None:
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|href|srcset)=\"([^\"]+)\"", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = page if not name else page.parent / name
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target
