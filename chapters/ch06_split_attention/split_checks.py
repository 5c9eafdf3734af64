"""What chapter 6 promises of split attention and of the merge, each promise a function of the backend to keep it.

Whatever chapter 5 promises holds for any cut of the contexts, too; and the partials are right one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.grouped_checks import GROUPS, QWEN3, RAGGED
from chapters.ch05_grouped_attention.paged_cases import (
    BF16,
    FP16,
    Heads,
    PagedCase,
    assert_within,
    paged_case,
    place,
    relative_errors,
    truth_and_bound,
    widened,
)
from chapters.ch06_split_attention.split_cases import Cut, layout_of, merges, used_workspace
from qwen_cuda.attention_workspace import WorkspaceLayout, WorkspaceParts, partition_tokens
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.references import REFERENCES, oracle
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp

CUTS: tuple[Cut, ...] = ((16, 1), (16, 2), (16, 40), (32, 3), (48, 5), (128, 2), (256, 17))


def split(backend: Backend, some: PagedCase, cut: Cut, workspace: Guarded | None = None) -> Tensor:
    """Runs `paged_attention_split`, by each merge that there is: one result. → `[b, Hq, D]`."""
    first, *others = (split_by(backend, some, cut, merge, workspace) for merge in merges(backend, cut[1]))
    for other in others:
        assert_same_bits(other, first)
    return first


def split_by(backend: Backend, some: PagedCase, cut: Cut, merge: str, workspace: Guarded | None) -> Tensor:
    """Runs it once, and holds the result against the truth."""
    layout = layout_of(some, cut[1])
    workspace = workspace or backend.place(used_workspace(layout))
    with case("paged_attention_split", partition_size=cut[0], partitions=cut[1], merge=merge, **some.facts):
        placed = place(backend, some)
        out: Tensor = backend.op("paged_attention_split")(*placed.arguments, *cut, workspace.tensor, merge=merge)
        assert (out.dtype, out.is_contiguous()) == (some.heads.dtype, True)
        assert_within(out, *truth_and_bound(some))
        placed.check_untouched()
        workspace.check_guards("workspace")
        assert not layout.parts(workspace.tensor).arrived.any(), "the counters are not 0 again"
    return out


def partials(backend: Backend, some: PagedCase, cut: Cut) -> Tensor:
    """Runs `paged_attention_partials` and `merge_partitions`; each partial is held against float64. → `[b, Hq, D]`."""
    layout = layout_of(some, cut[1])
    workspace = backend.place(used_workspace(layout))
    with case("paged_attention_partials", partition_size=cut[0], partitions=cut[1], **some.facts):
        placed = place(backend, some)
        backend.op("paged_attention_partials")(*placed.arguments, *cut, workspace.tensor)
        placed.check_untouched()
        workspace.check_guards("workspace")
        check_parts(layout.parts(workspace.tensor.cpu()), some, cut)
    with case("merge_partitions", partition_size=cut[0], partitions=cut[1], **some.facts):
        out = backend.place(torch.full_like(some.q, torch.nan))
        before = workspace.tensor.clone()
        backend.op("merge_partitions")(workspace.tensor, out.tensor, cut[1])
        assert_within(out.tensor, *truth_and_bound(some))
        assert_same_bits(workspace.tensor, before)
        out.check_guards("out")
    return out.tensor


def check_parts(got: WorkspaceParts, some: PagedCase, cut: Cut) -> None:
    """m, l and o of each partition; where there are no tokens m = −inf, l = 0, and o may be anything."""
    exact, layout = widened(some), layout_of(some, cut[1])
    parts = []
    for cache in (exact.v_cache, exact.v_cache.abs()):
        store = torch.zeros(layout.size, dtype=torch.float64)
        REFERENCES["paged_attention_partials"](*exact.with_(v_cache=cache).arguments, *cut, store)
        parts.append(layout.parts(store))
    (o, m, l, _), size = parts[0], parts[1].o  # noqa: E741 - the letter of the literature
    empty = l == 0
    assert torch.equal(got.l.double() == 0, empty), "l is 0 where there are tokens, or not 0 where there are none"
    assert bool((got.m[empty] == -torch.inf).all()), "m of an empty partition is not -inf"
    assert bool(got.m[~empty].isfinite().all())
    shift = torch.where(empty, 0.0, got.m.double() - m)  # in the unit of the true maximum everything is comparable
    errors = relative_errors(some)[:, :, None].expand_as(l)
    assert_within(torch.where(empty, 0.0, shift), torch.zeros_like(m), errors * 2)
    unit = torch.exp2(shift)
    assert_within(got.l.double() * unit, l, errors * l)
    assert_within(
        torch.where(empty[..., None], 0.0, got.o.double() * unit[..., None]),
        torch.where(empty[..., None], 0.0, o),
        errors[..., None] * size,
    )


def check_any_cut_gives_the_answer(backend: Backend) -> None:
    """Partitions of any size and number: empty ones, one token, a single one; the same bits in one launch and two."""
    some = paged_case((0, 1, 15, 16, 17, 33, 333), Heads(kv_heads=1, group=2), seed=21)
    for cut in CUTS:
        assert_same_bits(split(backend, some, cut), partials(backend, some, cut))


def check_splits_of_groups_and_head_dims(backend: Backend) -> None:
    """Every size of group and of head, in a ragged batch."""
    for head_dim in (64, 128):
        for group in GROUPS:
            heads = Heads(kv_heads=2 if group < 5 else 1, group=group, head_dim=head_dim, dtype=(BF16, FP16)[group % 2])
            some = paged_case((37, 0, 70), heads, seed=group)
            assert_same_bits(split(backend, some, (16, 4)), partials(backend, some, (16, 4)))


def check_contexts_beyond_the_grid(backend: Backend) -> None:
    """A graph for 2 · 32 tokens serves longer contexts: the partitions grow. Also by one token."""
    some = paged_case((64, 65, 96, 97, 400), Heads(kv_heads=1, group=2), seed=22)
    for cut in ((32, 2), (16, 3), (16, 7)):
        assert_same_bits(split(backend, some, cut), partials(backend, some, cut))


def check_partition_tokens(backend: Backend) -> None:
    """What Python says of the cut is what the kernel does: m of each partition is that of its tokens."""
    some = paged_case((200,), Heads(kv_heads=1, group=1), seed=23)
    positions = torch.arange(200)
    k_cache = some.k_cache.clone()
    for t in positions.tolist():
        k_cache[some.block_table[0, t // 16], t % 16] = (t + 1) / 128
    rising = some.with_(k_cache=k_cache, q=torch.ones_like(some.q), scale=1.0)
    for cut in ((16, 20), (48, 3), (16, 3)):
        layout = layout_of(some, cut[1])
        workspace = used_workspace(layout).to(backend.device)
        backend.op("paged_attention_partials")(*place(backend, rising).arguments, *cut, workspace)
        size = partition_tokens(200, *cut)
        ends = [min((p + 1) * size, 200) for p in range(-(-200 // size))]
        m = layout.parts(workspace.cpu()).m[0, 0, : len(ends)] * torch.tensor(2.0).log()
        torch.testing.assert_close(m, torch.tensor(ends, dtype=torch.float32), rtol=1e-2, atol=0)


def check_a_partition_of_bad_blocks(backend: Backend) -> None:
    """Where the table names no block of the cache for a whole partition, that partition is empty."""
    some = paged_case((100, 100, 30), QWEN3, seed=24)
    table = some.block_table.clone()
    table[0, 2:4], table[1, 0], table[2] = -1, some.k_cache.shape[0], 2**31 - 1
    skipped = some.with_(block_table=table)
    for cut in ((32, 4), (16, 7)):
        out = split(backend, skipped, cut)
        assert_same_bits(out, partials(backend, skipped, cut))
        assert not out[2].any()


def check_maximum_in_any_partition(backend: Backend) -> None:
    """Partitions whose maxima lie 2000 apart: one outweighs all others, which are rescaled to nothing."""
    for spread in (1.0, 30.0, 100.0):
        some = paged_case((150, 90), Heads(kv_heads=1, group=2), seed=25, spread=spread)
        for cut in ((16, 10), (64, 2)):
            split(backend, some, cut)
    some = paged_case((160,), Heads(kv_heads=1, group=4), seed=26)
    for order in (range(10), range(9, -1, -1)):
        k_cache = some.k_cache.clone()
        for page, height in enumerate(order):
            k_cache[some.block_table[0, page]] = 20 * height / 128
        split(backend, some.with_(k_cache=k_cache, q=torch.ones_like(some.q), scale=1.0), (16, 10))


def check_a_workspace_serves_many_calls(backend: Backend) -> None:
    """One workspace, contexts that grow and shrink, as in decoding: what a call leaves does not reach the next."""
    layout = layout_of(paged_case((1, 1), QWEN3), 4)
    workspace = backend.place(layout.new("cpu"))
    for seed, lens in enumerate(((5, 60), (64, 0), (1, 17), (200, 33), (0, 0), (16, 16))):
        split(backend, paged_case(lens, QWEN3, seed=seed), (16, 4), workspace)


def check_one_partition_is_the_whole(backend: Backend) -> None:
    """A context of one partition gives the bits of `paged_attention_grouped`."""
    if backend.offers("paged_attention_grouped"):
        some = paged_case(RAGGED, QWEN3, seed=27)
        whole = backend.op("paged_attention_grouped")(*place(backend, some).arguments)
        for cut in ((256, 1), (256, 3), (16, 1)):
            assert_same_bits(split(backend, some, cut), whole)


def check_split_bits_do_not_depend_on_company(backend: Backend) -> None:
    """Twice the same; alone and in a batch the same; with partitions to spare the same."""
    lens, cut = (90, 7, 300), (32, 6)
    some = paged_case(lens, QWEN3, seed=28)
    batch = split(backend, some, cut)
    assert_same_bits(split(backend, some, cut), batch)
    assert_same_bits(split(backend, paged_case(lens, QWEN3, seed=28, shuffle=3, spare=7), cut), batch)
    for s in range(3):
        rows = slice(s, s + 1)
        alone = some.with_(q=some.q[rows], block_table=some.block_table[rows], context_lens=some.context_lens[rows])
        assert_same_bits(split(backend, alone, cut), batch[rows])
    short = some.with_(q=some.q[:2], block_table=some.block_table[:2], context_lens=some.context_lens[:2])
    assert_same_bits(split(backend, short, (32, 50)), batch[:2])


def check_split_nan_stays_with_its_head(backend: Backend) -> None:
    """A NaN in a key or value of one partition reaches the result, and nobody else's."""
    some = paged_case((40, 150), QWEN3, seed=29)
    cut = (16, 10)
    clean = split(backend, some, cut)
    for name, spoilt in (("k_cache", 128), ("v_cache", 1)):
        cache = getattr(some, name).clone()
        cache[some.block_table[1, 5], 3, 1, 70] = torch.nan
        workspace = layout_of(some, cut[1]).new(backend.device)
        arguments = place(backend, some.with_(**{name: cache})).arguments
        out = backend.op("paged_attention_split")(*arguments, *cut, workspace)
        assert int(out[1, 2:].isnan().sum()) == int(out.isnan().sum()) == 2 * spoilt
        whole = ~out.isnan()
        whole[1, 2:] = False
        assert_same_bits(out[whole], clean[whole])


