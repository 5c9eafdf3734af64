"""What is promised of roundings: every number of a format, every tie and what is beside it, scales and quotients.

Each promise is a function of the backend that keeps it, as in store_checks.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.cache_formats import FP8, MXFP4
from chapters.ch10_quantized_kv.combinations import Combination, casts
from chapters.ch10_quantized_kv.store_runs import NAME, Setting, assert_same, run
from qwen3_ref.kv_quantization import decode_scales, quantize_groups
from qwen3_ref.narrow_floats import E2M1_NUMBERS, decode_e4m3, pack_pairs
from qwen_cuda.kv_cache_format import CastArgs
from qwen_cuda.testing.backends import Backend

# Bits of bfloat16: a largest magnitude, and a number that its scale divides to next to a tie. What a first quotient is
# off is a subnormal.
TINY = ((0x4F8, 0x5D), (0x60A, 0x14F), (0x738, 0x17))


def quantized(backend: Backend, x: Tensor, cast: CastArgs) -> tuple[Tensor, Tensor]:
    """Codes and scales of `x: [t, D]`, as bytes."""
    sizes = (cast.data_bytes(x.shape[1]), cast.scale_bytes(x.shape[1]))
    data, scales = (torch.empty(len(x), 1, size, dtype=torch.uint8, device=backend.device) for size in sizes)
    placed = x[:, None].contiguous().to(backend.device)
    backend.op(NAME)(placed, values=cast.values, group=cast.group, scale_format=cast.scales, data=data, scales=scales)
    return data[:, 0].cpu(), scales[:, 0].cpu()


def in_groups_with(largest: float, numbers: Tensor) -> Tensor:
    """`numbers` in rows of 128 whose groups of 32 begin with `largest`: with ue8m0 their scale is 1. → `[t, 128]`"""
    padded = torch.nn.functional.pad(numbers, (0, -len(numbers) % 124)).view(-1, 4, 31)
    first = torch.full((*padded.shape[:2], 1), largest, dtype=numbers.dtype)
    return torch.cat((first, padded), dim=-1).flatten(1)


def around(numbers: Tensor) -> Tensor:
    """float32 numbers, those beside them, the middles of neighbours and those beside them; of both signs."""
    middles = (numbers[1:] + numbers[:-1]) / 2
    exact = torch.cat((numbers, middles))
    near = torch.cat((exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(-torch.inf))))
    near = near[near.abs() <= numbers.max()]
    return torch.cat((near, -near))


def check_every_e4m3_rounding(backend: Backend) -> None:
    """All numbers of bfloat16 up to 448, then float32 at every tie and beside it: the bits of torch.float8_e4m3fn."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[every.abs() <= 448][:: 1 if backend.name != "sim" else 5]
    for numbers in (every, around(decode_e4m3(torch.arange(0x7F, dtype=torch.uint8)))):
        x = in_groups_with(448.0, numbers)
        data, scales = quantized(backend, x, FP8)
        assert bool((scales == 127).all())
        assert_same("codes", data, x.float().to(torch.float8_e4m3fn).view(torch.uint8))


def check_every_e2m1_rounding(backend: Backend) -> None:
    """Each number, each tie and what is beside it, by a table: ties go to the number with an even code."""
    numbers = around(torch.tensor(E2M1_NUMBERS))
    x = in_groups_with(6.0, numbers)
    data, scales = quantized(backend, x, MXFP4)
    assert bool((scales == 127).all())
    distances = (x.double().abs()[..., None] - torch.tensor(E2M1_NUMBERS, dtype=torch.float64)).abs()
    odd = torch.arange(8) % 2
    nearest = (distances == distances.amin(-1, keepdim=True)).double() * (2 - odd)  # an even code counts twice
    codes = (nearest.argmax(-1) + 8 * x.signbit()).to(torch.uint8)
    assert_same("codes", data, pack_pairs(codes))


def near_ties(cast: CastArgs, dtype: torch.dtype, amax: Tensor) -> Tensor:
    """Groups with the largest magnitudes `amax: [n]`, and numbers of `dtype` at and beside each tie. → `[t, 128]`"""
    largest = torch.nn.functional.pad(amax.float()[:, None], (0, cast.group - 1))
    units = decode_scales(quantize_groups(largest, cast.values, cast.group, cast.scales)[1], cast.scales)
    numbers = (
        decode_e4m3(torch.arange(0x7F, dtype=torch.uint8)) if cast.values == "e4m3" else torch.tensor(E2M1_NUMBERS)
    )
    ties = (units.double() * (numbers[1:] + numbers[:-1]).double() / 2).to(dtype).view(torch.int16)
    near = torch.cat((ties - 1, ties, ties + 1), dim=1).clamp(min=0).view(dtype)
    near = torch.where(near <= amax[:, None], near, 0) * (1 - 2 * (torch.arange(near.shape[1]) % 2))
    rest = cast.group - 1
    groups = torch.nn.functional.pad(near, (0, -near.shape[1] % rest)).unflatten(1, (-1, rest))
    rows = torch.cat((amax[:, None, None].expand(-1, groups.shape[1], 1), groups), dim=-1).flatten()
    return torch.nn.functional.pad(rows, (0, -len(rows) % 128)).view(-1, 128)


def check_every_quotient(backend: Backend) -> None:
    """Near each tie of a format, in groups of any size of number: the codes of the true quotient, rounded once."""
    step = 23 if backend.name == "sim" else 1
    for dtype, cast in product((torch.bfloat16, torch.float16), casts()):
        exponents = (-130, -122, -60, 0, 110) if dtype == torch.bfloat16 else (-22, -12, 0, 13)
        if cast.values == "e2m1" and cast.scales == "e4m3":
            exponents = (-12, -5, 0, 8, 14)  # the range of the scale, and where it saturates
        significands = 1 + torch.arange(0, 128, step, dtype=torch.float64) / 128
        amax = torch.cat([torch.ldexp(significands, torch.tensor(e)) for e in exponents]).to(dtype)
        tiny = torch.nn.functional.pad(torch.tensor(TINY, dtype=torch.int16), (0, 126)).view(dtype)
        x = torch.cat((near_ties(cast, dtype, amax), tiny))
        run(backend, Setting(Combination(cast=cast, heads=1), dtype), x[:, None])


def check_every_power_of_two(backend: Backend) -> None:
    """UE8M0: for amax in every binade, at, above and below largest · 2^e: the smallest power of two not below."""
    bits = torch.arange(255)[:, None] * 2**23 + torch.tensor(
        [0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF]
    )
    amax = bits.flatten().to(torch.int32).view(torch.float32)
    x = torch.zeros(len(amax), 32).scatter(1, (torch.arange(len(amax)) % 32)[:, None], -amax[:, None])
    x = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % 128)).view(-1, 128)
    powers = torch.ldexp(torch.ones(255, dtype=torch.float64), torch.arange(255) - 127)
    for cast, largest in ((FP8, 448.0), (MXFP4, 6.0)):
        _, scales = quantized(backend, x, cast)
        wanted = (powers[:, None] * largest < amax.double()).sum(0)
        assert_same("scales", scales.flatten()[: len(amax)], wanted.to(torch.uint8))
