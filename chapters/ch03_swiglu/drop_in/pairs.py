"""A ratio of two times that were measured side by side, with its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom; beyond the last it stands for all.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Speedup:
    """How many times as fast: the geometric mean over pairs, and the 95 % interval of it (None for one pair)."""

    ratio: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Speedup:
        """From times in pairs, by Student's t on the logarithms of their ratios.

        The interval is of this run: it says how much noise the ratio has, and nothing of other machines.

        Raises:
            ValueError: there is no pair, one is incomplete, or a time is not positive.
        """
        if not before or len(before) != len(after):
            raise ValueError(f"there are {len(before)} and {len(after)} times; they must be pairs, one at the least.")
        if not all(time > 0 for time in (*before, *after)):
            raise ValueError("a time is not positive; a ratio needs times above 0.")
        logs = [math.log(a / b) for a, b in zip(before, after, strict=True)]
        mean = statistics.fmean(logs)
        if len(logs) == 1:
            return cls(math.exp(mean), None, None)
        reach = _T95[min(len(logs) - 1, len(_T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
