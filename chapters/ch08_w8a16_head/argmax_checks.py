"""What this chapter promises of head_argmax and w8a16_argmax, each promise a function of the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.w8_checks import BATCHES, BF16, DENSE, EPS, FP16, FP32, HeadCase, head_case, linear
from qwen3_ref.sampling import finite_argmax
from qwen_cuda.operators import argmax_workspace
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES, oracle
from qwen_cuda.testing.strategies import Layout

ROWS = (1, 2, 3, 4, 5, 33, 191, 193, 400)


def largest(backend: Backend, some: HeadCase, workspace: Guarded | None = None) -> Tensor:
    """Runs `w8a16_argmax` and holds it against the argmax of the backend's own logits. → int64 `[b]` on the CPU."""
    x = backend.place(some.x, row_padding=some.layouts[0].row_padding, offset=some.layouts[0].offset)
    qweight = backend.place(some.qweight, offset=some.layouts[1].offset)
    workspace = workspace or backend.place(argmax_workspace("cpu"))
    options: dict[str, Any] = dict(some.options)
    if some.gain is not None:
        options["norm_weight"] = some.gain.to(backend.device)
    arguments = (x.tensor, qweight.tensor, some.scales.to(backend.device))
    with case("w8a16_argmax", **some.facts):
        ids: Tensor = backend.op("w8a16_argmax")(
            *arguments, **options, workspace=workspace.tensor, prefetch=some.prefetch
        )
        x.check_untouched("x")
        qweight.check_untouched("qweight")
        everything = replace(backend, offered=frozenset(REFERENCES))  # logits are the product's, whose argmax it may be
        logits = linear(everything, replace(some, out_dtype=FP32), finite=False)
        return checked_ids(ids, logits, workspace)


def checked_ids(ids: Tensor, logits: Tensor, workspace: Guarded) -> Tensor:
    """Fails unless `ids` are the argmax of `logits`, −1 where that is not finite, and the workspace is as it was."""
    assert (ids.dtype, ids.is_contiguous()) == (torch.int64, True)
    want = finite_argmax(logits.cpu())
    assert torch.equal(ids.cpu(), want), f"the ids are {ids.tolist()}; the largest logits are those of {want.tolist()}"
    workspace.check_guards("workspace")
    assert not workspace.tensor.any(), "the workspace is not zero again"
    return ids.cpu()


def check_argmax_of_any_shape(backend: Backend) -> None:
    """Any number of rows, columns and groups, aligned or not, up to 8 rows of x of each dtype."""
    for n in ROWS:
        largest(backend, head_case(2, n, 64, 32, seed=n))
    for batch in BATCHES:
        for dtype in (BF16, FP16, FP32):
            largest(backend, head_case(batch, 70, 96, 32, dtype=dtype, seed=batch))
    for k, group in ((5, None), (100, None), (512, 128), (640, 64), (1040, None), (2048, 128)):
        largest(backend, head_case(8, 9, k, group, seed=k))
    for layouts in ((Layout(3, 1), DENSE, DENSE), (DENSE, Layout(offset=1), DENSE)):
        largest(backend, replace(head_case(3, 40, 128, 64), layouts=layouts))


def check_argmax_with_a_norm(backend: Backend) -> None:
    """The norm's logits, with and without prefetch."""
    for batch in (1, 3, 8):
        some = head_case(batch, 50, 160, 32, gain=BF16, kind="wide", seed=batch)
        assert torch.equal(largest(backend, some), largest(backend, replace(some, prefetch=True)))


def tied(n: int, winners: tuple[int, ...], sign: int = 1) -> HeadCase:
    """Logits of `sign` · 32 at the winners and less elsewhere; sums of small integers, so that ties are exact."""
    qweight = torch.full((n, 32), -1 if sign > 0 else -2, dtype=torch.int8)
    qweight[list(winners)] = sign
    return HeadCase(torch.ones(2, 32), qweight, torch.ones(n, 1))


def check_ties_go_to_the_lowest_id(backend: Backend) -> None:
    """In one warp, in one block, in blocks far apart; all equal; positive, negative and zero."""
    for n, winners in ((6, (2, 3)), (40, (5, 30)), (600, (130, 131, 599)), (600, (0, 599)), (600, tuple(range(600)))):
        for sign in (1, -1):
            assert largest(backend, tied(n, winners, sign)).tolist() == [winners[0]] * 2
    zeros = replace(tied(9, ()), scales=torch.zeros(9, 1))
    assert largest(backend, zeros).tolist() == [0, 0]
    # Products of −1e-60 round to −0 in every lane, those of 1e-60 in row 4 to 0, which is no more.
    vanishing = HeadCase(torch.full((1, 512), -1e-30), torch.ones(9, 512, dtype=torch.int8), torch.full((9, 1), 1e-30))
    vanishing.qweight[4] = -1
    assert largest(backend, vanishing).tolist() == [0]


