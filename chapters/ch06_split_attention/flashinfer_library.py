"""FlashInfer's paged decode without its package: from a shared library in the folder that QWEN_PEERS names.

`libfi.so` is built from FlashInfer's headers and exports two C functions for bfloat16 heads of 128, two query heads a
KV head: `fi_plan` shares the pages out among blocks, `fi_run` launches. `Wrapper` gives them the interface of
`flashinfer.BatchDecodeWithPagedKVCacheWrapper`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIBRARY = "libfi.so"
GROUP, HEAD_DIM = 2, 128
FLOAT_BYTES, INT_BYTES = 128 * 2**20, 8 * 2**20  # of its two workspaces
INFO = 10  # numbers of a plan


class Sizes(NamedTuple):
    """What a plan is made for, besides the pages."""

    batch: int
    query_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


def library_path(env: Mapping[str, str] = os.environ) -> Path | None:
    """The library, where QWEN_PEERS names a folder that has it."""
    folder = env.get("QWEN_PEERS")
    path = Path(folder) / LIBRARY if folder else None
    return path if path and path.is_file() else None


def serves(sizes: Sizes) -> bool:
    """Whether the library was built for such heads."""
    own = (sizes.dtype, sizes.head_dim, sizes.query_heads) == (torch.bfloat16, HEAD_DIM, GROUP * sizes.kv_heads)
    return own and sizes.batch > 0


class Wrapper:
    """Planned once for the pages of a batch; `run` can be captured and launches one kernel or two.

    Raises:
        RuntimeError: the library refuses the plan, or does not serve these heads.
    """

    def __init__(
        self, library: Any, sizes: Sizes, indptr: Tensor, indices: Tensor, last_page_len: Tensor, scale: float,
        device: torch.device,
    ) -> None:  # fmt: skip
        if not serves(sizes):
            raise RuntimeError(f"{LIBRARY} serves bfloat16 heads of {HEAD_DIM}, {GROUP} to a KV head; not {sizes}.")
        self._library, self._sizes, self._scale = library, sizes, scale
        self._pages = tuple(tensor.int().to(device) for tensor in (indices, indptr, last_page_len))
        self._floats = torch.empty(FLOAT_BYTES, dtype=torch.uint8, device=device)
        self._ints = torch.zeros(INT_BYTES, dtype=torch.uint8, device=device)
        self._pinned = torch.zeros(INT_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._info = (ctypes.c_int64 * INFO)()
        begins = indptr.int().cpu().contiguous()
        size = ctypes.c_size_t(INT_BYTES)
        error = library.fi_plan(
            _pointer(self._floats), ctypes.c_size_t(FLOAT_BYTES), _pointer(self._ints), _pointer(self._pinned), size,
            self._info, _pointer(begins), *map(ctypes.c_uint32, (sizes.batch, sizes.query_heads, sizes.block_size)),
            ctypes.c_bool(True), _stream(device),
        )  # fmt: skip
        if error:
            raise RuntimeError(f"{LIBRARY} refuses to plan {sizes}: CUDA error {error}.")

    def run(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        """`q: [b, Hq, 128]`, caches `[num_blocks, block_size, Hkv, 128]` → `[b, Hq, 128]`."""
        out, sizes = torch.empty_like(q), self._sizes
        numbers = map(ctypes.c_uint32, (sizes.batch, sizes.query_heads, sizes.kv_heads, sizes.block_size))
        error = self._library.fi_run(
            _pointer(self._floats), _pointer(self._ints), self._info, _pointer(q), *map(_pointer, caches),
            *map(_pointer, self._pages), _pointer(out), *numbers, ctypes.c_float(self._scale), ctypes.c_bool(True),
            _stream(q.device),
        )  # fmt: skip
        if error:
            raise RuntimeError(f"{LIBRARY} refuses to run {sizes}: CUDA error {error}.")
        return out


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream(device: torch.device) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None)