def check_split_of_packed_queries(backend: Backend) -> None:
    """q as a part of packed QKV, and a negative or too long context, as for chapter 5's kernel."""
    some = paged_case((20, 64, 1), QWEN3, seed=30, spare=0).with_(q_padding=64)
    for lens in ([20, 64, 1], [-3, 2**31 - 1, 1]):
        changed = some.with_(context_lens=torch.tensor(lens, dtype=torch.int32))
        if lens[1] > 64:
            table = changed.block_table.clone()
            table[2, 1:] = -1
            changed = changed.with_(block_table=table)
        split(backend, changed, (16, 3))


def check_merge_of_any_partials(backend: Backend) -> None:
    """Given (m, l, o): maxima up to ±1e30 apart, empty ones with NaN in o, from one partition to many."""
    for partitions in (1, 2, 7, 8, 9, 40):
        for head_dim, dtype in ((64, BF16), (128, FP16)):
            layout = WorkspaceLayout(3, 4, 0, head_dim, partitions)
            generator = torch.Generator().manual_seed(partitions)
            workspace = torch.zeros(layout.size)
            parts = layout.parts(workspace)
            parts.o.normal_(generator=generator)
            parts.l.uniform_(0.5, 30.0, generator=generator)
            parts.o.mul_(parts.l[..., None]).add_(parts.l[..., None])  # a weighted mean that does not cancel
            parts.m.normal_(generator=generator)
            parts.m[1] *= 1e30
            parts.m[2] *= 300
            empty = torch.rand(parts.l.shape, generator=generator) < 0.4
            empty[0, 0] = True
            parts.m[empty], parts.l[empty], parts.o[empty] = -torch.inf, 0.0, torch.nan
            out = backend.place(torch.full((3, 4, head_dim), torch.nan, dtype=dtype))
            given = backend.place(workspace)
            truth = torch.zeros(3, 4, head_dim, dtype=torch.float64)
            REFERENCES["merge_partitions"](workspace.double(), truth, partitions)
            with case("merge_partitions", partitions=partitions, head_dim=head_dim, dtype=dtype):
                backend.op("merge_partitions")(given.tensor, out.tensor, partitions)
                assert not out.tensor[0, 0].any()
                # |m| 2^-24 in the exponent, at most 1200 2^-24: below 16-bit rounding. Elements of both signs cancel.
                assert_within_ulp(out.tensor, truth, 2.0)
                given.check_untouched("workspace")
                out.check_guards("out")


def check_arguments_are_read_only(backend: Backend) -> None:
    """`oracle` and the operator agree on the order of arguments, and the bindings on their kinds."""
    some = paged_case((20,), QWEN3, seed=31)
    layout = layout_of(some, 2)
    truth = oracle("paged_attention_split", *some.arguments, 16, 2, layout.new("cpu"))
    out = backend.op("paged_attention_split")(*place(backend, some).arguments, 16, 2, layout.new(backend.device))
    assert_within(out, truth, truth_and_bound(some)[1])


SPLIT_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_arguments_are_read_only,
    check_merge_of_any_partials,
    check_any_cut_gives_the_answer,
    check_contexts_beyond_the_grid,
    check_partition_tokens,
    check_a_partition_of_bad_blocks,
    check_maximum_in_any_partition,
    check_a_workspace_serves_many_calls,
    check_one_partition_is_the_whole,
    check_split_bits_do_not_depend_on_company,
    check_split_nan_stays_with_its_head,
    check_split_of_packed_queries,
    check_splits_of_groups_and_head_dims,
)
