"""Plausible faults in kernels/cuda/paged_attention_quantized.cu and its headers: the checks notice each one."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch10_quantized_kv.attention_checks import ATTENTION_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "paged_attention_quantized"

kernel = edit_of(f"{SOURCE}.cu")
pages = edit_of("quantized_pages.cuh")
numbers = edit_of("code_numbers.cuh")
staged = edit_of("staged_quantized_turn.cuh")
reader = edit_of("quantized_reader.cuh")
queries = edit_of("query_tiles.cuh")
table = edit_of("kv_pages.cuh")

MUTANTS = (
    # Where a lane's codes and scale lie.
    Mutant("FP4 counted as bytes", "The lanes of the second half read beyond the row.",
           pages("dimension : dimension / 2", "dimension : dimension"), "checked"),
    Mutant("float32 scales a byte apart", "A scale is made of parts of two.",
           numbers("!kPowers && wide ? 4 : 1", "1"), "checked"),
    Mutant("next head for next token", "With several KV heads a turn reads one token's heads.",
           pages("unsigned(layout.heads * layout.data_row", "unsigned(layout.data_row")),
    Mutant("scales by the stride of codes", "In a block-wide cache scales lie apart.",
           pages("layout.heads * layout.scale_row_stride", "layout.heads * layout.data_row_stride"), "checked"),
    Mutant("one page for a turn", "With pages of 8 tokens the second half of a turn lies in another one.",
           table("2 * turn + h)", "2 * turn)")),
    Mutant("a page counted from its table's begin", "A token's place in its page is forgotten.",
           pages("token & last;", "token & 0;")),
    Mutant("values beyond the end are loaded", "What no context reaches is NaN, and 0 · NaN too.",
           pages("if (lane % 4 * 2 + i % 2 >= tokens[i / 2]) continue;", "")),
    # What they stand for.
    Mutant("sign of FP4 lost", "−6 is 6.", numbers("(codes & 0x80808080u) | ", "")),
    Mutant("narrow read of a wide scale", "Of a float32 scale one byte counts.",
           numbers("return *reinterpret_cast<const uint32_t*>(from)", "return *from")),
    Mutant("all scales are powers of two", "NVFP4's scales are read as MXFP4's.",
           numbers("if (format == ScaleFormat::kE4M3) {", "if (false) {")),
    Mutant("0 of UE8M0 as zero", "The smallest scale makes zeros of a group.",
           numbers("max(code << 23, 0x00400000u)", "code << 23")),
    Mutant("a power that stands for NaN is infinity", "A group with an infinity or a NaN reads as if it had none.",
           numbers("fmaf(power, 0.0f, power)", "power")),
    Mutant("NaN as a number", "A group with an infinity or a NaN reads as if it had none.",
           numbers("fabsf(number) == nan ?", "false ?")),
    Mutant("unit of FP4's keys forgotten", "Scores are 2^6 times too small.",
           queries("power_of_two(-up) * Codes::kUnit", "power_of_two(-up)")),
    # Products of halves.
    Mutant("queries rounded to halves", "Scores are right within 2^-11.", reader("{q.z, q.w}", "{0u, 0u}")),
    Mutant("weights rounded to halves", "The output is right within 2^-11.",
           reader("{weights[0].low, weights[1].low}", "{0u, 0u}")),
    Mutant("queries in no unit", "Large ones are infinite as halves.",
           queries("limited(10 - exponent_of(largest))", "0")),
    Mutant("all quarters in each column", "A lane's sum has the numbers of other scales.",
           reader("g / 2 == t ? g : Queries::kZeros", "g")),
    Mutant("heads swapped on their way", "A quarter of one head is added to the other.",
           reader("odd ? of_head[0] : of_head[1], 1", "odd ? of_head[1] : of_head[0], 1")),
    Mutant("weights of the even head", "Both heads of a tile sum up values by the weights of the first.",
           reader("(2 * t + i % 2) + g % 2)", "(2 * t + i % 2))")),
    # Units of weights.
    Mutant("a maximum rises unseen", "What was summed before counts as much as ever.",
           reader("bool fits = !rises;", "bool fits = true;")),
    Mutant("weights outgrow a half", "Values that grow along the context become infinite.",
           reader("kRoom = 0x1p15f", "kRoom = INFINITY")),
    Mutant("a unit never shrinks", "After a large value of no weight, others vanish.",
           reader("fmaxf(largest[n][s] + raised,", "fmaxf(largest[n][s],")),
    Mutant("both columns by the first one's factor", "The second head's sum is in another unit.",
           reader("factor, 8 * t + 4 * h)", "factor, 8 * t)")),
    Mutant("a leap of any height", "Weights beyond what fp32 can hold.", reader("kSlack = 4.0f", "kSlack = INFINITY")),
    # Turns.
    Mutant("every other turn is not read", "Those that come through shared memory.",
           reader("      absorb(staged, [] {});\n", "")),
    Mutant("read before it has come", "A turn is what its place held before.", reader("      staged.wait();\n", "")),
    Mutant("staged keys without their order", "A lane's second pack is its neighbour's.",
           staged("key_at ^ 4 * w", "key_at + 4 * w")),
    Mutant("staged values without their order", "The second half of a row is another token's.",
           staged("value_at[i % 2] ^ s * (kRow / 2)", "value_at[i % 2] + s * (kRow / 2)")),
    Mutant("staged rows beyond the end", "What no context reaches is NaN.",
           staged("const bool there = i + of_copy < tokens[h];", "const bool there = true;"), "checked"),
    Mutant("staged values have the scales of keys", "Both come from K.",
           staged("(lane < kTurnTokens ? head.first_key : head.first_value)", "head.first_key")),
    Mutant("scales of one half for both", "With pages of 8 tokens the second half lies in another one.",
           staged("(upper ? at[1] : at[0]).scales", "at[0].scales")),
    Mutant("one word of scales a row", "Groups of 16, and float32 scales, have more.",
           staged("w < (kPowers ? 1 : words);", "w < 1;")),
    Mutant("the largest weight is the last token's", "The unit does not fit those of the others.",
           reader("top[s] = fmaxf(top[s], fabsf(scaled[s][i]));", "top[s] = fabsf(scaled[s][i]);")),
    Mutant("all turns are the first", "Of long contexts one turn counts often, and the others not at all.",
           table("    next += kStep;\n", "")),
    Mutant("a turn in its neighbour's page", "Pages are looked up as if a warp's turns followed each other.",
           table("lane / 2 * kStep", "lane / 2 * kTurnTokens")),
    # The query, and the cut.
    Mutant("queries read before they are there", "Warps of other heads are still writing them.",
           kernel("warp, lane);\n    __syncthreads();", "warp, lane);"), "checked"),
    Mutant("results over queries", "A warp that has ended overwrites what others read.",
           kernel("(auto&, int) {});\n  __syncthreads();", "(auto&, int) {});"), "checked"),
    Mutant("first query head transformed alone", "The others meet keys of another basis.",
           queries("if (hadamard_scale != 0.0f)", "if (hadamard_scale != 0.0f && head == 0)")),
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
