"""Plausible faults in kernels/cuda/silu_mul.cu and its headers, one at a time: the checks must notice every one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chapters.ch03_swiglu.hf_rounding_checks import HF_SILU_CHECKS
from chapters.ch03_swiglu.silu_mul_checks import LARGE, SILU_MUL_CHECKS, check_gates_beyond_the_range_of_exp
from qwen_cuda.building import Edit, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "silu_mul"
CHECKS = [
    *sorted((*SILU_MUL_CHECKS, check_gates_beyond_the_range_of_exp), key=lambda check: check in LARGE),
    *HF_SILU_CHECKS,
]

kernel = edit_of("silu_mul.cu")

GATE = "z"
FLOAT = "(z < 0.0f ? z * power : z) / (1.0f + power)"
HALF = "__fdividef(z < 0.0f ? z * power : z, 1.0f + power)"
UP = "load_pack_of<kAligned>(gate_row + a.size, q, a.size)"
HF = "intermediate<T, kHf>(z / (1.0f + expf(-z)))"
TAIL = "(args.size + kSize - 1) / kSize"

MUTANTS = (
    # The arithmetic.
    Mutant("no SiLU", "gate itself is multiplied.", kernel(f"silu<T, kHf>({GATE})", GATE)),
    Mutant(
        "sigmoid alone", "The factor z is forgotten.", kernel(HALF, "__fdividef(z < 0.0f ? power : 1.0f, 1.0f + power)")
    ),
    Mutant("up forgotten", "SiLU alone is written.", kernel(" * to_float(up.values[k])", "")),
    Mutant(
        "negative gates as positive ones",
        "z / (1 + exp(-|z|)), in 16 bits.",
        kernel(HALF, "__fdividef(z, 1.0f + power)"),
    ),
    Mutant("negative gates as positive ones, float32", "The same in float32.", kernel(FLOAT, "z / (1.0f + power)")),
    Mutant(
        "exponential of |z|",
        "It overflows for large gates of either sign.",
        kernel("__expf(-fabsf(z))", "__expf(fabsf(z))"),
    ),
    Mutant(
        "overflow kept",
        "The formula as it stands gives 0 where exp(-z) is infinite, although SiLU is not that small.",
        kernel(HALF, "z / (1.0f + __expf(-z))"),
    ),
    Mutant("overflow kept, float32", "The same in float32.", kernel(FLOAT, "z / (1.0f + expf(-z))")),
    Mutant(
        "the sigmoid of GELU",
        "exp(-1.702 z), as in a quick GELU.",
        kernel("__expf(-fabsf(z))", "__expf(-1.702f * fabsf(z))"),
    ),
    Mutant(
        "exponential in the format of the row",
        "A rounded exponential makes a rounded quotient.",
        kernel("float power = __expf(-fabsf(z))", "float power = to_float(from_float<T>(__expf(-fabsf(z))))"),
    ),
    Mutant(
        "rounds twice",
        "silu(gate) is rounded before the product, unasked.",
        kernel(f"silu<T, kHf>({GATE})", f"intermediate<T, true>(silu<T, kHf>({GATE}))"),
    ),
    # Where gate, up and out lie.
    Mutant(
        "halves exchanged",
        "up goes through SiLU.",
        (
            *kernel("gate = load_pack_of<kAligned>(gate_row,", "gate = load_pack_of<kAligned>(gate_row + a.size,"),
            *kernel(f"up = {UP}", f"up = {UP.replace('row + a.size', 'row')}"),
        ),
    ),
    Mutant("up read at gate", "silu(gate) * gate.", kernel(UP, UP.replace("row + a.size", "row"))),
    Mutant(
        "up one element off",
        "The first up is taken for the last gate.",
        kernel(UP, UP.replace("a.size,", "a.size - 1,", 1)),
        "checked",
    ),
    Mutant(
        "elements of neighbours",
        "Each pair takes its up crosswise.",
        kernel("to_float(up.values[k])", "to_float(up.values[k ^ 1])"),
    ),
    Mutant(
        "gaps between rows ignored",
        "Rows are looked for at 2 * size.",
        kernel("a.gate_up + row * a.gate_up_stride", "a.gate_up + row * 2 * a.size"),
    ),
    Mutant(
        "rows of out at the stride of gate_up",
        "Rows are written behind the end of out.",
        kernel("a.out + row * a.out_stride", "a.out + row * a.gate_up_stride"),
        "checked",
    ),
    Mutant(
        "rows and packs exchanged",
        "Quotient for remainder: rows are read across.",
        (*kernel("row = p / a.row_packs", "row = p % a.row_packs"), *kernel("(p % a.row_packs)", "(p / a.row_packs)")),
        "checked",
    ),
    # The ends of rows.
    Mutant(
        "tail dropped",
        "What follows the last whole pack is not written.",
        kernel(TAIL, "args.size / kSize + (args.size < kSize)"),
    ),
    Mutant(
        "tail written too short",
        "The last element of an odd row is not written.",
        (Edit("vector_load.cuh", "if (k < count) to[k]", "if (k < count - 1) to[k]"),),
    ),
    Mutant(
        "tail written too far",
        "The first element of the next row is overwritten.",
        (Edit("vector_load.cuh", "if (k < count) to[k]", "if (k <= count) to[k]"),),
        "checked",
    ),
    Mutant(
        "whole packs of odd rows",
        "16-byte loads of an up that is not aligned, and beyond a row's end.",
        (*kernel("args.size % kSize == 0 && ", ""), *kernel("rows_are_aligned(out, args.out_stride)", "true")),
        "checked",
    ),
    Mutant(
        "16-byte loads at any address",
        "The vector path is taken although gate_up is not aligned.",
        kernel("rows_are_aligned(gate_up, args.gate_up_stride) &&", "true &&"),
        "checked",
    ),
    # The launch.
    Mutant(
        "last block dropped",
        "The number of blocks is rounded down.",
        kernel("(a.packs + kThreads - 1) / kThreads", "a.packs / kThreads"),
    ),
    Mutant(
        "packs beyond the last",
        "Threads without a pack write rows that do not exist.",
        kernel("if (p >= a.packs) return;", ""),
        "checked",
    ),
    Mutant(
        "one pack too many",
        "The thread behind the last pack takes one.",
        kernel("p >= a.packs", "p > a.packs"),
        "checked",
    ),
    Mutant(
        "packs of one row alone",
        "The grid is made for a single row.",
        kernel("unsigned(rows * row_packs)", "unsigned(row_packs)"),
    ),
    Mutant(
        "later launches at the first row",
        "Rows beyond those of one launch repeat the first ones.",
        (
            *kernel("INT32_MAX / row_packs", "(2 * row_packs + 63) / row_packs"),
            *kernel("{gate_up + row * args.gate_up_stride", "{gate_up"),
        ),
    ),
    Mutant(
        "large blocks as if they were small",
        "Blocks of 512 threads begin 64 packs apart.",
        kernel("blockIdx.x * kThreads", "blockIdx.x * 64"),
    ),
    Mutant(
        "float16 taken for bfloat16",
        "One kernel is launched for both.",
        (Edit("number_types.cuh", "f(__half{})", "f(__nv_bfloat16{})"),),
    ),
    # The switch.
    Mutant(
        "hf_rounding ignored",
        "There is one rounding whatever is asked for.",
        kernel("dispatch_switch(args.hf_rounding", "dispatch_switch(false"),
    ),
    Mutant(
        "hf_rounding always",
        "There are two whatever is asked for.",
        kernel("dispatch_switch(args.hf_rounding", "dispatch_switch(true"),
    ),
    Mutant("hf: rounds once", "silu(gate) is kept in float32.", kernel(HF, "z / (1.0f + expf(-z))")),
    Mutant(
        "hf: gate's sigmoid is rounded",
        "z * round(sigmoid(z)), as in another formula.",
        kernel(HF, "z * intermediate<T, kHf>(1.0f / (1.0f + expf(-z)))"),
    ),
    Mutant(
        "hf: no zero where exp overflows",
        "More exact than PyTorch, and so not its bits.",
        kernel(HF, "intermediate<T, kHf>(z < 0.0f ? z * expf(z) / (1.0f + expf(z)) : z / (1.0f + expf(-z)))"),
    ),
)

# Not faults: what the kernel could choose, or does for more packs than 32 bits count.
CHOICES = {
    "as it is": (),
    "small blocks": kernel("a.packs < 1 << 16", "true"),
    "large blocks": kernel("a.packs < 1 << 16", "false"),
    "a few rows a launch": kernel("INT32_MAX / row_packs", "(2 * row_packs + 63) / row_packs"),
}


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize("variant", ["plain", "checked"])
@pytest.mark.parametrize("choice", CHOICES)
def test_silu_mul_passes_whatever_it_chooses(choice: str, variant: str) -> None:
    library = replace(default_library(SOURCE, "sim", variant), edits=CHOICES[choice], quick=True)
    build(library)
    with opened("sim", library) as backend:
        for check in CHECKS:
            check(backend)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_silu_mul_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
