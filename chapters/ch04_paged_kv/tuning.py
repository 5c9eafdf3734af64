"""Chapter 4's tuning: the kernel with each mapping forced, and with single ideas undone.

    python -m chapters.ch04_paged_kv.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses the threads of a block by the number of tokens. Each candidate is the kernel's own file
with one passage replaced, as a mutant is, and it is held against float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chapters.ch04_paged_kv import candidates
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch04_tuning"
SOURCE = "qk_norm_rope_cache_write.cu"
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 8192, 32768)
CHOICE = "a.tokens <= 64 ? 32 : a.tokens <= 512 ? kMostThreads : 128"
MAPPINGS = {
    f"{lanes} lanes a head, {threads} threads a block": (
        Edit(SOURCE, CHOICE, str(threads)),
        Edit(SOURCE, "launch_heads<T, 8,", f"launch_heads<T, {lanes},"),
    )
    for lanes in (8, 16, 32)
    for threads in (32, 64, 128, 256)
}


def trials(device: torch.device) -> Iterator[Trial]:
    for tokens in TOKENS:
        operands = candidates.operands(tokens, torch.bfloat16, device)
        yield Trial(candidates.work(tokens, torch.bfloat16), candidates.ours(), operands, candidates.truth)


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("qk_norm_rope_cache_write", "cuda"), MAPPINGS)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
