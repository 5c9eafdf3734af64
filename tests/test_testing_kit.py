"""The testing kit's backends, inputs and references: what a test gets is what its name says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwen3_ref.functional import rms_norm
from qwen_cuda.building import KERNELS, ROOT, BuildError, Edit, toolchain
from qwen_cuda.loading import operator_names
from qwen_cuda.testing import backends, strategies
from qwen_cuda.testing.backends import NAMES, Backend, opened, poisoned_memory, schedule, unavailable
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.mutants import Mutant, MutantTrial
from qwen_cuda.testing.numbers import DTYPES, KINDS, SIZES, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES, oracle
from qwen_cuda.testing.strategies import Layout


def test_a_test_runs_on_each_backend(backend: Backend) -> None:
    x, weight = backend.place(torch.ones(2, 8)), backend.place(torch.full((8,), 3.0))
    assert backend.name in NAMES
    assert x.tensor.device.type == backend.device.type
    assert torch.equal(backend.op("rms_norm")(x.tensor, weight.tensor, 0.0).cpu(), torch.full((2, 8), 3.0))
    x.check_untouched()


def test_registered_backends_have_operators(registered_backend: Backend) -> None:
    assert registered_backend.name != "reference"
    for name in operator_names():
        assert hasattr(registered_backend.namespace, name)


def test_each_backend_offers_every_operator_and_each_operator_has_a_reference() -> None:
    assert set(operator_names()) <= set(REFERENCES)
    assert all(name.rstrip("_") in operator_names() for name in REFERENCES)


def test_the_reference_registers_nothing() -> None:
    with opened("reference") as backend, pytest.raises(AssertionError, match="registers no operators"):
        _ = backend.namespace


def test_a_gpu_without_nvcc_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise BuildError("nvcc is needed and was not found.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(toolchain, "nvcc", none)
    assert unavailable("cuda") == "nvcc is needed and was not found."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert unavailable("cuda") == "there is no GPU that PyTorch can use"
    assert [unavailable(name) for name in NAMES[:3]] == [None] * 3


def test_an_operator_that_is_not_there_skips_or_fails() -> None:
    few = Backend("cpu", frozenset({"rms_norm", "rms_norm_"}))
    few.require("rms_norm")
    with pytest.raises(
        pytest.skip.Exception, match="the kernels under test hold rms_norm, rms_norm_, not add_rms_norm"
    ):
        few.require("add_rms_norm")
    with pytest.raises(AssertionError, match="add_rms_norm is none of the operators"):
        few.op("add_rms_norm")


def test_memory_is_poisoned_inside_and_only_there() -> None:
    with poisoned_memory():
        assert bool(torch.empty(100).isnan().all())
        assert bool(torch.empty(100, dtype=torch.bfloat16).isnan().all())
        assert bool((torch.empty(10, dtype=torch.int32) == torch.iinfo(torch.int32).max).all())
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operator_that_writes_nothing_leaves_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.REFERENCES, "rms_norm", lambda x, weight, eps: torch.empty_like(x))
    out = Backend("reference").op("rms_norm")(torch.ones(3, 5), torch.ones(5), 0.0)
    assert bool(out.isnan().all())


@pytest.mark.parametrize("before", [None, "5"])
def test_a_schedule_ends_with_its_block(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDASIM_SEED", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDASIM_SEED", before)
    seen = []

    def fail() -> None:
        with schedule(3):
            seen.append(os.environ["CUDASIM_SEED"])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == ["3"]
    assert os.environ.get("CUDASIM_SEED") == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_finite_and_the_same_each_time(kind: str, dtype: torch.dtype) -> None:
    first, again, other = (rows_of_numbers((4, 50), dtype, seed=seed, kind=kind) for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert first.dtype == dtype
    assert bool(first.isfinite().all())
    assert torch.equal(first, again)
    if kind != "zeros" and first.any():
        assert not torch.equal(first, other)
    assert rows_of_numbers((0, 5), dtype, seed=1, kind=kind).shape == (0, 5)  # type: ignore[arg-type]


def test_kinds_are_what_they_are_called() -> None:
    def of(kind: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return rows_of_numbers((64, 256), dtype, seed=3, kind=kind)  # type: ignore[arg-type]

    assert bool(of("huge", torch.float16).square().isinf().any()), "squares must leave float16"
    assert 0 < float(of("tiny").abs().max()) < 1e-18
    assert not of("zeros").any()
    assert bool((of("spike").abs() > 100).sum(-1).eq(1).all())
    sizes = of("wide").square().mean(-1).sqrt()
    assert float(sizes.max() / sizes.min()) > 1000
    weight = norm_weight(512, torch.float32, seed=1)
    assert float(weight.std()) > 0.3
    assert bool((weight < 0).any())


def test_the_oracle_is_float64_of_the_given_numbers() -> None:
    x, residual, weight = (
        rows_of_numbers(shape, torch.bfloat16, seed=i) for i, shape in enumerate([(3, 9), (3, 9), (9,)])
    )
    assert torch.equal(oracle("rms_norm", x, weight, 1e-6), rms_norm(x.double(), weight.double(), 1e-6, "fused"))
    out, total = oracle("add_rms_norm", x, residual, weight, 1e-6)
    assert torch.equal(total, x.double() + residual.double())
    assert torch.equal(out, rms_norm(total, weight.double(), 1e-6, "fused"))
    assert x.dtype == torch.bfloat16


@strategies.examples(200)
@given(strategies.rows(5000, 3000), strategies.layouts())
def test_strategies_stay_small(some: strategies.Rows, layout: strategies.Layout) -> None:
    values = some.values()
    assert values.shape == (some.rows, some.size)
    assert values.dtype == some.dtype
    assert some.size <= 3000
    assert values.numel() <= 5000
    assert some.kind != "plain" or not values.numel() or not torch.equal(values, some.values(1))
    assert layout.offset <= 8


def test_sizes_hold_the_borders() -> None:
    seen: set[int] = set()

    @settings(strategies.examples(400), suppress_health_check=list(HealthCheck))
    @given(strategies.sizes(1025))
    def collect(size: int) -> None:
        assert 1 <= size <= 1025
        seen.add(size)

    collect()
    assert {size for size in SIZES if size <= 1025} <= seen
    assert seen - set(SIZES), "and others"


@strategies.examples(20)
@given(st.data())
def test_examples_are_the_same_in_each_run(data: st.DataObject) -> None:
    """The settings derandomize: hypothesis says so itself."""
    assert data.draw(st.just(1)) == 1
    assert strategies.examples(3).derandomize
    assert strategies.examples(3).deadline is None


def test_a_mutant_that_changes_nothing_is_told() -> None:
    """The runner can fail, and says what was not noticed."""
    runs: list[str] = []
    same = Mutant("no fault", "It breaks nothing.", ())
    trial = MutantTrial("rms_norm", (same,), (lambda backend: runs.append(backend.name),))
    with pytest.raises(AssertionError, match="no check notices “no fault”: It breaks nothing"):
        trial.catch(same)
    assert runs == ["sim"]


def test_a_mutant_is_noticed_by_assertions_and_reports_but_not_by_mistakes_of_a_check() -> None:
    def raising(error: Exception) -> MutantTrial:
        def check(backend: Backend) -> None:
            raise error

        return MutantTrial("rms_norm", (), (lambda backend: None, check))

    mutant = Mutant("any", "Anything.", (), seeds=(0, 4))
    assert raising(AssertionError("wrong")).catch(mutant) == "any"
    assert raising(RuntimeError("cuda_sim: …")).noticed(mutant) == "check"
    with pytest.raises(TypeError):
        raising(TypeError("a typing mistake")).noticed(mutant)


def test_an_edit_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(BuildError, match="no such text"):
        MutantTrial("rms_norm", (Mutant("m", "b", (Edit("rms_norm.cu", "no such text", ""),)),), ())


@pytest.mark.parametrize("error", [AssertionError("wrong"), RuntimeError("a report")], ids=repr)
def test_a_failure_names_its_case(error: Exception) -> None:
    with (
        pytest.raises(type(error)),
        case("rms_norm", shape=(3, 5), dtype=torch.float16, x=Layout(3, 1), weight=Layout()),
    ):
        raise error
    assert error.__notes__ == [
        "rms_norm: shape [3, 5]; dtype float16; x with 3 elements between rows, 1 elements behind a 16-byte border; "
        "weight dense"
    ]


SUITE = """
import pytest
def test_kernel(backend): assert backend.name == "sim"
def test_registration(registered_backend): raise AssertionError
def test_other(): raise AssertionError
"""


def test_an_exercise_runs_only_tests_of_the_learners_kernels(tmp_path: Path) -> None:
    """In a chapter's folder, with the plugin, and QWEN_EXERCISE set as `make exercise` does."""
    folder = tmp_path / "ch02_rms_norm"
    folder.mkdir()
    (folder / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_elsewhere.py").write_text(SUITE)
    environment = {
        **os.environ,
        "QWEN_EXERCISE": "ch02_rms_norm",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(KERNELS))),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "qwen_cuda.testing.fixtures",
        "--collect-only",
        str(tmp_path),
    ]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    chosen = re.findall(r"^(\S+::\S+)$", run.stdout, re.MULTILINE)
    assert chosen == ["ch02_rms_norm/test_suite.py::test_kernel[sim]", "ch02_rms_norm/test_suite.py::test_kernel[cuda]"]
    assert "deselected" in run.stdout


def test_suites_without_kernels_import_nothing_heavy() -> None:
    """The plugin is loaded for every test of the repository."""
    code = "import sys, qwen_cuda.testing.fixtures; print([m for m in ('torch', 'hypothesis') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(KERNELS)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
