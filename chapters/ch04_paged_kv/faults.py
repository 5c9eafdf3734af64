"""Bugs planted into the ladder, and what simulator, operator and cache say. The lesson quotes it, the lab plays.

python -m chapters.ch04_paged_kv.faults sync            write the reports into README.md
python -m chapters.ch04_paged_kv.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from qwen3_ref import QWEN3_0_6B
from qwen_cuda.building import Edit, Library
from qwen_cuda.loading import using
from qwen_cuda.operators.qk_norm_rope_cache_write import (
    HEAD_DIM,
    check_indices,
    cos_sin_table,
    qk_norm_rope_cache_write,
)
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEP = HERE / "steps" / "v3_warp_per_head.cu"
EPS, THETA = 1e-6, 1e6
HEADS, KV_HEADS, BLOCK_SIZE = 2, 1, 16

# Both are in the header that all steps share; the steps themselves are as they were.
# --8<-- [start:faults]
FAULTS = {
    "minus_one": Edit(
        "cache_slot.cuh",
        "place.kept = place.known && 0 <= place.slot &&",
        "place.kept = place.known &&",
    ),
    "position": Edit(
        "cache_slot.cuh",
        "place.slot = index_at(a.slot_mapping, a.wide_slots, token);",
        "place.slot = place.position;",
    ),
}
# --8<-- [end:faults]


def broken(name: str) -> Library:
    """v3 with the bug of that name, in the simulator that checks every access."""
    return Library("sim", (STEP,), "checked", (FAULTS[name],))


def arguments(slots: list[int], num_blocks: int = 4, first: int = 0) -> dict[str, Any]:
    """Of the operator, for as many tokens as there are slots, from position `first` on, and empty caches."""
    generator = torch.Generator().manual_seed(0)
    qkv, q_weight, k_weight = (
        torch.randn(*shape, generator=generator).bfloat16()
        for shape in ((len(slots), (HEADS + 2 * KV_HEADS) * HEAD_DIM), (HEAD_DIM,), (HEAD_DIM,))
    )
    caches = [_cache(num_blocks) for _ in range(2)]
    return {
        "qkv": qkv,
        "q_weight": q_weight,
        "k_weight": k_weight,
        "cos_sin": cos_sin_table(256, THETA),
        "positions": torch.arange(first, first + len(slots)),
        "slot_mapping": torch.tensor(slots),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "eps": EPS,
        "num_heads": HEADS,
    }


def _cache(num_blocks: int) -> Tensor:
    """Zeros with nobody else's memory near: a report then names the cache, and no neighbour by chance."""
    used = num_blocks * BLOCK_SIZE * KV_HEADS * HEAD_DIM
    whole = torch.zeros(3 * used, dtype=torch.bfloat16)
    return whole[used : 2 * used].view(num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)


def run(library: Library, of: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The operator by the kernel of `library`, in the simulator; returns the caches, which it has written."""
    with using(library):
        torch.ops.qwen_sim.qk_norm_rope_cache_write(*of.values())
    return of["k_cache"], of["v_cache"]


def minus_one() -> str:
    """What the simulator says when slot −1 is taken for a slot."""
    return sentence_of(lambda: run(broken("minus_one"), arguments([-1])))


def full() -> str:
    """What a cache says that has not enough blocks for a prompt, and to a sequence that has been freed."""
    cache = PagedKVCache(QWEN3_0_6B, tokens=64, max_context=64)
    one, other = cache.allocate(), cache.allocate()
    cache.append([one], [40])
    said = sentence_of(lambda: cache.append([other], [20]))
    cache.free(one)
    try:
        cache.free(one)
    except ValueError as error:
        return f"{said}\n{error}"
    raise AssertionError("A sequence was freed twice.")


def refusals() -> str:
    """A few calls that the operator refuses, and how."""
    good = arguments([0, 1])
    changes: tuple[dict[str, object], ...] = (
        {"qkv": good["qkv"].float()},
        {"num_heads": 4},
        {"cos_sin": good["cos_sin"].bfloat16()},
        {"k_cache": good["k_cache"][:, :12]},
        {"v_cache": good["k_cache"]},
        {"qkv": good["qkv"].clone().requires_grad_()},
    )
    return "\n".join(sentence_of(partial(qk_norm_rope_cache_write, **good | change)) for change in changes)


def indices() -> str:
    """What the debugging check says of a slot that the cache does not have, and of one that two tokens have."""
    calls: tuple[Callable[[], None], ...] = (
        lambda: check_indices(torch.arange(2), torch.tensor([7, 64]), 256, 64),
        lambda: check_indices(torch.arange(2), torch.tensor([7, 7]), 256, 64),
    )
    said = []
    for call in calls:
        try:
            call()
        except IndexError as error:
            said.append(str(error))
    return "\n".join(said)


def exercise() -> str:
    """What the starter of the exercise says."""
    starter = Library("sim", (HERE / "exercise" / "qk_norm_rope_cache_write.cu",))
    return sentence_of(lambda: run(starter, arguments([0])))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {
        "full": full(),
        "minus_one": minus_one(),
        "refusals": refusals(),
        "indices": indices(),
        "exercise": exercise(),
    }


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
