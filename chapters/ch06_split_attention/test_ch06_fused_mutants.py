"""Plausible faults in kernels/cuda/fused_decode_attention.cu and new_token.cuh, one at a time: the checks notice all.

A grid_dependency_wait() too few is none of them: the simulator runs one kernel after the other. test_ch06_fused_cuda.py
asks a GPU for it.
"""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch06_split_attention.fused_checks import FUSED_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "fused_decode_attention"

kernel = edit_of(f"{SOURCE}.cu")
token = edit_of("new_token.cuh")
turn = edit_of("tile_turn.cuh")
merge = edit_of("partition_merge.cuh")

MUTANTS = (
    # Who has which of the values' dimensions.
    Mutant(
        "both blocks have the first half",
        "The second half of the output is the first once more.",
        turn("lane / 4 * 8 + share * Lanes::kValueDim),", "lane / 4 * 8),"),
    ),
    Mutant(
        "the new value's first half for both",
        "Of the new token alone.",
        turn("lane / 4 * 8 + share * Lanes::kValueDim;", "lane / 4 * 8;"),
    ),
    Mutant(
        "both blocks write the first half",
        "The second one is what it was before the launch.",
        merge("+ share * kMine + i % kMine]", "+ i % kMine]"),
    ),
    Mutant(
        "all blocks have the first head",
        "The others are never read.",
        kernel("blockIdx.y / Lanes::kShares", "blockIdx.y / Lanes::kShares % 1"),
    ),
    Mutant(
        "neither block stores",
        "The token is attended to and then lost, where two blocks share a head.",
        kernel("place.kept &= share == 0;", "place.kept &= share + 1 == Lanes::kShares && share == 0;"),
    ),
    # Whose turn the new token is.
    Mutant(
        "the new token comes from the cache",
        "It is stored, but attended to as the cache had it before.",
        kernel("    if (mine) turn.put(", "    if (false) turn.put("),
    ),
    Mutant(
        "stored by nobody",
        "This step is right, and the next one reads what was there before.",
        kernel("if (mine) fresh_head.store(", "if (false) fresh_head.store("),
    ),
    Mutant(
        "turn of the first warp",
        "Warp 0 takes the token, though another one reads its turn.",
        kernel("turn % Lanes::kWarps == warp", "warp == 0"),
    ),
    Mutant(
        "turns counted from the context's begin",
        "In a partition that does not begin at a whole round of turns another warp has it.",
        kernel("max(newest - begin, 0) / kTurnTokens", "max(newest, 0) / kTurnTokens"),
    ),
    Mutant(
        "turns one too large",
        "The token behind the last of a turn is looked for in this turn.",
        kernel("max(newest - begin, 0) / kTurnTokens", "max(newest - begin, 0) / (kTurnTokens + 1)"),
    ),
    Mutant(
        "an empty context stores nothing",
        "Its token has a slot, and is lost.",
        kernel("mine = newest < end &&", "mine = context > 0 && newest < end &&"),
    ),
    Mutant(
        "the new token one place too early",
        "It takes the place of the token before it.",
        kernel("put(newest - first,", "put(newest - first - 1,"),
    ),
    Mutant(
        "read from the cache too",
        "The slot of the new token is loaded: NaN, before anyone has stored there.",
        (
            *kernel("pages, end, newest, stage", "pages, end, end, stage"),
            *kernel("    if (mine) turn.put(", "    if (false) turn.put("),
        ),
    ),
    Mutant(
        "the last stored token is not read",
        "One more than the new one counts as not stored.",
        kernel("end, newest, stage", "end, newest - 1, stage"),
    ),
    Mutant(
        "value in place of the key",
        "Both come from K.",
        kernel("fresh_head.k, fresh_head.v, lane", "fresh_head.k, fresh_head.k, lane"),
    ),
    Mutant(
        "queries as they come",
        "Q is neither normed nor rotated; nor is K.",
        kernel("    fresh.norm_and_turn(t.eps, place.known, lane);\n", ""),
    ),
    Mutant(
        "an unknown position gives numbers",
        "They look right and are not.",
        kernel("norm_and_turn(t.eps, place.known, lane)", "norm_and_turn(t.eps, true, lane)"),
    ),
    Mutant(
        "only KV head 0 is fresh",
        "Every block loads the new token of the first KV head.",
        kernel("fresh.look_up(t, kv_head,", "fresh.look_up(t, 0,"),
    ),
    Mutant(
        "one position for the batch",
        "Every sequence is turned by the angle of the first, and writes to its slot.",
        kernel("place_of(t, sequence)", "place_of(t, 0)"),
    ),
    Mutant(
        "dropped barrier of the block",
        "Warps are merged before all have left what they saw.",
        kernel("  __syncthreads();\n", ""),
        "checked",
    ),
    # The heads of the new token.
    Mutant(
        "rows of qkv without their gaps",
        "The stride of qkv is taken to be its width.",
        kernel("sequence * t.qkv_stride", "sequence * (t.num_heads + 2 * t.num_kv_heads) * kHeadDim"),
    ),
    Mutant(
        "heads beyond the group are loaded",
        "Groups of 3, 5 or 7 read heads that are not theirs.",
        token("head < group || (kKey <= head && head < kHeads);", "head < kHeads;"),
        "checked",
    ),
    Mutant(
        "K where V lies",
        "The first head of V is taken for the first behind Q's.",
        token(": a.num_heads + a.num_kv_heads + kv_head;", ": a.num_heads + kv_head;"),
    ),
    Mutant(
        "K of the first KV head",
        "The other ones' keys never come.",
        token("? a.num_heads + kv_head", "? a.num_heads"),
    ),
    Mutant(
        "queries interleaved",
        "Query head h belongs to KV head h % Hkv.",
        token("? kv_head * group + head", "? head * a.num_kv_heads + kv_head"),
    ),
    Mutant(
        "K scaled by the weight of Q",
        "One weight for both norms.",
        token("head_of(pass, lane) < kKey ? a.q_weight", "head_of(pass, lane) <= kKey ? a.q_weight"),
    ),
    Mutant(
        "upper half scaled by the lower weights",
        "The second half of the weight is never read.",
        token(
            "high_weight[pass] = *reinterpret_cast<const uint4*>(weight + kHalf)",
            "high_weight[pass] = *reinterpret_cast<const uint4*>(weight)",
        ),
    ),
    Mutant(
        "cosine for sine",
        "Both halves of the row are read as cosines.",
        token("sine[i] = row[kHalf / 4 + i]", "sine[i] = row[i]"),
    ),
    Mutant(
        "rows of the table by their number in the batch",
        "The position is forgotten.",
        token("of_cos_sin * a.cos_sin_stride", "0 * a.cos_sin_stride"),
    ),
    Mutant(
        "V is normed too",
        "Values are divided by their root mean square.",
        token("if (head_of(pass, lane) >= kValue) continue;", "if (head_of(pass, lane) > kValue) continue;"),
    ),
    Mutant(
        "K is copied like V",
        "It is stored without norm and position.",
        token("if (head_of(pass, lane) >= kValue) continue;", "if (head_of(pass, lane) >= kKey) continue;"),
    ),
    Mutant(
        "rotates backwards",
        "The sign of the angle is the other one.",
        token("fmaf(u, c[p], -(v * s[p]))", "fmaf(u, c[p], v * s[p])"),
    ),
    Mutant(
        "butterfly one step short",
        "Each half of a head keeps a sum of its own.",
        token("distance < kLanes; distance *= 2", "distance < kLanes / 2; distance *= 2"),
    ),
    Mutant(
        "mean over half a head",
        "The sum is divided by 64.",
        token("sums[0] / kHeadDim + eps", "sums[0] / kHalf + eps"),
    ),
    Mutant(
        "rounds before the rotation",
        "The normed head is rounded, as two separate operators would.",
        token(
            "element<T>(low[pass], p) * scale * element<T>(low_weight[pass], p);",
            "to_float(from_float<T>(element<T>(low[pass], p) * scale * element<T>(low_weight[pass], p)));",
        ),
    ),
    # The store and the shuffles.
    Mutant(
        "a slot that is none is written",
        "Slot 0 gets the token instead.",
        kernel("place.kept ? place.slot : -1", "place.slot"),
    ),
    Mutant(
        "pages as wide as Q",
        "The cache is stepped through by the heads of Q.",
        token("(slot * a.num_kv_heads + kv_head)", "(slot * a.num_heads + kv_head)"),
        "checked",
    ),
    Mutant(
        "K and V cross in the cache",
        "This step is right, the next one is not.",
        token("is_key ? a.k_cache : a.v_cache", "is_key ? a.v_cache : a.k_cache"),
    ),
    Mutant(
        "K and V cross in shared memory",
        "The cache is right, this step is not.",
        token("(head == kKey ? shared.k : shared.v)", "(head == kKey ? shared.v : shared.k)"),
    ),
    Mutant(
        "upper half of the token not stored",
        "What lay in shared memory takes its place.",
        token("      *reinterpret_cast<uint4*>(to + kHalf) = high[pass];\n", ""),
    ),
    Mutant(
        "no barrier of the warp behind the store",
        "Lanes read the new token before the lanes that have it have written it.",
        token("    __syncwarp();\n", ""),
        "checked",
    ),
    Mutant(
        "queries from the head beside it",
        "A shuffle asks the lanes of another head.",
        token("head % kPerPass * kLanes + p % 2", "(head + 1) % kPerPass * kLanes + p % 2"),
    ),
    Mutant(
        "all heads from the first pass",
        "A group of more than four has heads in the second one.",
        token("if (head / kPerPass == pass)", "if (pass == 0)"),
    ),
    Mutant(
        "halves of the query crosswise",
        "The upper packs come from the lower half.",
        token("p < 2 ? low[pass] : high[pass]", "p < 2 ? high[pass] : low[pass]"),
    ),
    Mutant(
        "every second pack of the query",
        "Lanes 4 to 7 of a head are never asked.",
        token("p % 2 * 4 + t", "t"),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, FUSED_CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_fused_attention_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_fused_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
