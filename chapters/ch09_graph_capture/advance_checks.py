"""What this chapter promises of advance_decode, each promise a function of the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.numbers import rows_of_numbers
from qwen_cuda.testing.references import REFERENCES

WRITTEN = ("context_lens", "positions", "slot_mapping", "draws", "history", "h")
UNTOLD = -7  # in the history where no token has been written


@dataclass(frozen=True)
class Rows:
    """Rows of a decode step: the token that each gets, the tokens that it has, the blocks of its table."""

    ids: tuple[int, ...]
    lens: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    vocab: int = 11
    hidden: int = 40
    num_blocks: int = 9
    block_size: int = 8
    max_context: int = 24
    dtype: torch.dtype = torch.bfloat16
    padding: int = 0  # elements between the rows of table and history
    names: tuple[str, ...] = field(default=("ids", "embedding", "block_table", *WRITTEN), repr=False)

    def tensors(self) -> list[Tensor]:
        """Those of the operator, in its order."""
        rows = len(self.ids)
        return [
            torch.tensor(self.ids),
            rows_of_numbers((self.vocab, self.hidden), self.dtype, seed=self.vocab),
            torch.tensor(self.table, dtype=torch.int32),
            torch.tensor(self.lens, dtype=torch.int32),
            torch.full((rows,), 77, dtype=torch.int32),
            torch.full((rows,), 77, dtype=torch.int32),
            torch.arange(rows) + 5,
            torch.full((rows, self.max_context), UNTOLD),
            torch.full((rows, self.hidden), torch.nan),
        ]


FOUR = Rows(ids=(3, 10, 0, 7), lens=(0, 7, 8, 23), table=((1, 2, 3), (8, 0, 4), (5, 6, 7), (0, 8, 1)))


def advanced(backend: Backend, rows: Rows) -> dict[str, Tensor]:
    """Runs the operator, holds it against the reference, bit for bit, and checks that nothing else was touched."""
    values = rows.tensors()
    placed: dict[str, Guarded] = {}
    for name, value in zip(rows.names, values, strict=True):
        padding = rows.padding if name in ("block_table", "history") else 0
        placed[name] = backend.place(value, row_padding=padding, offset=rows.padding if value.dim() == 2 else 0)
    wanted = [value.clone() for value in values]
    REFERENCES["advance_decode"](*wanted, rows.num_blocks, rows.block_size)
    with case("advance_decode", ids=rows.ids, lens=rows.lens, hidden=rows.hidden, dtype=rows.dtype):
        arguments = [placed[name].tensor for name in rows.names]
        backend.op("advance_decode")(*arguments, rows.num_blocks, rows.block_size)
        for name, want in zip(rows.names, wanted, strict=True):
            got = placed[name]
            got.check_guards(name) if name in WRITTEN else got.check_untouched(name)
            assert torch.equal(got.tensor.cpu(), want), f"{name} is {got.tensor.tolist()}; it must be {want.tolist()}"
    return dict(zip(rows.names, wanted, strict=True))


def check_one_row(backend: Backend) -> None:
    """A row alone: it goes on into each part of a block, and comes to rest for each reason."""
    one = Rows(ids=(5,), lens=(9,), table=((1, 2),), max_context=20)
    assert advanced(backend, one)["slot_mapping"].tolist() == [17]
    for length in (0, 7, 8, 15):
        advanced(backend, replace(one, lens=(length,)))
    for rests in (
        {"ids": (-1,)},
        {"ids": (11,)},
        {"lens": (-1,)},
        {"lens": (20,)},
        {"lens": (16,)},
        {"table": ((1, 9),)},
    ):
        assert advanced(backend, replace(one, **rests))["slot_mapping"].tolist() == [-1]


def check_rows_go_on(backend: Backend) -> None:
    """At the beginning of a block, at its end, at the end of the context; the first and the last token and block."""
    after = advanced(backend, FOUR)
    assert after["slot_mapping"].tolist() == [8, 71, 48, 15]
    assert after["context_lens"].tolist() == [1, 8, 9, 24]
    assert after["draws"].tolist() == [6, 7, 8, 9]
    for dtype in (torch.bfloat16, torch.float16):
        for hidden in (1, 33, 256, 257, 1024, 2600):
            advanced(backend, replace(FOUR, hidden=hidden, dtype=dtype, padding=3))


def check_rows_come_to_rest_and_stay_there(backend: Backend) -> None:
    """No token, a full history; and a row at rest that is given a token."""
    for ids in ((-1, 11, 2**40, -(2**62)),):
        assert advanced(backend, replace(FOUR, ids=ids))["context_lens"].tolist() == [-1] * 4
    for lens in ((24, 25, -1, -5), (2**31 - 1, -(2**31), 24, 24)):
        assert advanced(backend, replace(FOUR, lens=lens))["draws"].tolist() == [5, 6, 7, 8]


def check_a_last_token_is_told(backend: Backend) -> None:
    """The table has no block for it; but a token that the history has no place for is not."""
    bad = advanced(backend, replace(FOUR, table=((-1, 2, 3), (9, 0, 4), (5, -3, 7), (0, 8, 2**31 - 1))))
    assert bad["slot_mapping"].tolist() == [-1] * 4
    assert bad["draws"].tolist() == [6, 7, 8, 9]
    lens = (15, 16, 17, 23)
    short = advanced(backend, replace(FOUR, lens=lens, max_context=16))
    assert (short["context_lens"].tolist(), short["draws"].tolist()) == ([16, -1, -1, -1], [6, 6, 7, 8])
    narrow = advanced(backend, replace(FOUR, lens=lens, table=tuple(row[:2] for row in FOUR.table)))
    assert (narrow["context_lens"].tolist(), narrow["draws"].tolist()) == ([16, -1, -1, -1], [6, 7, 8, 9])


def check_a_row_depends_on_itself_alone(backend: Backend) -> None:
    """70 rows, among which every third rests."""
    many = range(70)
    advanced(
        backend,
        Rows(
            ids=tuple(i % 11 for i in many),
            lens=tuple(-1 if i % 3 == 0 else i % 24 for i in many),
            table=tuple((i % 9, (i + 1) % 9, (i + 2) % 9) for i in many),
        ),
    )


ADVANCE_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_one_row,
    check_rows_go_on,
    check_rows_come_to_rest_and_stay_there,
    check_a_last_token_is_told,
    check_a_row_depends_on_itself_alone,
)
