"""Chapter 2's tuning: kernels/cuda/rms_norm.cu with each shape of block forced, and with single ideas undone.

    python -m chapters.ch02_rms_norm.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses a shape by rows and length. The choice rests on these figures; docs/experiments.md tells what they
mean. Each candidate is the kernel's own file with one passage replaced, as a mutant is, and it is held against float64
before it is timed.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from chapters.ch02_rms_norm import candidates
from qwen_cuda.benchmarking import Report, Variant, arguments, cache_bytes, progress, results_path, rotate, side_by_side
from qwen_cuda.building import BuildError, Edit, Library, build
from qwen_cuda.loading import default_library, load_operators, using

RESULTS = "ch02_tuning"
SOURCE = "rms_norm.cu"
ROWS = (1, 128, 512, 1024, 2048, 4096, 8192, 32768)
HIDDEN = (1024, 2560, 4096)
CHOICE = "  if constexpr (!kAdd) {\n    if (lane_packs <= 4 && a.rows > 4096) {"
FORCED = {  # what stands before the choice, so that it is never reached
    "one pack a lane": (
        "if (lane_packs <= 16) {"
        "return launch_rows<T>(a, norm_rows<T, 1, 16, true, kAdd, kAligned, kHf>, "
        "lane_packs * kWarpSize, 1, stream); }\n"
    ),
    "two packs, weight last": (
        "return launch_rows<T>(a, norm_rows<T, 2, 32, false, kAdd, kAligned, kHf>, "
        "(lane_packs + 1) / 2 * kWarpSize, 1, stream);\n"
    ),
    "two packs, weight first": (
        "return launch_rows<T>(a, norm_rows<T, 2, 32, true, kAdd, kAligned, kHf>, "
        "(lane_packs + 1) / 2 * kWarpSize, 1, stream);\n"
    ),
    "a warp a row, four rows a block": (
        "if (lane_packs <= 4) {"
        "return launch_rows<T>(a, norm_rows<T, 4, 1, true, kAdd, kAligned, kHf>, "
        "kWarpSize, kRowsOfBlock, stream); }\n"
    ),
    "a warp a row, one row a block": (
        "if (lane_packs <= 4) {"
        "return launch_rows<T>(a, norm_rows<T, 4, 1, true, kAdd, kAligned, kHf>, kWarpSize, 1, stream); }\n"
    ),
}


def libraries() -> dict[str, Library]:
    """The kernel as it is, and its variants by name."""
    plain = default_library("rms_norm", "cuda")
    found = {"as it is": plain}
    for name, passage in FORCED.items():
        found[name] = Library("cuda", plain.sources, edits=(Edit(SOURCE, CHOICE, f"  {passage}{CHOICE}"),))
    found["without programmatic dependent launch"] = Library(
        "cuda", plain.sources, edits=(Edit(SOURCE, "options.dependent = true;", ""),)
    )
    return found


def applies(name: str, hidden: int) -> bool:
    """A warp keeps four packs a lane in registers: 1024 elements of 16 bits."""
    return hidden <= 1024 or not name.startswith("a warp")


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
    shapes = [(op, rows, hidden) for op in candidates.OPS for hidden in HIDDEN for rows in ROWS]
    shapes = shapes[::5] if options.quick else shapes
    with progress(len(shapes)) as begin, torch.inference_mode():
        for op, rows, hidden in shapes:
            begin(f"{op} [{rows}, {hidden}]")
            (run,) = (one for one in candidates.ours(op, torch.bfloat16) if one.name == "ours")
            variants = [
                Variant(name, run.run, ulps=run.ulps, inside=partial(using, library))
                for name, library in built.items()
                if applies(name, hidden)
            ]
            rotation = rotate(
                candidates.operands(op, rows, hidden, torch.bfloat16, report.device), cache_bytes(report.device)
            )
            side_by_side(
                report,
                candidates.work(op, rows, hidden, torch.bfloat16),
                variants,
                rotation,
                partial(candidates.truth, op),
            )
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
