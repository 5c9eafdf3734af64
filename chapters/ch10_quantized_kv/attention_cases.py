"""Attention over quantised caches on test cases: what the kernel gets, the truth in float64, and how far it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from chapters.ch05_grouped_attention.grouped_checks import QWEN3
from chapters.ch05_grouped_attention.paged_cases import (
    Heads,
    PagedCase,
    assert_within,
    paged_case,
    relative_errors,
    truth_and_bound,
)
from chapters.ch06_split_attention.split_cases import Cut, layout_of, merges, used_workspace
from qwen3_ref.kv_quantization import decode_scales, hadamard_transform, quantize_groups
from qwen3_ref.narrow_floats import decode_e2m1, decode_e4m3, unpack_pairs
from qwen3_ref.paged import context_of, gather, paged_attention
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat, Layout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.ulp import assert_same_bits

NAME = "paged_attention_quantized"
_UNIT = 2.0**-24  # the relative error of one float32 rounding


@dataclass(frozen=True)
class QuantizedCase:
    """A case of 16-bit attention, whose caches are replaced by bytes. Padding and slots that nobody fills read as NaN.

    Between blocks lie `block_padding` bytes more, of the guards.
    """

    plain: PagedCase
    form: KVCacheFormat
    k_cache: Tensor
    v_cache: Tensor
    hadamard_scale: float = 0.0
    block_padding: int = 0

    def with_(self, **changes: object) -> QuantizedCase:
        """Other queries, tables, contexts."""
        return replace(self, plain=self.plain.with_(**changes))

    @property
    def exact(self) -> PagedCase:
        """The same in float64: queries transformed, caches dequantised without a rounding."""
        q = self.plain.q.double()
        q = hadamard_transform(q, self.hadamard_scale) if self.hadamard_scale else q
        caches = {name: dequantized(getattr(self, name), self.form) for name in ("k_cache", "v_cache")}
        return self.plain.with_(q=q, **caches)

    def truth_and_bound(self) -> tuple[Tensor, Tensor]:
        """As of 16-bit caches, and what dequantising adds.

        Let u = 2^-24. Scales add a rounding to each lane's part of a score and to each weight: u S and u. The
        transform has seven stages and a product, each √2 or 1 times an orthogonal map that errs by u in the 2-norm: the
        score by 8 u |scale| ‖q‖ ‖k‖ (Cauchy and Schwarz). Numerator and denominator have them both. A weight times its
        scale is two halves in units of which the largest of them has at least 2^8: right within 2^-23 of itself, or
        2^-25 units. A group's largest number has at least half of the largest code.
        """
        exact = self.exact
        errors = relative_errors(exact)
        for s in range(len(errors)):
            table, size = exact.block_table, exact.k_cache.shape[1]
            k = gather(exact.k_cache, table[s], 0, context_of(exact.context_lens, s, table, size))[0]
            if k.shape[1]:
                norms = exact.q[s].norm(dim=-1) * k.norm(dim=-1).amax(-1).repeat_interleave(exact.heads.group)
                errors[s] += 2 * ((9 if self.hadamard_scale else 1) * abs(exact.scale) * norms + 2) * _UNIT
        truth, bound = truth_and_bound(exact, errors)
        groups = exact.v_cache.abs().unflatten(-1, (-1, self.form.cast.group))
        highest = groups.amax(-1, keepdim=True).expand_as(groups).flatten(-2)
        most = exact.block_table.shape[1] * exact.k_cache.shape[1]
        tokens = exact.context_lens.clamp(min=0, max=most)[:, None, None]
        return truth, bound + paged_attention(*exact.with_(v_cache=highest).arguments) * tokens * 2.0**-32


def dequantized(cache: Tensor, form: KVCacheFormat) -> Tensor:
    """Codes times scales: float64 `[num_blocks, block_size, heads, head_dim]`."""
    data, scales = form.views(cache)
    numbers = decode_e4m3(data) if form.cast.values == "e4m3" else decode_e2m1(unpack_pairs(data))
    units = decode_scales(scales, form.cast.scales).double()
    return (numbers.double().unflatten(-1, (units.shape[-1], -1)) * units[..., None]).flatten(-2)


def quantized(rows: Tensor, form: KVCacheFormat) -> Tensor:
    """A cache that holds these rows, `[num_blocks, block_size, heads, head_dim]`, and 255 between them."""
    cache = form.new(len(rows)).fill_(255)
    for place, bytes_ in zip(
        form.views(cache), quantize_groups(rows.float(), form.cast.values, form.cast.group, form.cast.scales),
        strict=True,
    ):  # fmt: skip
        place.copy_(bytes_)
    return cache


def quantized_case(
    lens: Sequence[int],
    cast: CastArgs,
    heads: Heads = QWEN3,
    layout: Layout = "token_interleaved",
    *,
    alignment: int = 16,
    hadamard_scale: float = 0.0,
    block_padding: int = 0,
    **numbers: float | int | None,
) -> QuantizedCase:
    """`numbers` are options of `paged_case`."""
    plain = paged_case(lens, heads, **numbers)  # type: ignore[arg-type]
    return in_codes(plain, cast, layout, alignment, hadamard_scale, block_padding)


def in_codes(
    plain: PagedCase,
    cast: CastArgs,
    layout: Layout = "token_interleaved",
    alignment: int = 16,
    hadamard_scale: float = 0.0,
    block_padding: int = 0,
) -> QuantizedCase:
    """A case of 16-bit attention over what its keys, transformed, and values become in codes."""
    heads = plain.heads
    form = KVCacheFormat(cast, heads.head_dim, heads.kv_heads, heads.block_size, layout, alignment)
    k = plain.k_cache
    if hadamard_scale:
        k = hadamard_transform(k.float(), hadamard_scale).to(k.dtype)
    facts = plain.facts | {"form": form, "hadamard_scale": hadamard_scale}
    caches = quantized(k, form), quantized(plain.v_cache, form)
    return QuantizedCase(plain.with_(facts=facts), form, *caches, hadamard_scale, block_padding)


@dataclass(frozen=True)
class Call:
    """A case among guards on a backend's device."""

    some: QuantizedCase
    buffers: dict[str, Guarded]

    def __call__(self, backend: Backend, cut: Cut, workspace: Tensor, merge: str) -> Tensor:
        tensors = {name: buffer.tensor for name, buffer in self.buffers.items()}
        q = tensors.pop("q").unflatten(1, self.some.plain.q.shape[1:])
        form = self.some.form
        kind = (form.heads, form.cast.values, form.cast.group, form.cast.scales, list(form.strides))
        options = {"hadamard_scale": self.some.hadamard_scale, "merge": merge}
        out: Tensor = backend.op(NAME)(q, *tensors.values(), self.some.plain.scale, *kind, *cut, workspace, **options)
        return out


