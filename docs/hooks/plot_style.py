"""How figures of measurements look: transparent, in colours that read on light and dark ground, byte-stable.

They stand in lessons as plain images, on the site and on code hosts, so they cannot follow a page's scheme: each colour
lies between the two of docs/hooks/palette.py.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Q, K, V, W, ACC, OTHER, GREY = "#4a86d8", "#cc7a29", "#3b9c61", "#7d8590", "#dc5b58", "#9a73d4", "#7d8590"
_STYLE = {
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "qwen3",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def drawing(height: float, width: float = 7.2) -> tuple[Figure, Axes]:
    """An empty figure of the width of a page, in inches, with one pair of axes."""
    mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # for good: what is drawn later takes its colours from here
    fig = Figure(figsize=(width, height))
    FigureCanvasSVG(fig)
    return fig, fig.add_subplot()


def name_lines(ax: Axes, ends: Iterable[tuple[float, float, str, str]]) -> None:
    """Names of lines at their ends: x, y, words and colour of each. None covers another.

    Comes last: it needs the axes as they stay.
    """
    fig = ax.get_figure(root=True)
    assert fig is not None
    fig.draw_without_rendering()
    below = -math.inf
    for x, y, words, colour in sorted(ends, key=lambda end: end[1]):
        points = float(ax.transData.transform((x, y))[1]) * 72 / fig.dpi
        below = max(points, below + 11)
        ax.annotate(
            words, (x, y), xytext=(7, below - points), textcoords="offset points", va="center",
            color=colour, fontsize=9,
        )  # fmt: skip


def svg(fig: Figure) -> str:
    """The figure as SVG text, the same bytes for the same drawing."""
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)
