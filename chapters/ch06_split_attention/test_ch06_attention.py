"""The backends of paged_attention by their names, and what is said of those that are not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch05_grouped_attention.candidates import vllm_caches
from chapters.ch05_grouped_attention.paged_cases import (
    BF16,
    FP16,
    Heads,
    PagedCase,
    assert_within,
    paged_case,
    truth_and_bound,
    widened,
)
from chapters.ch06_split_attention import backends
from chapters.ch06_split_attention.attention import backend_names, paged_attention, unavailable
from chapters.ch06_split_attention.backends import Call, flashinfer_tables, flashinfer_wrapper, vllm_run
from chapters.ch06_split_attention.dispatch import Plan
from qwen3_ref import paged
from qwen_cuda.benchmarking.peers import Vllm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OURS = {"auto", "grouped", "split", "reference"}
CASES = [
    paged_case((0, 1, 37, 130), Heads(kv_heads=2, group=2), seed=1),
    paged_case((64, 20), Heads(kv_heads=1, group=7, head_dim=64, block_size=32, dtype=FP16), seed=2),
]


def on(device: torch.device, some: PagedCase) -> list[Any]:
    return [x.to(device) if isinstance(x, Tensor) else x for x in some.arguments]


def peer_bound(some: PagedCase) -> Tensor:
    """Peers round weights, and perhaps scores of size up to 8, to 16 bits before the product with V."""
    exact = widened(some)
    size = paged.paged_attention(*exact.with_(v_cache=exact.v_cache.abs()).arguments)
    return truth_and_bound(some)[1] + 16 * torch.finfo(some.heads.dtype).eps * size


@pytest.mark.parametrize("name", backend_names())
def test_every_backend_gives_the_same_attention(name: str) -> None:
    if reason := unavailable(name):
        pytest.skip(reason)
    for some in CASES:
        if name == "vllm" and some.heads.block_size > 32:
            continue
        out = paged_attention(*on(DEVICE, some), backend=name)
        bound = truth_and_bound(some)[1] if name in OURS else peer_bound(some)
        assert_within(out, truth_and_bound(some)[0], bound)


def test_sdpa_skips_and_cuts_as_ours_does() -> None:
    some = CASES[0]
    table_, lens = some.block_table.clone(), some.context_lens.clone()
    table_[2, 1], table_[3, 0], lens[0] = -1, 10**6, -5
    changed = some.with_(block_table=table_, context_lens=lens)
    out = paged_attention(*on(DEVICE, changed), backend="sdpa")
    assert_within(out, truth_and_bound(changed)[0], peer_bound(changed))
    full = paged_case((32, 48), some.heads, seed=3, spare=0)
    beyond = full.with_(block_table=full.block_table[1:], context_lens=torch.tensor([10**6]).int(), q=full.q[1:])
    out = paged_attention(*on(DEVICE, beyond), backend="sdpa")
    assert_within(out, truth_and_bound(beyond)[0], peer_bound(beyond))


def test_a_name_that_is_none_is_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"^backend is 'fast'; it must be one of auto, grouped, split, reference, sdpa,"
    ):
        paged_attention(*on(DEVICE, CASES[0]), backend="fast")


def test_a_library_that_is_missing_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backends, "vllm", lambda: "vLLM's operators are left out: vllm is not installed.")
    for name, sentence in (
        ("flashinfer", "backend flashinfer is not there: install flashinfer-python, or choose auto."),
        ("vllm", "backend vllm is not there: vLLM's operators are left out: vllm is not installed."),
    ):
        assert unavailable(name) == sentence
        with pytest.raises(ValueError, match="is not there"):
            paged_attention(*CASES[0].arguments, backend=name)
    monkeypatch.setattr(backends, "vllm", lambda: Vllm(object(), "1.0"))
    assert unavailable("vllm") == "backend vllm is not there: 1.0 registers no paged_attention_v1."


def test_without_a_gpu_others_kernels_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    for name in ("flashinfer", "vllm"):
        assert unavailable(name) == f"backend {name} needs a GPU, and PyTorch sees none: choose auto."


class FakeFlashInfer:
    """FlashInfer's wrapper as it is documented: pages by indptr, indices and last_page_len; layout NHD."""

    class BatchDecodeWithPagedKVCacheWrapper:
        def __init__(self, workspace: Tensor, layout: str) -> None:
            assert (workspace.dtype, layout) == (torch.uint8, "NHD")

        def plan(
            self,
            indptr: Tensor,
            indices: Tensor,
            last: Tensor,
            heads: int,
            kv_heads: int,
            dim: int,
            size: int,
            **more: Any,
        ) -> None:
            assert {indptr.dtype, indices.dtype, last.dtype} == {torch.int32}
            assert bool(((last >= 1) & (last <= size)).all())
            self.tables, self.shape, self.more = (indptr, indices, last), (heads, kv_heads, dim, size), more

        def run(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
            indptr, indices, last = self.tables
            heads, kv_heads, dim, size = self.shape
            assert q.is_contiguous()
            assert q.shape[1:] == (heads, dim)
            assert caches[0].shape[1:] == (size, kv_heads, dim)
            rows = []
            for s in range(q.shape[0]):
                pages = indices[int(indptr[s]) : int(indptr[s + 1])]
                length = torch.tensor([(len(pages) - 1) * size + int(last[s])])
                rows.append(paged.paged_attention(q[s : s + 1], *caches, pages[None], length, self.more["sm_scale"]))
            return torch.cat(rows)


def test_tables_for_flashinfer_hold_the_pages_of_each_sequence() -> None:
    table_ = torch.tensor([[4, 5, -1], [7, -1, -1], [1, 2, 3], [9, -1, -1]], dtype=torch.int32)
    tables = flashinfer_tables(table_, torch.tensor([9, 0, 24, 8], dtype=torch.int32), block_size=8)
    assert tables.indptr.tolist() == [0, 2, 3, 6, 7]
    assert tables.indices.tolist() == [4, 5, 0, 1, 2, 3, 9]
    assert tables.last_page_len.tolist() == [1, 1, 8, 8]


def test_what_ours_skip_is_refused_for_peers() -> None:
    """Their kernels would read there."""
    some = CASES[0]
    table_, lens = some.block_table.clone(), some.context_lens.clone()
    table_[3, 2], lens[1] = -1, 10**6
    for changed, sentence in (
        (some.with_(block_table=table_), r"^block_table\[3, 2\] is -1; the cache has blocks 0 to "),
        (some.with_(context_lens=lens), r"^context_lens\[1\] is 1000000; it must be 0 to "),
    ):
        call = Call(*changed.arguments)
        with pytest.raises(ValueError, match=sentence):
            flashinfer_wrapper(call, FakeFlashInfer)
        with pytest.raises(ValueError, match=sentence):
            vllm_run(Vllm(FakeVllm, "fake"), call)


def test_flashinfer_is_called_as_it_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "FLASHINFER_BYTES", 16)
    monkeypatch.setattr(backends.importlib, "import_module", lambda name: FakeFlashInfer)
    for some in CASES:
        call = Call(*some.arguments)
        out = backends._flashinfer(call, Plan(16, 1), None)
        assert_within(out, *truth_and_bound(some))
        assert flashinfer_wrapper(call, FakeFlashInfer).more["q_data_type"] == some.heads.dtype


