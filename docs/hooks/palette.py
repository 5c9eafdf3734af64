"""The tutorial's colours, the same for the same thing in every figure. docs/assets/css/site.css holds them too."""

from __future__ import annotations

import re

# Light scheme → dark scheme.
TWINS = {
    "#1f5fbf": "#7cb0ff",  # Q
    "#b4560a": "#f2a45c",  # K
    "#1d7a3e": "#6fce8f",  # V
    "#5f6672": "#9aa3b2",  # weights
    "#c0292f": "#ff8b86",  # accumulators
    "#7a4fb5": "#bf9cf2",  # anything else
    "#1d2024": "#d9dbe0",  # ink
}
# A figure that a code host shows cannot know the ground it stands on: its colours lie between the two. → Light scheme.
BETWEEN = {
    "#4a86d8": "#1f5fbf",
    "#cc7a29": "#b4560a",
    "#3b9c61": "#1d7a3e",
    "#7d8590": "#5f6672",
    "#dc5b58": "#c0292f",
    "#9a73d4": "#7a4fb5",
}


def lighten(svg: str) -> str:
    """A figure in colours of `BETWEEN`, for the light scheme."""
    return _replace(svg, BETWEEN)


def darken(svg: str) -> str:
    """The same picture for the dark scheme: every colour of ours is replaced by its twin, all others stay.

    Matplotlib writes no fill for black paths; such figures must set their ink, as docs/hooks/matplotlibrc does.
    """
    return _replace(svg, TWINS)


def _replace(svg: str, colours: dict[str, str]) -> str:
    return re.sub("|".join(colours), lambda match: colours[match[0].lower()], svg, flags=re.IGNORECASE)
