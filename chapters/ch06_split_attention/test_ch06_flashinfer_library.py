"""FlashInfer from a library beside vLLM's: it is found, planned and called as its two functions are declared."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import candidates, flashinfer_library
from chapters.ch06_split_attention.flashinfer_library import INFO, LIBRARY, Sizes, Wrapper, library_path, serves

MODEL = Sizes(2, 4, 2, 128, 16, torch.bfloat16)


class FakeLibrary:
    """Notes its arguments. `fi_run` writes ones into what it is given as the result."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.planned: tuple[Any, ...] = ()
        self.ran: tuple[Any, ...] = ()
        self.begins: list[int] = []

    def fi_plan(self, *arguments: Any) -> int:
        self.planned = arguments
        self.begins = list((ctypes.c_int32 * (arguments[7].value + 1)).from_address(arguments[6].value))
        return self.error

    def fi_run(self, *arguments: Any) -> int:
        self.ran = arguments
        count = arguments[10].value * arguments[11].value * 128
        ones = (ctypes.c_uint16 * count)(*[0x3F80] * count)  # 1.0 in bfloat16
        ctypes.memmove(arguments[9], ones, 2 * count)
        return self.error


def wrapper(library: Any, sizes: Sizes = MODEL) -> Wrapper:
    tables = torch.tensor([0, 2, 3]), torch.tensor([4, 1, 0]), torch.tensor([16, 7])
    return Wrapper(library, sizes, *tables, 0.5, torch.device("cpu"))


def test_the_library_is_looked_for_where_peers_are(tmp_path: Path) -> None:
    assert library_path({}) is None
    assert library_path({"QWEN_PEERS": str(tmp_path)}) is None
    (tmp_path / LIBRARY).touch()
    assert library_path({"QWEN_PEERS": str(tmp_path)}) == tmp_path / LIBRARY


def test_a_plan_and_a_run_get_sizes_and_pages_in_their_order() -> None:
    library = FakeLibrary()
    some = wrapper(library)
    assert len(library.planned[5]) == INFO
    assert library.begins == [0, 2, 3]
    assert [number.value for number in library.planned[7:11]] == [2, 4, 16, True]
    q, cache = torch.zeros(2, 4, 128, dtype=torch.bfloat16), torch.zeros(5, 16, 2, 128, dtype=torch.bfloat16)
    assert bool((some.run(q, (cache, cache)) == 1).all())
    assert [number.value for number in library.ran[10:15]] == [2, 4, 2, 16, 0.5]
    pages = [(ctypes.c_int32 * count).from_address(library.ran[6 + i].value) for i, count in enumerate((3, 3, 2))]
    assert [list(one) for one in pages] == [[4, 1, 0], [0, 2, 3], [16, 7]]


@pytest.mark.parametrize(
    "other", [{"dtype": torch.float16}, {"head_dim": 64}, {"query_heads": 2}, {"query_heads": 10}, {"batch": 0}]
)
def test_heads_that_the_library_does_not_serve_are_refused(other: dict[str, Any]) -> None:
    sizes = MODEL._replace(**other)
    assert serves(MODEL)
    assert not serves(sizes)
    with pytest.raises(RuntimeError, match="serves bfloat16 heads of 128, 2 to a KV head; not Sizes"):
        wrapper(FakeLibrary(), sizes)


def test_an_error_of_the_library_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"refuses to plan .* CUDA error 700"):
        wrapper(FakeLibrary(700))


def test_the_benchmark_takes_the_library_where_there_is_no_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = Shape(40, 2, 4, 2)
    made = grouped.operands(shape, torch.device("cpu"), peers=False)(0)
    monkeypatch.setattr(candidates, "flashinfer_unavailable", lambda: "not here.")
    monkeypatch.setattr(flashinfer_library, "library_path", lambda: tmp_path / LIBRARY)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: FakeLibrary())
    variant = candidates.flashinfer(shape, made)
    assert not isinstance(variant, str)
    assert bool((variant.run(made)[0] == 1).all())
    single = Shape(40, 2, 4, 4)
    others = grouped.operands(single, torch.device("cpu"), peers=False)(0)
    assert candidates.flashinfer(single, others) == "not here."
