"""Plausible faults in kernels/cuda/norm_rope_hadamard_quant_store.cu and its headers: the checks notice each one."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch10_quantized_kv.query_checks import check_queries
from chapters.ch10_quantized_kv.store_checks import STORE_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "norm_rope_hadamard_quant_store"

kernel = edit_of(f"{SOURCE}.cu")
transform = edit_of("head_transform.cuh")
four_heads = edit_of("four_heads.cuh")
four_stored = edit_of("four_heads_store.cuh")
groups = edit_of("group_codes.cuh")
codes = edit_of("chunk_codes.cuh")
narrow = edit_of("narrow_floats.cuh")
place = edit_of("store_place.cuh")
rows = edit_of("quantized_rows.cuh")

MUTANTS = (
    # The stages.
    Mutant("chunks in a row", "The sums of a long head's chunks are added in another order.",
           transform("sums[c] = sums[2 * c] + sums[2 * c + 1]", "sums[c] = sums[c] + sums[c + n / 2]")),
    Mutant("mean over a chunk", "A head of 512 is divided by 128.", transform("/ (kChunk * kChunks) +", "/ kChunk +")),
    Mutant("no barrier before the exchange", "A lane reads its partner before it is there.",
           transform("  __syncwarp();\n", ""), "checked"),
    Mutant("conjugate is ignored", "A rotation cannot be undone.", transform("first != conjugate", "first")),
    Mutant("interleaved angles by element", "Each element of a pair is turned by an angle of its own.",
           transform("cosines.values[i / 2]", "cosines.values[i % 2]")),
    Mutant("upper half of lanes adds", "The transform forgets to subtract among lanes.",
           transform("lane & distance ? other - v[i] : v[i] + other", "v[i] + other")),
    Mutant("V is normed", "Values are taken for keys.",
           kernel("if (is_key && a.norm_weight != nullptr)", "if (a.norm_weight != nullptr)")),
    Mutant("V is transformed", "Values are turned into a basis that nobody turns them back from.",
           kernel("if (is_key && a.hadamard_scale != 0)", "if (a.hadamard_scale != 0)")),
    Mutant("queries have the weight of keys", "The norm of Q is that of K.",
           kernel("h < 0 ? a.query_weight : a.norm_weight", "a.norm_weight")),
    Mutant("queries as far apart as heads", "A token's queries lie where its heads lie in x.",
           kernel("token * a.num_queries + query_head", "token * a.heads + query_head"), "checked"),
    # Codes and scales.
    Mutant("codes from unrounded numbers", "A row stored later gets other codes than one stored at once.",
           kernel("value = to_float(from_float<T>(value)); }", "(void)value; }")),
    Mutant("a group one lane short", "The largest element of half a group is not seen.",
           codes("distance < layout.group / kOfLane;", "distance < layout.group / kOfLane / 2;")),
    Mutant("sign counts", "A negative number is larger than every positive one.",
           codes("__float_as_uint(v[i]) & 0x7fffffffu)", "__float_as_uint(v[i]))")),
    Mutant("ties away from zero", "Halves round up, in E4M3.",
           narrow("0x7ffffu + ((magnitude >> 20) & 1u)", "0x80000u")),
    Mutant("ties away from zero in FP4", "Halves round up, in E2M1.",
           narrow("0x1fffffu + ((magnitude >> 22) & 1u)", "0x200000u")),
    Mutant("no subnormals", "Small codes become zero.",
           narrow("magnitude < 0x3c800000u) {", "magnitude < 0x3c800000u) {\n    return bits >> 24 & 0x80u;")),
    Mutant("minus zero loses its sign", "−0 is stored as 0.",
           narrow("return (bits >> 24 & 0x80u) | code;", "return code == 0 ? 0 : (bits >> 24 & 0x80u) | code;")),
    Mutant("wraps instead of saturating", "Beyond 448 comes NaN.",
           narrow("magnitude >= 0x43e00000u", "magnitude >= 0x47000000u")),
    Mutant("scale rounded down", "A power of two below amax / 448: the largest saturate.",
           narrow("amax_bits + 0x1fffffu", "amax_bits")),
    Mutant("scale one too large", "amax that is exactly 448 times a power of two gets the next one.",
           narrow("amax_bits + 0x1fffffu", "amax_bits + 0x200000u")),
    Mutant("scale of zero", "A group of zeros is divided by zero.", rows("code == 0 ? 1 : code", "code", 2)),
    Mutant("infinity is a number", "An infinite element makes its group zeros.",
           rows("finite = amax_bits < kInfinityBits", "finite = amax_bits <= kInfinityBits")),
    Mutant("nibbles crossed", "The first number of a byte is in its upper half.",
           narrow("to_e2m1(values[0]) | to_e2m1(values[1]) << 4", "to_e2m1(values[1]) | to_e2m1(values[0]) << 4")),
    # Where things go.
    Mutant("slot -1 is written", "A token that must not be kept lands before the cache.",
           place("0 <= place.slot && ", ""), "checked"),
    Mutant("one slot too many", "The slot behind the last one is written.",
           place("place.slot < a.num_slots", "place.slot <= a.num_slots"), "checked"),
    Mutant("an unknown position is kept", "NaN gets into the cache.",
           place("place.kept = place.known && ", "place.kept = ")),
    Mutant("scales by the stride of codes", "In a block-wide cache scales lie apart.",
           rows("row * layout.scale_row_stride", "row * layout.data_row_stride"), "checked"),
    # Four heads a warp.
    Mutant("squares in another tree", "The norm of four heads has other bits than that of one.",
           four_heads("sums[i] = sums[2 * i] + sums[2 * i + 1]", "sums[i] = sums[i] + sums[i + n]")),
    Mutant("one sign for all distances", "The transform adds where it must subtract.",
           four_heads("lane & distance ? -1.0f", "lane & 1 ? -1.0f")),
    Mutant("V over K", "Both go into one cache.", four_stored("shift, f.v, place", "shift, f.k, place")),
    Mutant("heads behind the last one are stored", "A role's last warp has less than four heads.",
           four_stored("place.there = head < heads;", "place.there = true;"), "checked"),
    Mutant("heads behind the last one are read", "The last warp reads past x.",
           four_stored("min(head, heads - 1)", "head"), "checked"),
    Mutant("half of a slot counts", "A slot of 2^32 is taken for slot 0.", four_stored(" & (upper == 0)", "")),
    Mutant("four heads of an unknown position are kept", "NaN gets into the cache, by the other kernel.",
           four_stored(" || (f.slots.bytes != 0 && !known)", "")),
    Mutant("four heads of an unknown position have numbers", "Queries and rows are turned as if it were 0.",
           four_stored("known ? 0 : 0x7fff7fffu", "0")),
    Mutant("an outlet is forgotten", "Four heads a warp have none.",
           four_stored("a.stage != qwen::Stage::kNone || ", "")),
    Mutant("pairs of neighbours are turned as halves", "The launcher takes any rotation of the whole head.",
           four_stored("a.interleaved || ", "")),
    Mutant("a group of 128 is two", "Each half of a head has a scale of its own.",
           groups("if (group_shift > 3)", "if (group_shift > 4)")),
    Mutant("one scale for two groups", "The upper half of a head has the scales of the lower.",
           groups("in_group ? high.code : low.code", "low.code")),
    Mutant("quotient not corrected", "A product with the reciprocal falls on the other side of a tie.",
           groups("return fmaf(fmaf(b, near, -a), -reciprocal, near);", "return near;")),
    Mutant("minus zero loses its sign in a quotient", "−0 is stored as 0.",
           groups("fmaf(fmaf(b, near, -a), -reciprocal, near)", "fmaf(fmaf(-b, near, a), reciprocal, near)")),
    Mutant("tiny groups are not raised", "What a quotient is off is a subnormal, and is rounded.",
           groups("kWide && value < 1 / kRaised", "false")),
    Mutant("ties away from zero in eight FP4", "Halves round up.",
           narrow("0x00ff00ffu + (size >> 9 & 0x00010001u)", "0x01000100u")),
    Mutant("eight FP4 do not saturate", "Beyond 6 comes −0.",
           narrow("__vminu2(bits & 0x7fff7fffu, 0x0e000e00u)", "bits & 0x7fff7fffu")),
)  # fmt: skip


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, (*STORE_CHECKS, check_queries))


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_the_store_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_the_store_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
