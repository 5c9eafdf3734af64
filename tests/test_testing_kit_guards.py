"""Guarded buffers: a wrong byte is found wherever it lies, and told as a reader would look for it."""

from __future__ import annotations

import pytest
import torch

from qwen_cuda.testing.guards import ALIGNMENT, GUARD_BYTES, Guarded

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64, torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("offset", [0, 1, 3, 8])
@pytest.mark.parametrize("padding", [0, 1, 8])
def test_a_buffer_lies_where_it_was_asked_for(dtype: torch.dtype, offset: int, padding: int) -> None:
    buffer = Guarded((2, 3, 5), dtype, row_padding=padding, offset=offset)
    stride = 5 + padding
    assert buffer.tensor.shape == (2, 3, 5)
    assert buffer.tensor.stride() == (3 * stride, stride, 1)
    assert buffer.tensor.data_ptr() % ALIGNMENT == offset * dtype.itemsize % ALIGNMENT
    buffer.check_untouched()
    buffer.tensor.zero_()
    buffer.check_guards()
    buffer.check_written()


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_is_nan_in_every_format(dtype: torch.dtype) -> None:
    buffer = Guarded((4, 6), dtype, row_padding=2)
    assert bool(buffer.tensor.isnan().all())
    around = buffer.tensor.as_strided((8,), (1,), buffer.tensor.storage_offset() - 8)
    assert bool(around.isnan().all())


def write(buffer: Guarded, element: int) -> None:
    """Writes one element that lies `element` places after the buffer's first."""
    buffer.tensor.as_strided((1,), (1,), buffer.tensor.storage_offset() + element).fill_(0)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("element", "where"),
    [
        (-1, "element 1 before its beginning"),
        (-5, "element 5 before its beginning"),
        (6, "element 1 after the end of row 0"),
        (15, "element 2 after the end of row 1"),
        (22, "element 1 after its end"),
        (24, "element 3 after its end"),
    ],
)
def test_a_byte_outside_is_found_and_placed(element: int, where: str, offset: int) -> None:
    buffer = Guarded.of(torch.ones(3, 6, dtype=torch.float16), row_padding=2, offset=offset)
    write(buffer, element)
    for check in (buffer.check_guards, buffer.check_untouched):
        with pytest.raises(
            AssertionError, match=f"2 bytes outside x were overwritten, the first is {where} .byte 0xfa became 0x00"
        ):
            check("x")


def test_every_single_byte_around_is_watched() -> None:
    buffer = Guarded.of(torch.ones(2, 3, dtype=torch.bfloat16), row_padding=1)
    inside = 0
    for byte in range(len(buffer._bytes)):
        kept = int(buffer._bytes[byte])
        buffer._bytes[byte] = kept ^ 1
        try:
            buffer.check_guards()
            inside += 1
        except AssertionError:
            pass
        with pytest.raises(AssertionError):
            buffer.check_untouched()
        buffer._bytes[byte] = kept
    assert inside == 2 * 3 * 2
    assert len(buffer._bytes) >= 2 * GUARD_BYTES
    buffer.check_untouched()


def test_an_input_that_changes_is_found() -> None:
    buffer = Guarded.of(torch.ones(3, 6), row_padding=2)
    buffer.tensor[2, 4] = 2
    buffer.check_guards()
    with pytest.raises(AssertionError, match="x is only read, but 2 bytes changed, the first is in row 2, column 4"):
        buffer.check_untouched("x")


def test_an_element_that_nobody_wrote_is_found() -> None:
    buffer = Guarded((3, 6), torch.bfloat16, offset=1)
    buffer.tensor[:2] = 0
    buffer.tensor[2, :4] = float("nan")  # a NaN that a kernel computes has another payload
    with pytest.raises(AssertionError, match=r"2 elements of out were never written, the first at \(2, 4\)"):
        buffer.check_written("out")


@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (2, 0, 4), (3, 1)])
def test_shapes_without_rows_or_elements_have_guards_too(shape: tuple[int, ...]) -> None:
    buffer = Guarded(shape, torch.float32, row_padding=4)
    assert buffer.tensor.shape == shape
    buffer.tensor.fill_(1)
    buffer.check_guards()
    buffer.check_written()
    buffer._bytes[buffer.start - 1] ^= 1
    with pytest.raises(AssertionError, match="before its beginning"):
        buffer.check_guards()
