"""Chapter 3's tuning: kernels/cuda/silu_mul.cu with each size of block forced, and with single ideas undone.

    python -m chapters.ch03_swiglu.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses a block by the number of packs. The choice rests on these figures; docs/experiments.md tells what
they mean. Each candidate is the kernel's own file with one passage replaced, as a mutant is, and it is held against
float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chapters.ch03_swiglu import candidates
from qwen_cuda.benchmarking import Operands
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch03_tuning"
SOURCE = "silu_mul.cu"
ROWS = (1, 8, 128, 512, 1024, 2048, 8192, 32768)
SIZES = (3072,)
BORDER = "a.packs < 1 << 16"


def kernel(*pairs: tuple[str, str]) -> tuple[Edit, ...]:
    return tuple(Edit(SOURCE, old, new) for old, new in pairs)


def blocks_of(threads: int) -> tuple[Edit, ...]:
    """One size of block, whatever the number of packs."""
    return kernel((BORDER, "true"), ("launch_packs<64,", f"launch_packs<{threads},"))


BODY = """\
  if (p >= a.packs) return;
  const int64_t row = p / a.row_packs;
  const int q = static_cast<int>(p % a.row_packs);

  const T* gate_row = a.gate_up + row * a.gate_up_stride;
  const Pack<T> gate = load_pack_of<kAligned>(gate_row, q, a.size);
  const Pack<T> up = load_pack_of<kAligned>(gate_row + a.size, q, a.size);
"""
TWO_PACKS = """\
  Pack<T> gates[2], ups[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned at = p + j * kThreads;
    if (at >= a.packs) continue;
    const T* gate_row = a.gate_up + int64_t(at / a.row_packs) * a.gate_up_stride;
    gates[j] = load_pack_of<kAligned>(gate_row, int(at % a.row_packs), a.size);
    ups[j] = load_pack_of<kAligned>(gate_row + a.size, int(at % a.row_packs), a.size);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned at = p + j * kThreads;
    if (at >= a.packs) return;
    const int64_t row = at / a.row_packs;
    const int q = static_cast<int>(at % a.row_packs);
    const Pack<T> gate = gates[j], up = ups[j];
"""
STORE = "  store_pack_of<kAligned>(a.out + row * a.out_stride, q, a.size, out);\n"
NO_SILU = "no exponential, no division"
EDITS = {
    **{f"{threads} threads a block": blocks_of(threads) for threads in (32, 64, 128, 256, 512)},
    "two packs a thread": kernel(
        ("blockIdx.x * kThreads", "blockIdx.x * (2 * kThreads)"),
        (BODY, TWO_PACKS),
        (STORE, STORE + "  }\n"),
        ("(a.packs + kThreads - 1) / kThreads", "(a.packs + 2 * kThreads - 1) / (2 * kThreads)"),
    ),
    "accurate exponential and division": kernel(("sizeof(T) == sizeof(float)", "true")),
    NO_SILU: kernel(
        ("const float power = __expf(-fabsf(z));", ""),
        ("__fdividef(z < 0.0f ? z * power : z, 1.0f + power)", "z"),
    ),
}


def trials(device: torch.device) -> Iterator[Trial]:
    dtype = torch.bfloat16
    run = next(candidates.ours(dtype))
    for size in SIZES:
        for rows in ROWS:
            work, operands = candidates.work(rows, size, dtype), candidates.operands(rows, size, dtype, device)
            yield Trial(work, run, operands, candidates.truth, truths={NO_SILU: _product})


def _product(of: Operands) -> list[Tensor]:
    """gate · up, what is left without SiLU: a limit for every kernel of this traffic."""
    gate, up = of["gate_up"].double().chunk(2, dim=-1)
    return [gate * up]


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("silu_mul", "cuda"), EDITS)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
