"""Every plan of attention over quantised caches on every shape: measures its rows in chapter 6's `dispatch.json`.

    python -m chapters.ch10_quantized_kv.plan_table [--batches 1,8] [--device cuda] [--output FILE] [--quick]

Chapter 6's `plan_table` for this chapter's reader: a run replaces the rows of this GPU's architecture and these batches
(by default all); a quick one replaces nothing.
"""

from __future__ import annotations

from functools import partial

from chapters.ch06_split_attention.dispatch import Op
from chapters.ch06_split_attention.plan_table import Operator, tabulate
from chapters.ch10_quantized_kv import reader_candidates as reader

RESULTS = "ch10_plans"


def operator(name: str) -> Operator:
    """The reader of a format."""
    return Operator(
        partial(reader.work, name),
        partial(reader.operands, name),
        partial(reader.truth, name),
        partial(reader.by_plan, name),
    )


OPERATORS: dict[Op, Operator] = {reader.table_op(name): operator(name) for name in ("fp8_sections", "nvfp4_sections")}


def main(argv: list[str] | None = None) -> int:
    return tabulate(RESULTS, __doc__.partition("\n")[0], argv, OPERATORS)


if __name__ == "__main__":
    raise SystemExit(main())
