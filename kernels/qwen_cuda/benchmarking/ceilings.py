"""What this machine can do at best, measured: bytes read, bytes copied and floating-point operations per second.

A floor computed from a data sheet is a promise; one computed from these was kept on this machine, minutes ago.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qwen_cuda.benchmarking.timing import Call, measure

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Ceilings:
    """Measured limits.

    Attributes:
        read_gbps: 10⁹ bytes read from memory per second, nothing written.
        copy_gbps: 10⁹ bytes per second of a copy, read and written bytes together.
        matmul_tflops: 10¹² operations per second of a large square matrix product, by dtype (`float32`, `bfloat16`).
    """

    read_gbps: float
    copy_gbps: float
    matmul_tflops: dict[str, float]

    def floor_us(self, nbytes: int, flops: int = 0, dtype: str = "float32") -> float:
        """The least time for this much traffic and arithmetic: the larger of the two, as on a roofline."""
        memory_us = nbytes / (self.read_gbps * 1e3)
        tflops = self.matmul_tflops.get(dtype)
        return memory_us if tflops is None else max(memory_us, flops / (tflops * 1e6))

    def best(self, other: Ceilings) -> Ceilings:
        """The higher of two measurements of each ceiling."""
        return Ceilings(
            read_gbps=max(self.read_gbps, other.read_gbps),
            copy_gbps=max(self.copy_gbps, other.copy_gbps),
            matmul_tflops={name: max(value, other.matmul_tflops[name]) for name, value in self.matmul_tflops.items()},
        )


def measure_ceilings(device: torch.device, quick: bool = False) -> Ceilings:
    """Measures all ceilings; about three seconds.

    Memory is read by several of PyTorch's own kernels, a sum, a dot product and a matrix–vector product, and the
    fastest counts, at its undisturbed speed (p10 of the time): a ceiling must not be low because one kernel is poor or
    the machine was busy. The buffer is larger than the caches of common processors.
    """
    on_gpu = device.type == "cuda"
    nbytes = (2 * GIB if on_gpu else 512 * MIB) // (2 if quick else 1)
    budget_s = 0.1 if quick else 0.25
    buffer = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    half_a, half_b = buffer.chunk(2)
    matrix = buffer.view(-1, 4096)
    vector = torch.ones(4096, dtype=torch.float32, device=device)
    readers: list[Call] = [buffer.sum, lambda: torch.dot(half_a, half_b), lambda: torch.mv(matrix, vector)]
    if on_gpu:
        half_matrix, half_vector = buffer.view(torch.bfloat16).view(-1, 4096), vector.bfloat16()
        readers += [lambda: torch.mv(half_matrix, half_vector), lambda: torch.linalg.vector_norm(buffer)]
    read_us = min(measure(reader, device, budget_s=budget_s).p10 for reader in readers)
    copy_us = measure(lambda: half_b.copy_(half_a), device, budget_s=budget_s).p10
    return Ceilings(
        read_gbps=nbytes / read_us / 1e3,
        copy_gbps=nbytes / copy_us / 1e3,  # half the buffer is read, half is written
        matmul_tflops={
            str(dtype).removeprefix("torch."): _matmul_tflops(device, dtype, quick)
            for dtype in (torch.float32, torch.bfloat16)
        },
    )


def _matmul_tflops(device: torch.device, dtype: torch.dtype, quick: bool) -> float:
    n = (8192 if device.type == "cuda" else 1024) // (2 if quick else 1)
    # Random numbers: a GPU draws less power, and so runs faster, on zeros.
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    us = measure(lambda: torch.mm(a, b, out=out), device, budget_s=0.25, min_samples=3).p10
    return 2 * n**3 / us / 1e6