def check_no_id_without_a_finite_largest_logit(backend: Backend) -> None:
    """One NaN or infinity is enough, wherever it is; −inf everywhere too. Beside it −inf is one logit like others, and
    the largest and the lowest numbers are finite."""
    for n, bad in ((9, (3, 5)), (500, (77, 400))):
        some = tied(n, (1,))
        for values in ((torch.nan, torch.nan), (torch.inf, torch.nan), (-torch.nan, torch.inf), (torch.inf, torch.inf)):
            scales = some.scales.clone()
            scales[bad[0]], scales[bad[1]] = values
            assert largest(backend, replace(some, scales=scales, qweight=some.qweight.abs())).tolist() == [-1, -1]
        lowest = replace(some, scales=torch.full((n, 1), torch.inf), qweight=-some.qweight.abs())
        assert largest(backend, lowest).tolist() == [-1, -1]
        lowest.scales[7] = 1.0
        assert largest(backend, lowest).tolist() == [7, 7]
    edge = HeadCase(torch.zeros(1, 32), torch.ones(5, 32, dtype=torch.int8), torch.zeros(5, 1))
    edge.x[0, 3], edge.scales[2] = 1.0, torch.finfo(FP32).max
    assert largest(backend, edge).tolist() == [2]
    edge.scales[:] = torch.finfo(FP32).min
    assert largest(backend, edge).tolist() == [0]
    spoilt = head_case(3, 50, 64, 32)
    spoilt.x[1, 7] = torch.nan
    ids = largest(backend, spoilt).tolist()
    assert (ids[1], min(ids[0], ids[2]) >= 0) == (-1, True)


def check_a_workspace_serves_many_argmaxes(backend: Backend) -> None:
    """One workspace, batches and heads of any size one after the other, of int8 and of 16 bits."""
    workspace = backend.place(argmax_workspace("cpu"))
    for seed, (batch, n) in enumerate(((8, 300), (1, 5), (3, 700), (8, 40), (2, 1))):
        largest(backend, head_case(batch, n, 64, 32, seed=seed), workspace)
        if backend.offers("head_argmax"):
            exact(backend, batch, n, 40, BF16, seed, workspace)


def exact(
    backend: Backend, batch: int, n: int, k: int, dtype: torch.dtype, seed: int = 1, workspace: Guarded | None = None
) -> None:
    """`head_argmax` of small integers, whose sums are exact in any order: equal to the argmax in float64, ties too."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (batch, k), generator=generator).to(dtype)
    weight = torch.randint(-2, 3, (n, k), generator=generator).to(dtype)
    workspace = workspace or backend.place(argmax_workspace("cpu"))
    placed = backend.place(x, row_padding=3), backend.place(weight, offset=seed % 2)
    with case("head_argmax", batch=batch, n=n, k=k, dtype=dtype):
        ids = backend.op("head_argmax")(*(one.tensor for one in placed), workspace=workspace.tensor)
        checked_ids(ids, x.double() @ weight.double().T, workspace)
        for name, one in zip(("x", "weight"), placed, strict=True):
            one.check_untouched(name)


def check_head_of_small_integers(backend: Backend) -> None:
    """16-bit weights: any shape, aligned or not, ties among many rows."""
    for dtype in (BF16, FP16):
        for n in ROWS:
            exact(backend, 2, n, 64, dtype, seed=n)
        for batch in BATCHES:
            exact(backend, batch, 70, 96, dtype, seed=batch)
        for k in (1, 7, 8, 9, 100, 255, 256, 257, 1024, 2560):
            for seed in (2, 3):
                exact(backend, 8, 6, k, dtype, seed)


def check_head_argmax_of_real_numbers(backend: Backend) -> None:
    """The logit of the id that is found is no less than the largest but for rounding; with a norm, with prefetch.

    As for w8a16_linear a sum errs by at most k/16 + 40 roundings of u = 2^-24, k/64 + 20 more with a norm.
    """
    for dtype in (BF16, FP16):
        for batch, n, k, gained in ((1, 300, 200, False), (8, 100, 264, True), (3, 60, 1024, True)):
            x, weight = rows_of_numbers((batch, k), FP32, seed=k), rows_of_numbers((n, k), dtype, seed=n)
            options: dict[str, Any] = {"norm_weight": norm_weight(k, BF16, seed=k), "eps": EPS} if gained else {}
            normed = oracle("rms_norm", x, options["norm_weight"], EPS) if gained else x.double()
            logits = normed @ weight.double().T
            bound = (k / 16 + k / 64 + 60) * 2.0**-24 * (normed.abs() @ weight.double().abs().T)
            placed = {name: one.to(backend.device) if isinstance(one, Tensor) else one for name, one in options.items()}
            found = []
            for prefetch in (False, True):
                workspace = argmax_workspace(backend.device)
                arguments = x.to(backend.device), weight.to(backend.device)
                found.append(
                    backend.op("head_argmax")(*arguments, **placed, workspace=workspace, prefetch=prefetch).cpu()
                )
            with case("head_argmax", x=tuple(x.shape), n=n, dtype=dtype, norm=gained):
                assert torch.equal(*found)
                chosen = logits.gather(1, found[0][:, None]) + bound.gather(1, found[0][:, None])
                assert bool((chosen >= (logits - bound).amax(1, keepdim=True)).all())


W8_ARGMAX_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_argmax_of_any_shape,
    check_argmax_with_a_norm,
    check_ties_go_to_the_lowest_id,
    check_no_id_without_a_finite_largest_logit,
    check_a_workspace_serves_many_argmaxes,
)
HEAD_ARGMAX_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_head_of_small_integers,
    check_head_argmax_of_real_numbers,
)