def place(backend: Backend, some: QuantizedCase) -> Call:
    plain = some.plain
    buffers = {
        "q": backend.place(plain.q.flatten(1), row_padding=plain.q_padding),
        "k_cache": backend.place(some.k_cache, row_padding=some.block_padding),
        "v_cache": backend.place(some.v_cache, row_padding=some.block_padding),
        "block_table": backend.place(plain.block_table, row_padding=1),
        "context_lens": backend.place(plain.context_lens),
    }
    return Call(some, buffers)


def attend(backend: Backend, some: QuantizedCase, cut: Cut = (16, 1), workspace: Guarded | None = None) -> Tensor:
    """Runs the operator by each merge that there is, on guarded copies, and holds it against the truth. `[b, Hq, D]`"""
    layout = layout_of(some.plain, cut[1])
    results = []
    truth, bound = some.truth_and_bound()
    for merge in merges(backend, cut[1]):
        room = workspace or backend.place(used_workspace(layout))
        with case(NAME, cut=cut, merge=merge, **some.plain.facts):
            call = place(backend, some)
            out = call(backend, cut, room.tensor, merge)
            assert (out.dtype, out.is_contiguous()) == (some.plain.heads.dtype, True)
            assert_within(out, truth, bound)
            for name, buffer in call.buffers.items():
                buffer.check_untouched(name)
            room.check_guards("workspace")
            assert not layout.parts(room.tensor).arrived.any(), "the counters are not 0 again"
            results.append(out)
    for other in results[1:]:
        assert_same_bits(other, results[0])
    return results[0]
