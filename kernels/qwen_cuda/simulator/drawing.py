"""Drawings as SVG text: the tutorial's colours where its style sheet is there, the same light card everywhere else."""

from __future__ import annotations

from html import escape

# The names of docs/assets/css/site.css with their light values: on the site the variables win, in light and in dark. A
# notebook has none of them: then the drawing is a light card, whatever the notebook's theme.
COLORS = {
    "paper": "#fdfcf9",
    "surface": "#f8f6f2",
    "ink": "#1d2024",
    "muted": "#5c626d",
    "rule": "#e5e2d9",
    "rule-strong": "#c9c5b9",
    "q": "#1f5fbf",
    "k": "#b4560a",
    "v": "#1d7a3e",
    "w": "#5f6672",
    "acc": "#c0292f",
    "other": "#7a4fb5",
}
# What is done has one colour in all drawings; red is kept for what costs.
TONES = {"load": "q", "store": "k", "atomic": "other", "barrier": "w", "warp function": "v"}
SANS = 'var(--sans, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif)'


def color(name: str) -> str:
    """A colour of the site, by its name there."""
    return f"var(--{name}, {COLORS[name]})"


def _style() -> str:
    rules = [
        f".simfig text {{ font: 13px {SANS}; fill: {color('ink')}; }}",
        f".simfig text.small {{ font-size: 12px; fill: {color('muted')}; }}",
        f".simfig text.tiny {{ font-size: 10px; fill: {color('muted')}; }}",
        ".simfig text.strong { font-weight: 650; }",
        f".simfig text.on {{ fill: {color('paper')}; font-size: 10px; }}",
        f".simfig text.acc {{ fill: {color('acc')}; }}",
        f".simfig .card {{ fill: {color('surface')}; }}",
        f".simfig .faint {{ fill: none; stroke: {color('rule-strong')}; }}",
        f".simfig .empty {{ fill: {color('paper')}; stroke: {color('rule-strong')}; }}",
    ]
    for name in ("q", "k", "v", "w", "acc", "other"):
        tone = color(name)
        rules.append(f".simfig .solid.{name} {{ fill: {tone}; stroke: {tone}; }}")
        rules.append(f".simfig .moved.{name} {{ fill: {tone}; fill-opacity: 0.22; stroke: {tone}; }}")
        rules.append(f".simfig .link.{name} {{ stroke: {tone}; stroke-opacity: 0.55; fill: none; }}")
    return "".join(rules)


class Drawing:
    """A figure of `width` × `height` units, which scales to the width of its page.

    `title` names it and `description` tells its content to those who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="simfig" role="img" viewBox="0 0 {width:g} {height:g}" '
            f'style="width: 100%; max-width: {width:g}px; height: auto">',
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{_style()}</style>",
            f'<rect class="card" width="{width:g}" height="{height:g}" rx="6"/>',
        ]

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """`y` is the base line; `anchor` is start, middle or end."""
        where = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self.parts.append(f"<text {where}{_class(style)}>{escape(text)}</text>")

    def rect(self, x: float, y: float, width: float, height: float, style: str, hint: str = "") -> None:
        """`hint` is shown by the mouse."""
        shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{_class(style)}'
        self.parts.append(f"{shape}><title>{escape(hint)}</title></rect>" if hint else f"{shape}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{_class(style)}/>')

    def __str__(self) -> str:
        return "".join(self.parts) + "</svg>"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
