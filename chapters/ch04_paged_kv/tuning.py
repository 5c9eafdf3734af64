"""Chapter 4's tuning: the kernel with each mapping forced, and with single ideas undone.

    python -m chapters.ch04_paged_kv.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses lanes a head and threads a block by the number of tokens. Each candidate is the kernel's own file
with one passage replaced, as a mutant is, and it is held against float64 before it is timed.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from chapters.ch04_paged_kv import candidates
from qwen_cuda.benchmarking import Report, Variant, arguments, cache_bytes, progress, results_path, rotate, side_by_side
from qwen_cuda.building import BuildError, Edit, Library, build
from qwen_cuda.loading import default_library, load_operators, using

RESULTS = "ch04_tuning"
SOURCE = "qk_norm_rope_cache_write.cu"
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 8192, 32768)
CHOICE = "    if (a.tokens <= kFewTokens) {"
MAPPINGS = [(lanes, threads) for lanes in (8, 16, 32) for threads in (32, 64, 128, 256)]


def libraries() -> dict[str, Library]:
    """The kernel as it is, and its variants by name."""
    plain = default_library("qk_norm_rope_cache_write", "cuda")
    found = {"as it is": plain}
    for lanes, threads in MAPPINGS:
        forced = f"    return launch_heads<T, {lanes}, aligned.value>(a, {threads}, stream);\n"
        name = f"{lanes} lanes a head, {threads} threads a block"
        found[name] = Library("cuda", plain.sources, edits=(Edit(SOURCE, CHOICE, forced + CHOICE),))
    edit = Edit(SOURCE, "options.dependent = true;", "")
    found["without programmatic dependent launch"] = Library("cuda", plain.sources, edits=(edit,))
    return found


def main(argv: list[str] | None = None) -> int:
    options = arguments(__doc__.partition("\n")[0], argv)
    if options.device.type != "cuda":
        print("tuning needs a GPU: the simulator knows no time.", file=sys.stderr)
        return 2
    built = libraries()
    try:
        load_operators()
        build(*built.values())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    report = Report(RESULTS, options.device, options.quick)
    variants = [
        Variant(
            name, candidates.ours().run, ulps=candidates.ULPS, inside=partial(using, library), error=candidates.error
        )
        for name, library in built.items()
    ]
    tokens = TOKENS[::5] if options.quick else TOKENS
    with progress(len(tokens)) as begin, torch.inference_mode():
        for number in tokens:
            begin(f"{number} tokens")
            rotation = rotate(candidates.operands(number, torch.bfloat16, report.device), cache_bytes(report.device))
            work = candidates.work(number, torch.bfloat16)
            side_by_side(report, work, variants, rotation, candidates.truth)
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
