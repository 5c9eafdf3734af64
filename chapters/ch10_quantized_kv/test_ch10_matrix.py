"""Every legal combination of stages, formats, outputs and layouts, byte for byte against the unfused pipeline.

The CPU operator goes through all of them, with 17 tokens or one; the simulator, which is slower, through a sample that
misses no stage, format or output.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from chapters.ch10_quantized_kv.combinations import TURNS, Combination, Turn, casts, combinations_of
from chapters.ch10_quantized_kv.matrix_runs import SLOTS, check_combination
from chapters.ch10_quantized_kv.store_checks import FP8, LATENT, NVFP4
from qwen_cuda.kv_cache_format import HEAD_DIMS, CastArgs
from qwen_cuda.testing.backends import Backend, opened

SAMPLE = 41  # the simulator runs one combination in so many: prime to the lengths of the lists that make the matrix


@pytest.fixture(scope="module")
def counted(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """Collects how many combinations each test has run, and tells the sum at the end."""
    counts: list[int] = []
    yield counts
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{sum(counts)} legal combinations hold, byte for byte")


@pytest.fixture(scope="module")
def cpu() -> Iterator[Backend]:
    with opened("cpu") as backend:
        yield backend


def name_of(turn: Turn | None) -> str:
    return "no rotation" if turn is None else f"{turn[0]} {turn[1]}{' conjugate' if turn[2] else ''}"


@pytest.mark.parametrize("turn", TURNS, ids=name_of)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_legal_combination_is_the_unfused_pipeline(
    cpu: Backend, head_dim: int, turn: Turn | None, counted: list[int]
) -> None:
    number = 0
    for number, how in enumerate(combinations_of(head_dim, turn), start=1):
        check_combination(cpu, how, 1 if number % 7 == 0 else 17, SLOTS[number % 4])
    counted.append(number)


@pytest.mark.parametrize("backend_name", ["sim", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_sample_of_combinations_in_the_kernel(backend_name: str) -> None:
    if backend_name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that PyTorch can use")
    step = SAMPLE if backend_name == "sim" else 1
    seen: set[object] = set()
    every = (how for head_dim in HEAD_DIMS for turn in TURNS for how in combinations_of(head_dim, turn))
    with opened("sim" if backend_name == "sim" else "cuda") as backend:
        for number, how in enumerate(islice(every, 0, None, step)):
            check_combination(backend, how, 1 if number % 7 == 0 else 5, SLOTS[number % 4])
            seen |= {how.cast, how.target, how.stage, how.layout, how.hadamard, how.norm, SLOTS[number % 4]}
    assert set(casts()) | set(casts(cast_back=True)) <= seen
    assert {"new", "tensor", "rows", "cache", "k and v", "norm", "transform", "cast_back", "block_wide"} <= seen


@pytest.mark.parametrize(
    "how",
    [
        Combination(norm=True, rope=("whole", "half", False), hadamard=True, cast=FP8, target="cache", heads=1),
        Combination(norm=True, rope=("tail", "interleaved", True), cast=NVFP4, target="rows", heads=1),
        LATENT,
    ],
    ids=["fp8 cache", "nvfp4 rows", "latent"],
)
@pytest.mark.parametrize("backend_name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_many_tokens(backend_name: str, how: Combination) -> None:
    if backend_name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that PyTorch can use")
    with opened("cpu" if backend_name == "cpu" else "cuda") as backend:
        check_combination(backend, how, 32769, "permuted")


def test_the_rules_leave_these_formats() -> None:
    """FP8 in groups of any size with any scale, and the two standards of FP4."""
    fp8 = {CastArgs("e4m3", group, scales) for group in (16, 32, 64, 128) for scales in ("ue8m0", "e4m3", "float32")}
    assert set(casts()) == fp8 | {CastArgs("e2m1", 16, "e4m3"), CastArgs("e2m1", 32, "ue8m0")}
