"""What launches cost: a model of one decode step, in which kernels follow each other and a host starts them.

The lesson's arithmetic, the lab and the site's figure compute with it. Times in µs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwen3_ref.config import Qwen3Config

# Of an H200: read-only traffic, and an empty kernel in a CUDA graph, without and with programmatic dependent launch.
READ_GBPS, GRAPH_US, DEPENDENT_US = 4500.0, 0.73, 0.47
HOST_US = (2.0, 5.0)  # what a launch takes of a host's time, as a rule
LAUNCHES_A_LAYER, OTHER_LAUNCHES = 5, 2  # QKV, attention, O, gate and up, down; the head, the step's end

Way = Literal["one by one", "graph", "dependent"]
Span = tuple[float, float]


def launches(config: Qwen3Config) -> int:
    """Kernels of a greedy step: 142 for Qwen3-0.6B."""
    return LAUNCHES_A_LAYER * config.num_hidden_layers + OTHER_LAUNCHES


# --8<-- [start:step]
@dataclass(frozen=True)
class Step:
    """Kernels that are all alike, each `kernel_us` long. `gap_us` pass between two of them."""

    kernels: int
    launch_us: float
    kernel_us: float
    gap_us: float
    ahead: float = 0.0  # the share of a kernel that needs nothing of the one before

    def spans(self, way: Way) -> tuple[list[Span], list[Span]]:
        """Begin and end of each launch on the host, and of each kernel on the device."""
        count = self.kernels if way == "one by one" else 1
        host = [(i * self.launch_us, (i + 1) * self.launch_us) for i in range(count)]
        device: list[Span] = []
        for i in range(self.kernels):
            launched = host[min(i, count - 1)][1]
            if not device:
                device.append((launched, launched + self.kernel_us))
                continue
            before, gap = device[-1], self.gap_us
            early = 0.0
            if way == "dependent":
                gap *= DEPENDENT_US / GRAPH_US
                early = min(self.ahead * self.kernel_us, before[1] - before[0])
            begin = max(launched, before[1] + gap - early)
            device.append((begin, begin + self.kernel_us))
        return host, device

    # --8<-- [end:step]

    def total_us(self, way: Way) -> float:
        """From the first launch until the last kernel has ended."""
        return self.spans(way)[1][-1][1]
