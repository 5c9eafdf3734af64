"""The benchmark kit of all chapters: timers, the ceilings of this machine, and results with their provenance.

A benchmark checks that its candidates are right, times them in turn, and reports each beside the least time that the
machine's measured ceilings allow. Operators go through `side_by_side`: operands that `rotate` through memory, an answer
held against float64, then CUDA graphs replayed in turn.
"""

from qwen_cuda.benchmarking.ceilings import Ceilings, measure_ceilings
from qwen_cuda.benchmarking.graphs import graph_timing
from qwen_cuda.benchmarking.machine import choose_device, gpu_slug, provenance
from qwen_cuda.benchmarking.operands import Operands, Rotation, cache_bytes, rotate
from qwen_cuda.benchmarking.progress import progress
from qwen_cuda.benchmarking.report import Case, Report, arguments, results_path, save_json
from qwen_cuda.benchmarking.side_by_side import Variant, Work, WrongAnswer, side_by_side
from qwen_cuda.benchmarking.timing import Quantiles, alternate, measure

__all__ = [
    "Case",
    "Ceilings",
    "Operands",
    "Quantiles",
    "Report",
    "Rotation",
    "Variant",
    "Work",
    "WrongAnswer",
    "alternate",
    "arguments",
    "cache_bytes",
    "choose_device",
    "gpu_slug",
    "graph_timing",
    "measure",
    "measure_ceilings",
    "progress",
    "provenance",
    "results_path",
    "rotate",
    "save_json",
    "side_by_side",
]
