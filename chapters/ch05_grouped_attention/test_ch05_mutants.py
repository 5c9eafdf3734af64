"""Plausible faults in kernels/cuda/paged_attention_grouped.cu and its headers, one at a time: the checks notice all."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch05_grouped_attention.grouped_checks import GROUPED_CHECKS, LARGE
from qwen_cuda.building import Edit
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "paged_attention_grouped"
CHECKS = sorted(GROUPED_CHECKS, key=lambda check: check in LARGE)

reader = edit_of("paged_attention.cuh")
pages = edit_of("kv_pages.cuh")
softmax = edit_of("online_softmax.cuh")
operands = edit_of("paged_operands.cuh")

MUTANTS = (
    # Online softmax.
    Mutant("o not rescaled", "Values seen before a new maximum count too much.", reader("o[g][i] *= factor;", "", 2)),
    Mutant("l not rescaled", "The sum of weights keeps the old maximum.", softmax("    l *= factor;\n", "")),
    Mutant("maximum not kept", "Each turn begins with the maximum of the first.", softmax("    m = higher;\n", "")),
    Mutant("no maximum at all", "2^score overflows.", softmax("fmaxf(m, largest)", "0.0f")),
    Mutant(
        "maximum starts at 0",
        "Scores far below zero vanish before they are divided.",
        softmax("float m = kNoScore", "float m = 0.0f"),
    ),
    Mutant(
        "empty maximum is minus infinity",
        "-inf - (-inf) is NaN in a stream without tokens.",
        softmax("kNoScore = -3.402823466e+38f", "kNoScore = -INFINITY"),
    ),
    Mutant("context of 0 divides by 0", "0 / 0 is NaN.", softmax("l == 0.0f ? 0.0f : o / l", "o / l")),
    Mutant(
        "maximum of all but the last token of a turn",
        "A score above the maximum of its turn: its weight may overflow.",
        reader("for (int t = 1; t < kRun; ++t) largest", "for (int t = 1; t < kRun - 1; ++t) largest"),
    ),
    Mutant("weights in base e and scores in base 2", "log2(e) is forgotten.", reader("(scale * kLog2OfE)", "scale")),
    Mutant(
        "weights rounded to the format of V",
        "As where the product with V runs on Tensor Cores.",
        reader("o[g][i] += weight[t][g] * value", "o[g][i] += to_float(from_float<T>(weight[t][g])) * value"),
    ),
    Mutant(
        "scores rounded",
        "As where scores go through memory.",
        reader(
            "if (t >= tokens) score",
            "score[t][g] = to_float(from_float<T>(score[t][g]));\n        if (t >= tokens) score",
        ),
    ),
    # Who reads what.
    Mutant(
        "token beyond the context",
        "The slot after the last one is read.",
        reader("? end - token : 0", "? end - token + 1 : 0"),
    ),
    Mutant(
        "last token left out", "A context of one token is empty.", reader("? end - token : 0", "? end - token - 1 : 0")
    ),
    Mutant(
        "tokens that are not there weigh something",
        "The mask after the dot product is missing.",
        reader("if (t >= tokens) score[t][g] = -INFINITY;", ""),
    ),
    Mutant(
        "turn of another width",
        "Warps read some tokens twice and others never.",
        reader("kAttentionWarps * kTurn", "kAttentionWarps / 2 * kTurn"),
    ),
    Mutant(
        "streams overlap",
        "Two streams of a warp read the same tokens.",
        reader("lane / Lanes::kPerToken * Lanes::kRun;\n}", "lane / Lanes::kPerToken / 2 * Lanes::kRun;\n}"),
    ),
    Mutant(
        "page of the turn before",
        "The entry of the table is asked for one turn too late.",
        reader(
            "block = head.block_of(token + Lanes::kBlockTurn, end);\n      k.load",
            "block = head.block_of(token, end);\n      k.load",
        ),
    ),
    Mutant(
        "values of the turn after",
        "v is replaced before it is used.",
        reader(
            "      weigh(weight);\n",
            "      v.load(head.v + offset, head.slot_stride, tokens, lane);\n      weigh(weight);\n",
        ),
    ),
    Mutant(
        "first page never asked for",
        "Every warp begins in page 0 of the sequence.",
        (Edit("paged_attention_grouped.cu", "head.block_of(token, INT32_MAX)", "head.block_of(0, INT32_MAX)"),),
    ),
    Mutant(
        "slot without its place in the page",
        "Each token reads slot 0.",
        pages("(token & ((1 << block_shift) - 1))", "0 * token"),
    ),
    Mutant(
        "block number unchecked",
        "A table of garbage is followed.",
        pages("unsigned(block) < unsigned(num_blocks)", "block >= 0"),
        "checked",
    ),
    Mutant(
        "last block of the cache is none",
        "The bound is one too low.",
        pages("unsigned(block) < unsigned(num_blocks)", "unsigned(block) + 1 < unsigned(num_blocks)"),
    ),
    Mutant(
        "table read beyond its row",
        "A context longer than the table reads the next sequence's pages.",
        (
            Edit("partitions.h", "context_len > most ? int(most) : context_len", "context_len"),
            Edit("kv_pages.cuh", "token < end && entry < table_size", "token < end"),
        ),
        "checked",
    ),
    Mutant(
        "negative context",
        "It is taken for a large one.",
        (Edit("partitions.h", "context_len < 0 ? 0 : ", "context_len < 0 ? 16 : "),),
    ),
    Mutant("keys for values", "One cache is read twice.", operands("v_cache + int64_t", "k_cache + int64_t")),
    Mutant(
        "heads interleaved",
        "Query head h reads KV head h % Hkv.",
        operands("int64_t(kv_head) * group * head_dim", "int64_t(kv_head) * head_dim"),
        "checked",
    ),
    Mutant(
        "queries at the stride of out",
        "Packed QKV is read as if it were q alone.",
        operands("sequence * q_stride", "int64_t(sequence) * query_heads * head_dim"),
    ),
    Mutant(
        "table at the width of its rows",
        "The gap between rows is taken for a row.",
        operands("sequence * block_table_stride", "sequence * int64_t(max_blocks)"),
    ),
    Mutant(
        "groups of five take the kernel for four",
        "Its last head is not computed.",
        operands("group <= 4", "group <= 5"),
        "checked",
    ),
    # Lanes and warps.
    Mutant(
        "dot product one step short",
        "Halves of a token keep scores of their own.",
        reader("distance > 0; distance /= 2", "distance > 1; distance /= 2"),
    ),
    Mutant(
        "dot product over the whole warp",
        "The scores of different tokens are added.",
        reader("distance = Lanes::kPerToken / 2", "distance = kWarpSize / 2"),
    ),
    Mutant(
        "dimensions of a lane side by side",
        "The second pack holds other dimensions than are written.",
        reader("Lanes::dimension(lane, first + i)]", "lane % Lanes::kPerToken * kDims + first + i]"),
    ),
    Mutant(
        "half of the streams lost",
        "The warp's last merge does not run.",
        reader("step <= Lanes::kStreams", "step < Lanes::kStreams"),
    ),
    Mutant(
        "streams merged at their own maxima",
        "Each stream's o counts in its own unit.",
        reader(
            "largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));",
            "__shfl_xor_sync(kAllLanes, largest, distance);",
        ),
    ),
    Mutant(
        "halves crosswise",
        "A lane gives the dimensions that it should keep.",
        reader(
            "const float given = upper ? o[g][i] : o[g][i + half]",
            "const float given = upper ? o[g][i + half] : o[g][i]",
        ),
    ),
    Mutant(
        "warps merged without weights",
        "Each warp's sum counts in its own unit.",
        reader("const float weight = all.weight(m[w][g]);", "const float weight = 1.0f;"),
    ),
    Mutant(
        "last warp left out",
        "Long contexts lose an eighth of their tokens.",
        reader("w < Lanes::kWarps; ++w) {", "w < Lanes::kWarps - 1; ++w) {"),
    ),
    Mutant(
        "dropped barrier of the block",
        "A warp reads what the others have not written yet.",
        (Edit("paged_attention_grouped.cu", "  __syncthreads();\n", ""),),
        "checked",
    ),
    Mutant(
        "only the first 256 outputs",
        "Groups of more than two heads are not written whole.",
        (
            Edit(
                "paged_attention_grouped.cu",
                "for (int i = threadIdx.x; i < a.group * Lanes::kHeadDim;",
                "for (int i = threadIdx.x; i < min(256, a.group * Lanes::kHeadDim);",
            ),
        ),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_grouped_attention_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_grouped_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
