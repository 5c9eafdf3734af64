"""Buffers with watched surroundings: what a kernel writes beside a tensor, or reads there, shows.

Every byte around the tensor, and in the gaps between its rows, holds a pattern that no kernel writes. Read as any
floating-point format the pattern is NaN, so a kernel that reads too far usually spoils its own result as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

# As bfloat16, float16, float32 and float64 (repeated) a NaN with its own payload; as an integer large and odd-looking.
POISON = (0xFA, 0x7F)
GUARD_BYTES = 256  # on each side: more than one warp writes of a 16-bit format with one instruction
ALIGNMENT = 16  # of the widest load


class Guarded:
    """A tensor of `shape` inside a larger allocation. `.tensor` is the view that a kernel gets.

    The first element lies `offset` elements behind a 16-byte border; rows (the last dimension) follow each other at
    `shape[-1] + row_padding` elements.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        row_padding: int = 0,
        offset: int = 0,
    ) -> None:
        self.shape, self.size = tuple(shape), torch.empty(0, dtype=dtype).element_size()
        self.stride = (self.shape[-1] if self.shape else 1) + row_padding  # elements from one row to the next
        self.rows = prod(self.shape[:-1])
        extent = (self.rows - 1) * self.stride + (self.shape[-1] if self.shape else 1) if prod(self.shape) else 0
        total = ALIGNMENT + GUARD_BYTES + (offset + extent) * self.size + GUARD_BYTES
        self._bytes = torch.tensor(POISON, dtype=torch.uint8).repeat((total + 1) // 2).to(device)
        self.start = -self._bytes.data_ptr() % ALIGNMENT + GUARD_BYTES + offset * self.size  # byte of the first element
        # A view of bytes as another dtype must begin at a multiple of the element; data_ptr() is one, so this is too.
        flat = self._bytes[self.start % self.size :]
        flat = flat[: flat.numel() // self.size * self.size].view(dtype)
        strides = [1]
        for length in reversed(self.shape[1:]):
            strides.append(strides[-1] * (length if len(strides) > 1 else self.stride))
        self.tensor = flat.as_strided(self.shape, strides[: len(self.shape)][::-1], self.start // self.size)
        self._before = self._bytes.to("cpu", copy=True)

    @classmethod
    def of(
        cls, values: Tensor, device: torch.device | str = "cpu", *, row_padding: int = 0, offset: int = 0
    ) -> Guarded:
        """A guarded copy of `values` on `device`."""
        guarded = cls(values.shape, values.dtype, device, row_padding=row_padding, offset=offset)
        guarded.tensor.copy_(values)
        guarded._before = guarded._bytes.to("cpu", copy=True)
        return guarded

    def check_guards(self, name: str = "the tensor") -> None:
        """Fails when a byte outside the tensor has changed, and says where it lies.

        Raises:
            AssertionError: with the side, the distance and the old and new value of the first such byte.
        """
        changed = self._changed() & ~self._inside()
        assert not changed.any(), f"{int(changed.sum())} bytes outside {name} were overwritten, {self._first(changed)}"

    def check_untouched(self, name: str = "the tensor") -> None:
        """Fails when any byte has changed since the buffer was made: for inputs, which no kernel may write.

        Raises:
            AssertionError: as `check_guards`, also for elements of the tensor itself.
        """
        self.check_guards(name)
        changed = self._changed()
        assert not changed.any(), f"{name} is only read, but {int(changed.sum())} bytes changed, {self._first(changed)}"

    def check_written(self, name: str = "the tensor") -> None:
        """Fails when an element still holds the pattern it was made with: nobody wrote it.

        Raises:
            AssertionError: with the index of the first such element.
        """
        pattern = torch.tensor(POISON, dtype=torch.uint8).repeat(4)[: self.size]
        now = self.tensor.detach().cpu().contiguous().view(-1, 1).view(torch.uint8) if self.tensor.numel() else pattern
        missing = (now == pattern).all(-1)
        if self.tensor.numel() and missing.any():
            first = tuple(int(i) for i in torch.unravel_index(missing.int().argmax(), self.shape))
            raise AssertionError(f"{int(missing.sum())} elements of {name} were never written, the first at {first}")

    def _changed(self) -> Tensor:
        return self._bytes.cpu() != self._before

    def _inside(self) -> Tensor:
        """Which bytes belong to elements."""
        inside = torch.zeros(self._before.numel(), dtype=torch.bool)
        if self.tensor.numel():
            row = self.shape[-1] * self.size if self.shape else self.size
            inside.as_strided((self.rows, row), (self.stride * self.size, 1), self.start).fill_(True)
        return inside

    def _first(self, changed: Tensor) -> str:
        """Where the first changed byte lies, in a reader's terms."""
        byte = int(changed.int().argmax())
        values = f"(byte {int(self._before[byte]):#04x} became {int(self._bytes[byte]):#04x})"
        element, width = (byte - self.start) // self.size, self.shape[-1] if self.shape else 1
        if element < 0:
            return f"the first is element {-element} before its beginning {values}"
        row, column = divmod(element, max(self.stride, 1))
        if row < self.rows and column < width:
            return f"the first is in row {row}, column {column} {values}"
        if row < self.rows - 1:
            return f"the first is element {column - width + 1} after the end of row {row} {values}"
        return (
            f"the first is element {element - max(self.rows - 1, 0) * self.stride - width + 1} after its end {values}"
        )


def placed(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same views on a device. `Tensor.to` would make some of them contiguous, and part what shares memory."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().to(device=device) for tensor in tensors}

    def view(like: Tensor) -> Tensor:
        storage = storages[like.untyped_storage().data_ptr()]
        there = torch.empty(0, dtype=like.dtype, device=device)
        there.set_(storage, like.storage_offset(), like.shape, like.stride())
        return there.requires_grad_(like.requires_grad)

    return [view(tensor) for tensor in tensors]


def placed_arguments(given: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """`given` with its tensors as `placed` has them."""
    names = [name for name, value in given.items() if isinstance(value, Tensor)]
    return given | dict(zip(names, placed([given[name] for name in names], device), strict=True))


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers, one element behind a 16-byte border."""
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)
