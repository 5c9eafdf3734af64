"""Mutants: kernels with one named fault each, which the checks of a chapter must notice.

    SOURCE = "rms_norm"
    kernel = edit_of("rms_norm.cu")
    MUTANTS = (Mutant("missing eps", "…", kernel("mean + a.eps", "mean")), …)

    @pytest.fixture(scope="module")
    def trial() -> MutantTrial:
        return MutantTrial(SOURCE, MUTANTS, CHECKS)

    @pytest.mark.parametrize("variant", ["plain", "checked"])
    def test_the_true_kernel_passes(variant, trial):
        assert trial.noticed(Mutant("none", "nothing", (), variant)) is None

    @pytest.mark.parametrize("mutant", MUTANTS, ids=str)
    def test_mutant_is_caught(mutant, trial, tally):
        tally.append(trial.catch(mutant))

A check is a function `check(backend)` that raises an AssertionError. The ordinary tests call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import Backend, opened, schedule

Check = Callable[[Backend], None]


def edit_of(file: str) -> Callable[..., tuple[Edit, ...]]:
    """`f(old, new, count=1)`: the edits of a mutant that has one, in that file."""

    def edit(old: str, new: str, count: int = 1) -> tuple[Edit, ...]:
        return (Edit(file, old, new, count),)

    return edit


@dataclass(frozen=True)
class Mutant:
    """A fault: what it is called, what it breaks (one sentence), and the edits that plant it.

    A fault that only shows when the simulator looks at each access, or that writes where it must not, needs `variant`
    "checked"; one that depends on the order of threads names the `seeds` of the orders to try.
    """

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    variant: Literal["plain", "checked"] = "plain"
    seeds: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        return self.name


class MutantTrial:
    """kernels/cuda/<source>.cu and its mutants, built together for the simulator, and the checks that they meet.

    The checks run in the order given until one fails.

    Raises:
        BuildError: a mutant does not compile, or the text that an edit replaces is not in its file.
    """

    def __init__(self, source: str, mutants: Sequence[Mutant], checks: Sequence[Check]) -> None:
        self.source, self.checks = source, checks
        untouched = [Mutant("none", "nothing", (), variant) for variant in {"plain", *(m.variant for m in mutants)}]
        build(*(self._library(mutant) for mutant in (*untouched, *mutants)))

    def _library(self, mutant: Mutant) -> Library:
        return replace(default_library(self.source, "sim", mutant.variant), edits=mutant.edits, quick=True)

    def noticed(self, mutant: Mutant) -> str | None:
        """The name of the first check that fails on `mutant`, None when all pass.

        A failed assertion counts, and a RuntimeError: so the simulator reports a fault that it sees.
        """
        with opened("sim", self._library(mutant)) as backend:
            for seed in mutant.seeds:
                for check in self.checks:
                    try:
                        with schedule(seed):
                            check(backend)
                    except (AssertionError, RuntimeError):
                        return check.__name__
        return None

    def catch(self, mutant: Mutant) -> str:
        """Asserts that a check fails on `mutant`; its name, for the tally.

        Raises:
            AssertionError: every check passes.
        """
        assert self.noticed(mutant) is not None, f"no check notices “{mutant.name}”: {mutant.breaks}"
        return mutant.name
