"""Plausible faults in kernels/cuda/paged_attention_quantized.cu and its header: the checks notice each one."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch10_quantized_kv.attention_checks import ATTENTION_CHECKS
from qwen_cuda.building import Edit
from qwen_cuda.testing.mutants import Mutant, MutantTrial

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "paged_attention_quantized"


def kernel(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit(f"{SOURCE}.cu", old, new),)


def pages(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("quantized_pages.cuh", old, new),)


MUTANTS = (
    # Where a lane's codes and scale lie.
    Mutant("dimensions of 16-bit lanes", "Codes lie side by side, queries eight lanes apart.",
           pages("return lane % Base::kPerToken * Base::kDims + i;", "return Base::dimension(lane, i);")),
    Mutant("FP4 counted as bytes", "The lanes of the second half read beyond the row.",
           pages("dimension : dimension / 2", "dimension : dimension"), "checked"),
    Mutant("scale of the first group", "All groups of a row have one scale.",
           pages("dimension / layout.group * (", "0 * (")),
    Mutant("float32 scales a byte apart", "A scale is made of parts of two.",
           pages("ScaleFormat::kFloat32 ? 4 : 1", "ScaleFormat::kFloat32 ? 1 : 1"), "checked"),
    Mutant("next head for next token", "With several KV heads a turn reads one token's heads.",
           pages("int64_t(layout.heads) * layout.data_row_stride", "layout.data_row_stride")),
    Mutant("scales by the stride of codes", "In a block-wide cache scales lie apart.",
           pages("int64_t(layout.heads) * layout.scale_row_stride", "int64_t(layout.heads) * layout.data_row_stride"),
           "checked"),
    Mutant("tokens beyond the end are loaded", "What no context reaches is NaN, and 0 · NaN too.",
           pages("if (t >= tokens) continue;", "")),
    # What they stand for.
    Mutant("sign of FP4 lost", "−6 is 6.", pages(" | (codes << 12 & 0x80008000u)", "")),
    Mutant("upper half of a word as the lower", "Four codes of eight are read twice.", pages("[i / 4])", "[0])")),
    Mutant("narrow read of a wide scale", "Of a float32 scale one byte counts.",
           pages("format == ScaleFormat::kFloat32 ? *reinterpret_cast<const uint32_t*>(scale) : *scale", "*scale")),
    Mutant("all scales are powers of two", "NVFP4's scales are read as MXFP4's.",
           pages("format == ScaleFormat::kE4M3 ? from_e4m3(code)", "format == ScaleFormat::kE4M3 ? from_ue8m0(code)")),
    Mutant("unit of FP4's values forgotten", "The output is 2^14 times too small.",
           kernel("reader.o[g][i] *= Run::kUnit;", "(void)i;")),
    # The query, and the cut.
    Mutant("first query head transformed alone", "The others meet keys of another basis.",
           kernel("g < Lanes::kGroup; ++g) hadamard", "g < 1; ++g) hadamard")),
    Mutant("transformed unasked", "A cache of plain keys meets transformed queries.",
           kernel("if (hadamard_scale == 0.0f) return;", "const float hadamard_scale = 0.088388348f;")),
    Mutant("one partition too many counted", "Where the context ends with one, the last block waits for another.",
           kernel("(context - 1) / tokens + 1", "context / tokens + 1")),
)  # fmt: skip


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, ATTENTION_CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_quantized_attention_as_it_is_passes(
    trial: MutantTrial, variant: Literal["plain", "checked"], seed: int
) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_quantized_attention_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
