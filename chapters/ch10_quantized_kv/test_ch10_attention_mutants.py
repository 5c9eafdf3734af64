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
           pages("scale_of.wide ? 4 : 1", "1"), "checked"),
    Mutant("next head for next token", "With several KV heads a turn reads one token's heads.",
           pages("{layout.heads * layout.data_row_stride", "{layout.data_row_stride")),
    Mutant("scales by the stride of codes", "In a block-wide cache scales lie apart.",
           pages("layout.heads * layout.scale_row_stride}", "layout.heads * layout.data_row_stride}"),
           "checked"),
    Mutant("tokens beyond the end are loaded", "What no context reaches is NaN, and 0 · NaN too.",
           pages("if (t < tokens) codes", "codes")),
    # What they stand for.
    Mutant("sign of FP4 lost", "−6 is 6.", pages("(word & 0x80808080u) | ", "")),
    Mutant("upper half of a word as the lower", "Four codes of eight are read twice.",
           pages("even : odd, i / 2)", "even : odd, i / 4)")),
    Mutant("narrow read of a wide scale", "Of a float32 scale one byte counts.",
           pages("*reinterpret_cast<const uint32_t*>(row.scale)", "*row.scale")),
    Mutant("all scales are powers of two", "NVFP4's scales are read as MXFP4's.",
           pages("if (format == ScaleFormat::kE4M3) {", "if (false) {")),
    Mutant("0 of UE8M0 as zero", "The smallest scale makes zeros of a group.", pages("least(0x00400000u)", "least(0)")),
    Mutant("byte without its sign", "A negative E4M3 scale is positive.",
           pages("*reinterpret_cast<const int8_t*>(row.scale)", "*row.scale")),
    Mutant("NaN as a number", "A group with an infinity or a NaN reads as if it had none.",
           pages("fabsf(number) == nan ?", "false ?")),
    Mutant("unit of FP4's values forgotten", "The output is 2^6 times too small.",
           kernel("reader.o[g][i] *= Reader::Run::kUnit;", "(void)i;")),
    # Two turns ahead.
    Mutant("both pipelines at the first turn", "Of long contexts one turn counts twice, and one not at all.",
           pages("token + p * Lanes::kBlockTurn", "token")),
    Mutant("a pipeline goes on to its neighbour's turn", "From the third turn on, each counts twice.",
           pages("next += kAhead * Lanes::kBlockTurn", "next += Lanes::kBlockTurn")),
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
