"""Checks of RMSNorm, RoPE and SwiGLU against definitions written a second time, in another way, in float64.

Each check raises AssertionError when `qwen3_ref.functional` is wrong. They are functions of their own because they have
two users: the tests, which want them to pass, and the mutants, which must make them fail.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from chapters.ch01_math_reference.ulp import largest_ulp_error
from qwen3_ref import functional as F

SIXTEEN_BIT = (torch.bfloat16, torch.float16)
# One rounding costs at most half a unit; the float32 work before it adds a few units of float32, which are below 2^-11
# units of float16 and 2^-14 of bfloat16. Two roundings reach well beyond this bound.
ONE_ROUNDING_ULP = 0.505


def random_rows(dtype: torch.dtype, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of very different size with a mean far from zero, and a norm weight far from one. `[9, size]`, `[size]`."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(9, size, generator=generator, dtype=torch.float64) + 0.7
    rows *= torch.logspace(-3.5, 2, 9, dtype=torch.float64)[:, None]  # the first row's mean square is near eps
    weight = 1 + 0.5 * torch.randn(size, generator=generator, dtype=torch.float64)
    return rows.to(dtype), weight.to(dtype)


def rms_norm_truth(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The definition row by row with exactly rounded sums. `[n, d]`, `[d]` → `[n, d]` float64."""
    out = np.empty(x.shape)
    for row, values in enumerate(x.double().numpy()):
        root = math.sqrt(math.fsum(float(v) ** 2 for v in values) / len(values) + eps)
        out[row] = values / root * weight.double().numpy()
    return torch.from_numpy(out)


def check_rms_norm() -> None:
    """float64 equals the definition; `fused` is one rounding away from it, `hf` exactly two."""
    for seed, size in enumerate((1, 2, 64, 127, 1024)):
        for eps in (1e-6, 1e-3):
            x, weight = random_rows(torch.float64, size, seed)
            truth = rms_norm_truth(x, weight, eps)
            for rounding in ("hf", "fused"):
                torch.testing.assert_close(F.rms_norm(x, weight, eps, rounding), truth, rtol=1e-13, atol=0)
            for dtype in SIXTEEN_BIT:
                x, weight = random_rows(dtype, size, seed)
                truth = rms_norm_truth(x, weight, eps)
                fused, hf = F.rms_norm(x, weight, eps, "fused"), F.rms_norm(x, weight, eps, "hf")
                assert fused.dtype == hf.dtype == dtype
                assert largest_ulp_error(fused, truth) <= ONE_ROUNDING_ULP
                # Rounding first: half a unit, which the product may double (its mantissa can wrap), and half a unit.
                assert largest_ulp_error(hf, truth) <= 1.51
                first = F.rms_norm(x, torch.ones_like(weight), eps, "fused")
                assert torch.equal(hf, (first.double() * weight.double()).to(dtype))
            x, weight = random_rows(torch.float32, size, seed)
            # Mean (pairwise sum), rsqrt and two products: a few roundings of float32 itself.
            assert largest_ulp_error(F.rms_norm(x, weight, eps), rms_norm_truth(x, weight, eps)) <= 4


