"""Plausible faults in kernels/cuda/qk_norm_rope_cache_write.cu and its headers: the checks must notice every one."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch04_paged_kv.cache_write_checks import CACHE_WRITE_CHECKS, LARGE
from qwen_cuda.building import Edit
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "qk_norm_rope_cache_write"
CHECKS = sorted(CACHE_WRITE_CHECKS, key=lambda check: check in LARGE)

kernel = edit_of(f"{SOURCE}.cu")
slot = edit_of("cache_slot.cuh")

MUTANTS = (
    # The norm.
    Mutant("half of the squares", "Only the lower half of a head is summed.", kernel("fmaf(u, u, v * v)", "u * u")),
    Mutant(
        "tree one level short",
        "Of a lane's sums only half are added where it has many.",
        kernel("n > 1; n /= 2", "n > 2; n /= 2"),
    ),
    Mutant(
        "butterfly one step short",
        "Each half of a head keeps a sum of its own.",
        kernel("distance < kLanes; distance", "distance < kLanes / 2; distance"),
    ),
    Mutant(
        "mask of the first head",
        "Other heads of the warp call a shuffle that does not name them.",
        kernel("<< (group * kLanes)", "<< (group * 0)"),
    ),
    Mutant("mean over half a head", "The sum is divided by 64.", kernel("high) / kHeadDim", "high) / kHalf")),
    Mutant("missing eps", "A head of zeros is divided by zero.", kernel("mean + a.eps", "mean")),
    Mutant("eps outside the root", "Small heads are wrong.", kernel("sqrtf(mean + a.eps)", "(sqrtf(mean) + a.eps)")),
    Mutant(
        "one weight for both",
        "K is scaled by the weight of Q.",
        kernel("kv_head < 0 ? a.q_weight : a.k_weight", "kv_head < a.num_kv_heads ? a.q_weight : a.k_weight"),
    ),
    Mutant(
        "weights of neighbours",
        "Each pair of elements takes its weights crosswise.",
        kernel("low_weight.values[p]", "low_weight.values[p ^ 1]"),
    ),
    Mutant(
        "upper half scaled by the lower weights",
        "The second half of the weight is never read.",
        kernel("load_chunk<kAligned, kPairs>(weight + kHalf)", "load_chunk<kAligned, kPairs>(weight)"),
    ),
    # The rotation.
    Mutant(
        "rotates backwards",
        "The sign of the angle is the other one.",
        kernel("s = sine.values[p]", "s = -sine.values[p]"),
    ),
    Mutant("cosine for sine", "Both halves of the table are read as cosines.", kernel("row + kHalf)", "row)")),
    Mutant(
        "rotates the rotated",
        "The upper half is computed from the lower one's result.",
        kernel("fmaf(v, c, u * s)", "fmaf(v, c, to_float(low_out.values[p]) * s)"),
    ),
    Mutant(
        "angles of neighbours",
        "Each pair is turned by the angle of the pair beside it.",
        kernel("c = cosine.values[p]", "c = cosine.values[p ^ 1]"),
    ),
    Mutant(
        "rounds before the rotation",
        "The normed head is rounded, as two separate operators would.",
        kernel(
            "const float u = to_float(low.values[p]) * scale * to_float(low_weight.values[p]);",
            "const float u ="
            " to_float(from_float<T>(to_float(low.values[p]) * scale * to_float(low_weight.values[p])));",
        ),
    ),
    Mutant(
        "position from the row",
        "Token i is taken to stand at position i.",
        slot("index_at(a.positions, a.wide_positions, token)", "token"),
    ),
    Mutant(
        "rows of the table without their gaps",
        "The stride of cos_sin is taken to be its width.",
        kernel("* a.cos_sin_stride", "* kHeadDim"),
    ),
    # Where things go.
    Mutant("slot -1 is written", "A token that must not be kept lands before the cache.",
           slot("0 <= place.slot && ", ""), "checked"),
    Mutant("one slot too many", "The slot behind the last one is written.",
           slot("place.slot < a.num_slots", "place.slot <= a.num_slots"), "checked"),
    Mutant("slot cut to 32 bits", "Slot 2^32 is taken for slot 0.",
           slot("place.slot = index_at(", "place.slot = (int32_t)index_at(")),
    Mutant("position cut to 32 bits", "Position 2^32 is taken for position 0.",
           slot("place.position = index_at(", "place.position = (int32_t)index_at(")),
    Mutant("one position too many", "A row behind the table is read.",
           slot("place.position < a.max_positions", "place.position <= a.max_positions"), "checked"),
    Mutant("negative positions", "A row before the table is read.",
           slot("0 <= place.position && ", ""), "checked"),
    Mutant("an unknown position gives numbers", "They look right and are not.",
           kernel(": not_a_number()", ": 1.0f / sqrtf(mean + a.eps)")),
    Mutant("an unknown position is kept", "NaN gets into the cache.",
           slot("place.kept = place.known && ", "place.kept = ")),
    Mutant("int32 read as int64", "Two indices are taken for one.", slot("return wide ?", "return true ?"), "checked"),
    Mutant("K and V cross", "V is written to the cache of K.", kernel("store_at(a.v_cache,", "store_at(a.k_cache,")),
    Mutant("V among the heads of K", "The first head of V is taken for the first behind K's.",
           kernel("in_cache - a.num_kv_heads", "in_cache"), "checked"),
    Mutant("pages as wide as Q", "The cache is stepped through by the heads of Q.",
           kernel("place.slot * a.num_kv_heads", "place.slot * a.num_heads"), "checked"),
    Mutant("K is returned as it came", "Attention within the prompt sees keys without norm and position.",
           kernel("a.num_kv_heads + kv_head, low_out, high_out)", "a.num_kv_heads + kv_head, low, high)")),
    Mutant("K goes to the cache as it came", "So does attention in decoding.",
           kernel("store_at(a.k_cache, in_cache, low_out, high_out)", "store_at(a.k_cache, in_cache, low, high)")),
    Mutant("k that nobody wants is written", "A null pointer is.", kernel("if (a.k != nullptr) ", "")),
    Mutant("rows of qkv without their gaps", "The stride of qkv is taken to be its width.",
           kernel("token * a.qkv_stride", "token * (a.num_heads + 2 * a.num_kv_heads) * kHeadDim")),
    # The launch.
    Mutant("last heads without a block", "The number of blocks of a token is rounded down.",
           kernel("(heads + of_block - 1) / of_block", "heads / of_block")),
    Mutant("heads beyond the last", "A block works on heads that do not exist.",
           kernel("if (head >= a.num_heads + 2 * a.num_kv_heads) return;", ""), "checked"),
    Mutant("wide loads of qkv at any address", "qkv is not asked for its alignment.",
           kernel("fits(a.qkv, a.qkv_stride)", "true"), "checked"),
    Mutant("wide loads of the table at any address", "cos_sin is not asked for its alignment.",
           kernel("rows_are_aligned(a.cos_sin, a.cos_sin_stride)", "true"), "checked"),
    Mutant("wide stores at any address", "The caches are not asked for their alignment.",
           kernel("fits(a.k_cache, 0) && fits(a.v_cache, 0)", "true"), "checked"),
    Mutant("float16 taken for bfloat16", "One kernel is launched for both.",
           (Edit("number_types.cuh", "f(__half{})", "f(__nv_bfloat16{})"),)),
)  # fmt: skip


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_the_kernel_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
