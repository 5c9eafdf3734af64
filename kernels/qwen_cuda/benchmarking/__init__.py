"""The benchmark kit of all chapters: timers, the ceilings of this machine, and results with their provenance.

A benchmark checks that its candidates are right, times them in turn, and reports each beside the least time that the
machine's measured ceilings allow.
"""

from qwen_cuda.benchmarking.ceilings import Ceilings, measure_ceilings
from qwen_cuda.benchmarking.machine import choose_device, gpu_slug, provenance
from qwen_cuda.benchmarking.report import Case, Report, arguments, results_path
from qwen_cuda.benchmarking.timing import Quantiles, alternate, measure

__all__ = [
    "Case",
    "Ceilings",
    "Quantiles",
    "Report",
    "alternate",
    "arguments",
    "choose_device",
    "gpu_slug",
    "measure",
    "measure_ceilings",
    "provenance",
    "results_path",
]
