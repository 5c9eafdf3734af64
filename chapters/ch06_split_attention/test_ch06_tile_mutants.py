"""Plausible faults in what the fused kernel reads by, one at a time: the fused checks notice all."""

from __future__ import annotations

import pytest

from chapters.ch06_split_attention.fused_checks import FUSED_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "fused_decode_attention"

reader = edit_of("tile_reader.cuh")
turn = edit_of("tile_turn.cuh")
pages = edit_of("kv_pages.cuh")
staged = edit_of("staged_turn.cuh")
parts = edit_of("weight_parts.cuh")

MUTANTS = (
    # Which tokens a lane has, and where they lie.
    Mutant(
        "every key of the turn is the new one",
        "All lanes take it, not the four whose token it is.",
        turn("      if (n != lane / 4 + kHalfTurn * h) continue;\n", ""),
    ),
    Mutant(
        "every value of the turn is the new one",
        "Its weight is its own, and all others count for it, too.",
        turn("      if (n != lane % 4 * 2 + i % 2 + kHalfTurn * (i / 2)) continue;\n", ""),
    ),
    Mutant(
        "a new key in the second half is not seen",
        "Tokens 8 to 15 of a turn are looked for in the first half.",
        turn("n != lane / 4 + kHalfTurn * h", "n != lane / 4 + 2 * kHalfTurn * h"),
    ),
    Mutant(
        "a new value two places away",
        "Halves are taken to have four tokens.",
        turn("i % 2 + kHalfTurn * (i / 2)) continue", "i % 2 + kHalfTurn / 2 * (i / 2)) continue"),
    ),
    Mutant(
        "the first pack of the new key for all",
        "A lane's packs lie 32 numbers apart.",
        turn("(key + p * Pages::kKeyStep)", "(key)"),
    ),
    Mutant(
        "both halves in one page",
        "Pages of eight tokens have a half each.",
        pages("2 * turn + h)", "2 * turn)"),
    ),
    Mutant(
        "both halves reach as far as the first",
        "Of the second half eight tokens too many count.",
        turn("pages.has(block) ? end - first : 0", "pages.has(block) ? end - turns.next : 0"),
    ),
    Mutant(
        "blocks that are none have tokens",
        "What an entry beyond the cache stands for is attended to.",
        turn("pages.has(block) ? end - first : 0", "end - first"),
        "checked",
    ),
    Mutant(
        "values of one slot for two tokens",
        "The second one's row is never read.",
        turn("next_value(value + head.slot_stride)", "next_value(value)"),
    ),
    Mutant(
        "values of the second half from the first one's page",
        "Keys are right, values are not.",
        turn("pages.next_value, at[i / 2])", "pages.next_value, at[0])"),
    ),
    Mutant(
        "rounds of eight tokens a warp",
        "Each token is read by two warps.",
        reader("kStep = Lanes::kWarps * kTurnTokens;", "kStep = Lanes::kWarps * kTurnTokens / 2;"),
    ),
    Mutant(
        "pages of neighbouring turns",
        "A warp's turns are looked up as if they followed each other; those of the others lie between them.",
        pages("lane / 2 * kStep", "lane / 2 * kTurnTokens"),
    ),
    Mutant(
        "the first sixteen pages again",
        "A warp that has more than 16 turns goes on with the pages of the first.",
        pages("if (++turn == kTurns) look_up(pages, end, lane);", "turn = (turn + 1) % kTurns;"),
    ),
    # Turns that come through shared memory.
    Mutant(
        "a staged turn is read before it is there",
        "Nobody waits for its copies.",
        staged("    copies.template wait<0>();\n", ""),
    ),
    Mutant(
        "one staged turn for all",
        "After the first, none is asked for.",
        reader("      staged.ask(head, coming, end, stored, lane);\n    }\n  }", "    }\n  }"),
    ),
    Mutant(
        "the new token of a staged turn is not put in",
        "It has the zeros of a token that is not stored.",
        staged("    if (n < 0 || n >= kTurnTokens) return;", "    return;"),
    ),
    Mutant(
        "a staged key for a staged value",
        "The rows of the new token's value get its key.",
        staged("lane < kPacks ? key : value;", "key;"),
    ),
    Mutant(
        "what is beyond the context is copied",
        "There are NaNs, which a weight of 0 does not make harmless.",
        staged("const bool there = i + of_copy < in_cache;", "const bool there = true;"),
    ),
    Mutant(
        "packs of a key in the order of the row before",
        "Copies and reads disagree on where a pack lies.",
        staged(
            "key_at = g * kStagedRow + 16 * (t ^ order_of(g));", "key_at = g * kStagedRow + 16 * (t ^ order_of(g + 1));"
        ),
    ),
    Mutant(
        "even values twice",
        "The odd tokens of a staged turn have the values of their neighbours.",
        staged("value_at[i % 2] + 128 * p", "value_at[0] + 128 * p"),
    ),
    # Scores.
    Mutant(
        "half of each pack is multiplied",
        "The second product is forgotten.",
        reader("(first[i] + second[i + 2])", "first[i]"),
    ),
    Mutant(
        "rows of the first half for both",
        "The second half of a key meets the first half of the query.",
        reader("(first[i] + second[i + 2])", "(first[i] + second[i])"),
    ),
    Mutant(
        "exponents of e taken for exponents of 2",
        "Scores are not multiplied by log2(e).",
        reader("unit = scale * kLog2OfE", "unit = scale"),
    ),
    Mutant(
        "heads one after the other in eight rows",
        "Rows beyond the group have no head's query.",
        reader("fresh.pack(g % kGroup, p, t)", "fresh.pack(g % (kGroup > 1 ? kGroup / 2 : 1), p, t)"),
    ),
    # Weights.
    Mutant(
        "the largest of half of a head's scores",
        "Lanes of one head have different maxima.",
        reader(
            "distance < 4; distance *= 2) {\n      largest = fmaxf",
            "distance < 2; distance *= 2) {\n      largest = fmaxf",
        ),
    ),
    Mutant(
        "sums are not rescaled",
        "A larger score comes, and what was added before keeps its unit.",
        reader("if (__any_sync(kAllLanes, rises))", "if (__any_sync(kAllLanes, rises && lane > 31))"),
    ),
    Mutant(
        "rescaled by the factor of the lane's own scores",
        "Its columns belong to other heads.",
        reader("__shfl_sync(kAllLanes, factor, 4 * column_head(c))", "__shfl_sync(kAllLanes, factor, lane)"),
    ),
    Mutant(
        "both columns rescaled as one head",
        "The factor is that of the first one's head.",
        reader(
            "__shfl_sync(kAllLanes, factor, 4 * column_head(c))", "__shfl_sync(kAllLanes, factor, 4 * column_head(0))"
        ),
    ),
    Mutant(
        "rows of the upper half are not rescaled",
        "Half of the dimensions keep their unit.",
        reader("sums[c] *= of_column, sums[c + 2] *= of_column;", "sums[c] *= of_column;"),
    ),
    Mutant(
        "two parts of a weight",
        "Sixteen of its bits are multiplied, of halves twenty-two.",
        reader("kParts = 3,", "kParts = 2,"),
    ),
    Mutant(
        "parts counted anew in each tile",
        "Groups of more than two heads have parts in other tiles.",
        reader("const int part = (8 * n + g) / kGroup;", "const int part = g / kGroup;"),
    ),
    Mutant(
        "the third part is the second again",
        "What the second one holds is not taken off.",
        parts("part >= 2 ? 0xffff0000u : 0", "part >= 3 ? 0xffff0000u : 0"),
    ),
    Mutant(
        "parts of one unit",
        "Those of halves come in units of their own.",
        parts("unsigned(127 - kFirst - kStep * part)", "unsigned(127 - kFirst + 0 * part)"),
    ),
    Mutant(
        "a part that is taken off the first weight alone",
        "The rest of a word's second weight is all of it.",
        parts("y = (y - __high2float(near)) *", "y = y *"),
    ),
    Mutant(
        "one weight for two tokens",
        "Both halves of a word come from the second.",
        parts("__float_as_uint(rest(y, part)), 0x7632)", "__float_as_uint(rest(y, part)), 0x7676)"),
    ),
    # Values, and the end.
    Mutant(
        "even dimensions twice",
        "Words of two dimensions become words of two tokens by their lower halves alone.",
        reader("i % 2 == 0 ? 0x5410 : 0x7632", "0x5410"),
    ),
    Mutant(
        "tokens of a word crosswise",
        "The first weight meets the second token.",
        reader("i % 2 == 0 ? 0x5410 : 0x7632", "i % 2 == 0 ? 0x1054 : 0x3276"),
    ),
    Mutant(
        "columns beyond the last part are added",
        "They hold the last part once more.",
        reader("if (part < kParts) sums", "if (part <= kParts) sums"),
    ),
    Mutant(
        "gives what it keeps",
        "Lanes that share a head exchange the wrong halves.",
        reader("given = upper ? numbers[n] : numbers[n + half]", "given = upper ? numbers[n + half] : numbers[n]"),
    ),
    Mutant(
        "l of a lane's own tokens",
        "The four lanes of a head do not add up what they weighed.",
        reader("state.l += __shfl_xor_sync(kAllLanes, state.l, distance);", ""),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, FUSED_CHECKS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_tile_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
