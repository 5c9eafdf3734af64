"""docs/results/<gpu>/ch06_in_a_layer.json → what attention adds to a layer whose products read their weights ahead."""

from __future__ import annotations

from pathlib import Path

from chapters.ch06_split_attention.in_a_layer import RESULTS, TARGETS_US, marginal_us
from docs.hooks import measured


def passage(root: Path, table: int) -> str:
    """A table: of each context the fastest way, what it adds, and what was aimed at."""
    results = measured.stored(root, RESULTS)
    if results is None:
        return f"\n*Table {table}.* What attention adds to a layer has not been measured yet.\n"
    rows = [
        f"| {context:,} | {found[0].replace('_', ' ').replace(', auto', '')} | {found[1]:.2f} µs | {target} µs |"
        for context, target in TARGETS_US.items()
        if (found := marginal_us(results, context))
    ]
    gpu, commit = results["provenance"]["gpu"], str(results["provenance"]["commit"])[:12]
    return "\n".join(
        [
            "",
            "| tokens of context | fastest: partitions × tokens, merged by | adds to a layer | target |",
            "|---:|---|---:|---:|",
            *rows,
            "",
            f"*Table {table}.* 28 layers in one CUDA graph with fused attention less the same without, per layer,",
            f"bfloat16, on one {gpu}, commit `{commit}`. The products are those of `decode_linear`.",
            "",
        ]
    )
