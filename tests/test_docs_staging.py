"""What a chapter's folder gives to the site: lesson, exercise, pictures and data; and what it keeps to itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="this Python has no jupytext")
pytest.importorskip("nbconvert", reason="this Python has no nbconvert")
pytest.importorskip("griffe", reason="this Python has no griffe")

from docs.hooks import docstrings, stage
from docs.hooks.links import LinkError

FIGURE = '<div class="figure" data-figure="x" data-source="figures/x.json" markdown>\n\nIn words.\n\n</div>\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one chapter and a page about the simulator."""
    files = {
        "docs/index.md": "# Home\n",
        "chapters/ch02_x/README.md": f"# Lesson\n\n[E](exercise/README.md), [sim](../../kernels/sim).\n\n{FIGURE}",
        "chapters/ch02_x/exercise/README.md": "# Exercise\n\n> **Note.** Back to [the lesson](../README.md).\n",
        "chapters/ch02_x/figures/x.json": '{"a": [1, 2], "b": "</script>"}',
        "chapters/ch02_x/figures/x.py": "print()\n",
        "kernels/sim/README.md": "# Simulator\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_data_of_a_figure_stands_in_the_page_and_cannot_end_its_element(root: Path) -> None:
    page = stage.collect(root)["chapters/ch02_x/README.md"].decode()
    found = re.findall(
        r'data-source="figures/x.json" markdown>\n\n<script type="application/json">(.*)</script>\n', page
    )
    assert len(found) == 1
    assert "<" not in found[0]
    assert json.loads(found[0]) == {"a": [1, 2], "b": "</script>"}
    assert "In words." in page


@pytest.mark.parametrize("data", [None, "{", "[1, 2"])
def test_figure_without_readable_data_stops_the_build(data: str | None, root: Path) -> None:
    path = root / "chapters" / "ch02_x" / "figures" / "x.json"
    path.unlink() if data is None else path.write_text(data)
    with pytest.raises(
        LinkError, match=r"^chapters/ch02_x/README\.md has a figure that is drawn from 'figures/x\.json'"
    ):
        stage.collect(root)


def test_exercise_and_simulator_have_pages_of_their_own(root: Path) -> None:
    tree = stage.collect(root)
    assert tree["chapters/ch02_x/exercise/README.md"].startswith(b'# Exercise\n\n!!! note "Note"')
    assert b"[the lesson](../README.md)" in tree["chapters/ch02_x/exercise/README.md"]
    lesson = tree["chapters/ch02_x/README.md"]
    assert b"[E](exercise/README.md), [sim](../../kernels/sim/README.md)" in lesson
    assert b"# Simulator" in tree["kernels/sim/README.md"]
    assert not [name for name in tree if name.startswith("source/")]


def test_scripts_beside_figures_are_no_part_of_the_site(root: Path) -> None:
    assert "chapters/ch02_x/figures/x.json" in stage.collect(root)
    assert not [name for name in stage.collect(root) if name.endswith(".py")]


def test_docstrings_get_empty_lines_between_sections_and_an_entry_for_each_name() -> None:
    text = (
        "What.\nArgs:\n    x: `[t]`, see Raises:\n    a, b: two\n        of a kind.\n"
        "Returns:\n    one\n\nRaises:\n    E: no.\n"
    )
    expected = (
        "What.\n\nArgs:\n    x: `[t]`, see Raises:\n    a: two\n        of a kind.\n    b: two\n        of a kind.\n\n"
        "Returns:\n    one\n\nRaises:\n    E: no.\n"
    )
    assert docstrings.for_griffe(text) == expected
    assert docstrings.for_griffe(expected) == expected


def test_a_figure_of_a_page_that_is_in_no_folder_lies_beside_it(root: Path) -> None:
    (root / "docs" / "figures").mkdir()
    (root / "docs" / "figures" / "p.svg").write_text('<svg><path fill="#4a86d8"/></svg>')
    (root / "docs" / "index.md").write_text("# Home\n\n![A picture](figures/p.svg)\n")
    tree = stage.collect(root)
    assert {"figures/p-light.svg", "figures/p-dark.svg"} <= tree.keys()
    assert b"figures/p-dark.svg#only-dark" in tree["index.md"]
    assert not [name for name in tree if name.startswith("/")]