class FakeVllm:
    """vLLM's paged_attention_v1, with its arguments and its layouts of K and V."""

    @staticmethod
    def paged_attention_v1(
        out: Tensor, q: Tensor, k: Tensor, v: Tensor, kv_heads: int, scale: float, *rest: Any
    ) -> None:
        table_, lens, block_size, longest, alibi, kind, k_scale, v_scale, *others = rest
        assert (alibi, kind, float(k_scale), float(v_scale), others) == (None, "auto", 1.0, 1.0, [0, 0, 0, 64, 0])
        assert k.shape[1:] == (kv_heads, q.shape[2] // 8, block_size, 8)
        assert v.shape[1:] == (kv_heads, q.shape[2], block_size)
        assert int(lens.max()) <= longest
        keys = k.permute(0, 3, 1, 2, 4).reshape(len(k), block_size, kv_heads, q.shape[2])
        out.copy_(paged.paged_attention(q, keys, v.permute(0, 3, 1, 2), table_, lens, scale))


def test_vllm_gets_its_own_layout_of_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Vllm(FakeVllm, "fake")
    monkeypatch.setattr(backends, "vllm", lambda: peer)
    for some in CASES:
        assert_within(vllm_run(peer, Call(*some.arguments)), *truth_and_bound(some))
        assert_within(backends._vllm(Call(*some.arguments), Plan(16, 1), None), *truth_and_bound(some))


def test_vllms_layout_holds_the_same_numbers() -> None:
    cache = torch.arange(2 * 16 * 3 * 64).view(2, 16, 3, 64).to(BF16)
    k, v = vllm_caches(cache, cache)
    for block, slot, head, dim in ((0, 0, 0, 0), (1, 5, 2, 63), (0, 15, 1, 17)):
        assert k[block, head, dim // 8, slot, dim % 8] == cache[block, slot, head, dim]
        assert v[block, head, dim, slot] == cache[block, slot, head, dim]
