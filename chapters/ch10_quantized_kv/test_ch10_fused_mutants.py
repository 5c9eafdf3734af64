"""Plausible faults in fused_decode_attention_quantized.cu and its headers, one at a time: the checks notice all.

A grid_dependency_wait() too few is none of them: the simulator runs one kernel after the other. test_ch10_fused_cuda.py
asks a GPU for it.
"""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch10_quantized_kv.fused_checks import FUSED_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "fused_decode_attention_quantized"

kernel = edit_of(f"{SOURCE}.cu")
token = edit_of("new_quantized_token.cuh")
pages = edit_of("quantized_pages.cuh")
staged = edit_of("staged_quantized_turn.cuh")
queries = edit_of("query_tiles.cuh")
codes = edit_of("chunk_codes.cuh")

MUTANTS = (
    # Whose turn the new token is.
    Mutant("the new token does not come", "It is stored, and not attended to.",
           kernel("if (newest - first < kTurnTokens)", "if (false)")),
    Mutant("read from the cache", "The slot of the new token is loaded: NaN, before anyone has stored there.",
           kernel("end, newest, stage", "end, end, stage")),
    Mutant("the last stored token is not read", "One more than the new one counts as not stored.",
           kernel("end, newest, stage", "end, newest - 1, stage")),
    Mutant("one place too early", "It takes the place of the token before it, or has none.",
           kernel("newest - first, lane)", "newest - first - 1, lane)")),
    Mutant("key in place of the value", "Both come from K.",
           kernel("rows.k, rows.v, newest", "rows.k, rows.k, newest")),
    Mutant("an empty context stores nothing", "Its token has a slot, and is lost.",
           kernel("newest < end, layout", "context > 0 && newest < end, layout")),
    Mutant("one position for the batch", "Every sequence turns by the angle of the first, and writes to its slot.",
           kernel("place_of(t, sequence)", "place_of(t, 0)")),
    Mutant("only the first half of a turn", "A token in its second half is not there.",
           pages("h < 2; ++h, place -= kHalfTurn", "h < 1; ++h, place -= kHalfTurn")),
    Mutant("the new token does not count", "It is put into its turn and weighs nothing.",
           pages("      ++tokens[h];\n", "")),
    Mutant("every key of the half is the new one", "A lane takes it for whichever token it has.",
           pages("if (lane / 4 == place) load_key", "load_key")),
    Mutant("a value one token off", "The pair beside it takes it.",
           pages("lane % 4 * 2 + i == place", "lane % 4 * 2 + 1 - i == place")),
    Mutant("a token without a page", "Its block is none, and it is put into the turn nevertheless.",
           pages("if (place < 0 || tokens[h] != place) continue;", "if (place < 0) continue;")),
    Mutant("the new token does not count in a staged turn", "It is put into its turn and weighs nothing.",
           staged("      ++tokens[h];\n", "")),
    Mutant("only a key in a staged turn", "The new token's value is what was there before.",
           staged("if (lane < 2 * kPacks)", "if (lane < kPacks)")),
    Mutant("only a key's scales in a staged turn", "The new token's value has the scale of another one.",
           staged("if (of < 2 &&", "if (of < 1 &&")),
    Mutant("a token without a page in a staged turn", "It takes the place of whichever token is there.",
           staged("at - kHalfTurn * h != tokens[h]", "at - kHalfTurn * h >= kHalfTurn")),
    # Barriers.
    Mutant("queries and rows read before they are there", "Other warps are still writing them.",
           kernel("    __syncthreads();\n    fresh.store(", "    fresh.store("), "checked"),
    Mutant("results over queries", "A warp that has ended overwrites what others read.",
           kernel("  __syncthreads();\n  reader.leave", "  reader.leave"), "checked"),
    Mutant("merged before all have left", "Warps are merged before they have left what they saw.",
           kernel("warp);\n  __syncthreads();", "warp);"), "checked"),
    # The heads of the new token.
    Mutant("rows of qkv without their gaps", "The stride of qkv is taken to be its width.",
           token("of.sequence * of.token.qkv_stride",
                 "of.sequence * (of.token.num_heads + 2 * of.token.num_kv_heads) * kHeadDim")),
    Mutant("heads beyond the group are loaded", "Groups of 3, 5 or 7 read heads that are not theirs.",
           token("exists ? at * kHeadDim + kOfLane * lane : -1", "at * kHeadDim + kOfLane * lane"), "checked"),
    Mutant("K where V lies", "The first head of V is taken for the first behind Q's.",
           token("(head == kKey ? 0 : t.num_kv_heads)", "0")),
    Mutant("K and V of the first KV head", "The other ones' never come.", token(" + of.kv_head;", ";")),
    Mutant("queries interleaved", "Query head h belongs to KV head h % Hkv.",
           token("of.kv_head * of.group + head", "head * t.num_kv_heads + of.kv_head")),
    Mutant("a head for each warp", "With groups of eight nobody has K and V.",
           token("head += kAttentionWarps", "head += kHeads")),
    Mutant("weights of the first head", "With groups of eight K is scaled by the weight of Q.",
           token("      if (head >= kAttentionWarps) load_constants(head);\n", "")),
    Mutant("K scaled by the weight of Q", "One weight for both norms.",
           token("head < kKey ? t.q_weight : t.k_weight", "t.q_weight")),
    Mutant("rows of the table by nothing", "The position is forgotten.",
           token("of.place.row() * t", "0 * t")),
    Mutant("both halves turn one way", "A rotation is none.",
           token("first ? -sine.values[i] : sine.values[i]", "-sine.values[i]")),
    Mutant("neighbours are pairs", "A number turns with the one four on.", token("value, kWarpSize / 2)", "value, 1)")),
    Mutant("an unknown position gives numbers", "They look right and are not.",
           token("of.place.known ? scale * kLog2OfE : not_a_number()", "scale * kLog2OfE")),
    Mutant("queries are not rounded", "They meet keys as they come from the rotation.",
           token("to_float(from_float<T>(value)) * unit", "value * unit")),
    Mutant("scores in another unit", "Powers of e are taken for powers of two.", token("scale * kLog2OfE", "scale")),
    Mutant("queries not transformed", "They meet keys of another basis.",
           token("q.values[0], hadamard_scale, lane", "q.values[0], 0.0f, lane")),
    Mutant("keys not transformed", "Queries of another basis meet them.",
           token("if (hadamard_scale != 0.0f) hadamard(head", "if (false) hadamard(head")),
    Mutant("V goes the way of K", "It is normed, turned and transformed.",
           token("    if (is_key) {\n      turn", "    {\n      turn")),
    Mutant("K as it comes", "It is stored without norm and position.",
           token("      turn(head);\n      if (hadamard", "      if (hadamard")),
    Mutant("codes of unrounded keys", "A row stored later gets other codes.",
           token("      head.for_each([](float& value) { value = to_float(from_float<T>(value)); });\n", "")),
    # Queries to the Tensor Cores.
    Mutant("a unit of half a head", "The larger half overflows where it is much larger.",
           queries("int distance = kWarpSize / 2;", "int distance = kWarpSize / 4;")),
    Mutant("quarters crosswise", "The first and the second quarter of a query change places.",
           queries("lane / 8 * 2 + head % 2", "(lane / 8 ^ 1) * 2 + head % 2")),
    Mutant("numbers in their order", "FP4's even and odd codes are words of their own; queries are not so shared out.",
           queries("[Codes::word_of(number)][column]", "[number / 4][column]")),
    Mutant("no column of zeros", "Other classes meet what shared memory held before.",
           kernel("    queries.set_zeros();\n", ""), "checked"),
    # Codes.
    Mutant("scales of FP8 in bytes", "float32 ones are cut.",
           codes("if (layout.scale_format == ScaleFormat::kFloat32) {", "if (false) {")),
    Mutant("groups twice as large", "Two groups share the larger scale.",
           codes("distance < layout.group / kOfLane;", "distance < layout.group / kOfLane * 2;")),
    Mutant("stored by nobody", "This step is right, and the next one reads what was there before.",
           token("if (!is_made || !of.place.kept) return;", "return;")),
    Mutant("a slot that is none is written", "Slot 0 gets the token instead.",
           token("if (!is_made || !of.place.kept) return;", "if (!is_made) return;")),
    Mutant("K and V cross in the cache", "This step is right, the next one is not.",
           token("is_key ? k.data : v.data", "is_key ? v.data : k.data")),
    Mutant("stored by those who made nothing", "Zeros lie where V belongs.",
           token("if (!is_made || !of.place.kept) return;", "if (!of.place.kept) return;")),
    Mutant("K in a warp of its own, always", "With groups of eight it goes where V belongs.",
           token("(kHeads <= kAttentionWarps ? warp : warp + kAttentionWarps) == kKey", "warp == kKey")),
    Mutant("K and V cross in shared memory", "The cache is right, this step is not.",
           token("head == kKey ? fresh.k : fresh.v", "head == kKey ? fresh.v : fresh.k")),
    Mutant("all into the first KV head's row", "The codes of the last block to store remain.",
           token("of.place.slot, of.kv_head)", "of.place.slot, 0)")),
)  # fmt: skip


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, FUSED_CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_fused_attention_over_codes_as_it_is_passes(
    trial: MutantTrial, variant: Literal["plain", "checked"], seed: int
) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_fused_attention_over_codes_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