def rotation(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """`exp(i · m · theta^(−2j/D))` for every position m and pair j, by Python's pow. `[t]` → `[t, D/2]` complex128."""
    frequency = [theta ** (-2 * j / head_dim) for j in range(head_dim // 2)]
    angle = torch.tensor([[int(m) * f for f in frequency] for m in positions], dtype=torch.float64)
    return torch.polar(torch.ones_like(angle), angle)


def check_rope_is_a_complex_rotation() -> None:
    """Both pairings multiply pair j, read as a complex number, by the same unit number."""
    generator = torch.Generator().manual_seed(11)
    positions = torch.tensor([0, 1, 2, 17, 4095, 40959, 131071])
    for head_dim, theta in ((2, 1e6), (6, 1e4), (128, 1e6)):
        x = torch.randn(2, 3, len(positions), head_dim, generator=generator, dtype=torch.float64)
        cos, sin = F.rope_cos_sin(positions, head_dim, theta, torch.float64)
        turn, half = rotation(positions, head_dim, theta), head_dim // 2
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        # An angle of up to 131071 rad carries an error of 131071 · 2^-53 · a few roundings.
        tolerance = 131071 * 2.0**-53 * 32
        got = F.apply_rope(x, cos, sin, "half")
        torch.testing.assert_close(got, torch.cat((turned.real, turned.imag), -1), rtol=0, atol=tolerance)
        torch.testing.assert_close(F.apply_rope(x, cos, sin), got, rtol=0, atol=0)
        turned = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous()) * turn
        got = F.apply_rope(x, cos, sin, "interleaved")
        torch.testing.assert_close(got, torch.view_as_real(turned).flatten(-2), rtol=0, atol=tolerance)


def check_rope_pairings_differ_by_a_permutation() -> None:
    """Reordering channels first and pairing by halves equals pairing neighbours and reordering after."""
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(2, 5, 10, generator=generator, dtype=torch.float64)
    cos, sin = F.rope_cos_sin(torch.arange(100_000, 100_005), 10, 1e6, torch.float64)
    first = F.apply_rope(F.half_from_interleaved(x), cos, sin, "half")
    after = F.half_from_interleaved(F.apply_rope(x, cos, sin, "interleaved"))
    torch.testing.assert_close(first, after, rtol=0, atol=0)
    assert not torch.equal(first, F.apply_rope(x, cos, sin, "half")), "the two pairings must not be the same"


def check_rope_sees_only_distance() -> None:
    """The score of a rotated query and key depends on their distance alone, up to 131,071 tokens from the start."""
    generator = torch.Generator().manual_seed(13)
    q, k = torch.randn(2, 1, 128, generator=generator, dtype=torch.float64)
    for pairing in ("half", "interleaved"):

        def score(m: int, n: int, pairing: F.Pairing = pairing) -> float:
            at = torch.tensor([m, n])
            cos, sin = F.rope_cos_sin(at, 128, 1e6, torch.float64)
            return float(F.apply_rope(q, cos[:1], sin[:1], pairing) @ F.apply_rope(k, cos[1:], sin[1:], pairing).T)

        plain = float(q @ k.T)
        for distance in (0, 1, 30, 1000):
            near = score(distance, 0)
            for shift in (1, 999, 130_000):
                # 128 products of numbers of order one, angles right to 131071 · 2^-53 · a few.
                assert abs(score(distance + shift, shift) - near) <= 1e-8
        assert abs(score(7, 7) - plain) <= 1e-8
        assert abs(score(1, 0) - score(0, 1)) > 1e-3, "direction must matter"
        assert abs(score(30, 0) - plain) > 1e-3, "distance must matter"


def check_rope_keeps_lengths() -> None:
    """A rotation changes no length, and at position 0 nothing at all."""
    generator = torch.Generator().manual_seed(14)
    x = torch.randn(4, 6, 32, generator=generator, dtype=torch.float64)
    cos, sin = F.rope_cos_sin(torch.tensor([0, 1, 63, 5000, 100_003, 131_071]), 32, 1e6, torch.float64)
    for pairing in ("half", "interleaved"):
        y = F.apply_rope(x, cos, sin, pairing)
        torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)
        assert torch.equal(y[:, 0], x[:, 0])
        assert not torch.allclose(y[:, 1], x[:, 1])


def check_rope_angles_in_float32() -> None:
    """cos and sin in the model's dtypes come from float32 angles: right to what float32 can say, then rounded once."""
    positions = torch.tensor([0, 1, 500, 4096, 40_959, 131_071])
    truth = rotation(positions, 128, 1e6)
    # A relative error of about 4 float32 roundings in the angle (power, reciprocal, product, the stored number) moves
    # cos by as much times the angle.
    slack = positions.double()[:, None] * 4 * 2.0**-24 + 2.0**-23
    cos, sin = F.rope_cos_sin(positions, 128, 1e6, torch.float32)
    assert bool(((cos.double() - truth.real).abs() <= slack).all())
    assert bool(((sin.double() - truth.imag).abs() <= slack).all())
    for dtype in SIXTEEN_BIT:
        rounded = F.rope_cos_sin(positions, 128, 1e6, dtype)
        assert torch.equal(rounded[0], cos.to(dtype))
        assert torch.equal(rounded[1], sin.to(dtype))


def check_swiglu() -> None:
    """`g / (1 + e^−g) · u`; `fused` rounds once, `hf` rounds the SiLU and then the product."""
    generator = torch.Generator().manual_seed(15)
    gate = torch.cat((torch.linspace(-20, 20, 401, dtype=torch.float64), torch.tensor([-800.0, 800.0])))
    up = 3 * torch.randn(gate.shape, generator=generator, dtype=torch.float64)

    def silu(values: Tensor) -> Tensor:
        """Below −700, where `e^−g` overflows a Python float, the result is below 1e-300: zero."""
        return torch.tensor([g / (1 + math.exp(-g)) if g > -700 else 0.0 for g in values.tolist()], dtype=torch.float64)

    for rounding in ("hf", "fused"):
        torch.testing.assert_close(F.swiglu(gate, up, rounding), silu(gate) * up, rtol=1e-14, atol=1e-300)
    for dtype in SIXTEEN_BIT:
        g, u = gate.to(dtype), up.to(dtype)
        truth = silu(g.double())
        fused, hf = F.swiglu(g, u, "fused"), F.swiglu(g, u, "hf")
        assert fused.dtype == hf.dtype == dtype
        assert largest_ulp_error(fused, truth * u.double()) <= ONE_ROUNDING_ULP
        assert largest_ulp_error(F.silu(g), truth) <= ONE_ROUNDING_ULP
        assert torch.equal(hf, (F.silu(g).double() * u.double()).to(dtype))


FORMULA_CHECKS = (
    check_rms_norm,
    check_rope_is_a_complex_rotation,
    check_rope_pairings_differ_by_a_permutation,
    check_rope_sees_only_distance,
    check_rope_keeps_lengths,
    check_rope_angles_in_float32,
    check_swiglu,
)
