"""What this machine can do at best, measured: bytes read, bytes copied and floating-point operations per second.

A floor computed from a data sheet is a promise; one computed from these was kept on this machine, minutes ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from qwen_cuda.benchmarking.bandwidth import WAYS, Streams, streams
from qwen_cuda.benchmarking.graphs import graph_timing
from qwen_cuda.benchmarking.timing import Call, alternate, measure

GIB, MIB = 2**30, 2**20
Bandwidth = Literal["read", "copy"]


@dataclass(frozen=True)
class Ceilings:
    """Measured limits.

    Attributes:
        read_gbps: 10⁹ bytes read from memory per second, nothing written.
        copy_gbps: 10⁹ bytes per second of a copy, read and written bytes together.
        matmul_tflops: 10¹² operations per second of a large square matrix product, by dtype (`float32`, `bfloat16`).
        graph_node_us: µs that an empty kernel takes in a CUDA graph, one after another; None without a GPU.
        reached_by: the kernel that reached `read` and `copy`.
    """

    read_gbps: float
    copy_gbps: float
    matmul_tflops: dict[str, float]
    graph_node_us: float | None = None
    reached_by: dict[str, str] = field(default_factory=dict)

    def floor_us(
        self, nbytes: int, flops: int = 0, dtype: str = "float32", bandwidth: Bandwidth = "read", nodes: int = 0
    ) -> float:
        """The least time for this much traffic and arithmetic: the larger of the two, as on a roofline.

        `bandwidth` is that of traffic which is only read, or read and written alike. With `nodes` kernels in a CUDA
        graph it is no less than as many empty ones take.
        """
        times = [nbytes / ((self.copy_gbps if bandwidth == "copy" else self.read_gbps) * 1e3)]
        if (tflops := self.matmul_tflops.get(dtype)) is not None:
            times.append(flops / (tflops * 1e6))
        if self.graph_node_us is not None:
            times.append(nodes * self.graph_node_us)
        return max(times)

    def best(self, other: Ceilings) -> Ceilings:
        """The higher of two measurements of each ceiling, and the shorter time of an empty kernel."""
        nodes = [us for us in (self.graph_node_us, other.graph_node_us) if us is not None]
        reads = max(self, other, key=lambda ceilings: ceilings.read_gbps)
        copies = max(self, other, key=lambda ceilings: ceilings.copy_gbps)
        by = {"read": reads.reached_by.get("read"), "copy": copies.reached_by.get("copy")}
        return Ceilings(
            read_gbps=reads.read_gbps,
            copy_gbps=copies.copy_gbps,
            matmul_tflops={name: max(value, other.matmul_tflops[name]) for name, value in self.matmul_tflops.items()},
            graph_node_us=min(nodes, default=None),
            reached_by={name: kernel for name, kernel in by.items() if kernel is not None},
        )


def measure_ceilings(device: torch.device, quick: bool = False) -> Ceilings:
    """Measures all ceilings; about three seconds.

    Memory is read by several kernels, PyTorch's sum, dot product and matrix–vector product and on a GPU our own, and
    the fastest counts, at its undisturbed speed (p10 of the time): a ceiling must not be low because one kernel is poor
    or the machine was busy. The buffer is larger than the caches of common processors.
    """
    on_gpu = device.type == "cuda"
    nbytes = (2 * GIB if on_gpu else 512 * MIB) // (2 if quick else 1)
    own = streams(device) if on_gpu else None
    buffer = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    if on_gpu:
        buffer.normal_()  # equal numbers draw less power
    half_a, half_b = buffer.chunk(2)
    readers, copiers = _readers(buffer), {"torch copy_": lambda: half_b.copy_(half_a)}
    if isinstance(own, Streams):
        sums = torch.empty(max(own.blocks(way) for way in WAYS), dtype=torch.int32, device=device)
        readers |= {str(way): lambda way=way: own.read(buffer, sums, way) for way in WAYS}  # type: ignore[misc]
        copiers |= {str(way): lambda way=way: own.copy(half_a, half_b, way) for way in WAYS}  # type: ignore[misc]
    read_us, reader = _fastest(readers, device, quick)
    copy_us, copier = _fastest(copiers, device, quick)
    return Ceilings(
        read_gbps=nbytes / read_us / 1e3,
        copy_gbps=nbytes / copy_us / 1e3,  # half the buffer is read, half is written
        matmul_tflops={
            str(dtype).removeprefix("torch."): _matmul_tflops(device, dtype, quick)
            for dtype in (torch.float32, torch.bfloat16)
        },
        graph_node_us=_graph_node_us(device, own) if on_gpu else None,
        reached_by={"read": reader, "copy": copier},
    )


def _readers(buffer: torch.Tensor) -> dict[str, Call]:
    """PyTorch's kernels that read all of `buffer: [n] float32` and write next to nothing."""
    half_a, half_b = buffer.chunk(2)
    matrix, vector = buffer.view(-1, 4096), torch.ones(4096, dtype=torch.float32, device=buffer.device)
    readers: dict[str, Call] = {
        "torch sum": buffer.sum,
        "torch dot": lambda: torch.dot(half_a, half_b),
        "torch mv": lambda: torch.mv(matrix, vector),
    }
    if buffer.device.type == "cuda":
        half_matrix, half_vector = buffer.view(torch.bfloat16).view(-1, 4096), vector.bfloat16()
        readers["torch mv, bfloat16"] = lambda: torch.mv(half_matrix, half_vector)
        readers["torch vector_norm"] = lambda: torch.linalg.vector_norm(buffer)
    return readers


def _fastest(calls: Mapping[str, Call], device: torch.device, quick: bool) -> tuple[float, str]:
    """The least time, p10, and whose it is. On a GPU four calls a sample: the first one's way there counts less."""
    times = alternate(
        calls, device, budget_s=0.1 if quick else 0.25, calls_per_sample=4 if device.type == "cuda" else 1
    )
    return min((us.p10, name) for name, us in times.items())


def _matmul_tflops(device: torch.device, dtype: torch.dtype, quick: bool) -> float:
    n = (8192 if device.type == "cuda" else 1024) // (2 if quick else 1)
    # Random numbers: a GPU draws less power, and so runs faster, on zeros.
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    us = measure(lambda: torch.mm(a, b, out=out), device, budget_s=0.25, min_samples=3).p10
    return 2 * n**3 / us / 1e6


def _graph_node_us(device: torch.device, own: Streams | str | None) -> float:
    """An empty kernel, or, where there is none of ours, one of PyTorch's on a single number."""
    number = torch.zeros(1, device=device)
    call: Call = own.empty if isinstance(own, Streams) else lambda: number.add_(1)
    return graph_timing({"": [call]}, device, cache="warm")[""].p10
