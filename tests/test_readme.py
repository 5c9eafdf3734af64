"""README.md and CONTRIBUTING.md say what is so: their links lead somewhere, their commands exist, and CI runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_picture_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_in_the_makefile(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9-]+)", text, re.MULTILINE))
    assert commands >= {"test"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert commands <= set(re.findall(r"^([a-z0-9-]+):.* ## ", makefile, re.MULTILINE))


def test_every_folder_of_the_layout_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    layout = re.search(r"## How the repository is laid out\n+```\n(.+?)```", text, re.DOTALL)
    assert layout is not None
    folders = re.findall(r"^(\S+/) ", layout[1], re.MULTILINE)
    assert len(folders) > 3
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_ci_runs_the_test_command_of_the_readme_last() -> None:
    commands = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith(("#", " "))
    ]
    assert commands[-1] == "make test"
    for workflow in ("ci.yml", "site.yml"):
        text = (ROOT / ".github" / "workflows" / workflow).read_text()
        assert {"ci.yml": "bash .ci/run", "site.yml": "make docs"}[workflow] in text
