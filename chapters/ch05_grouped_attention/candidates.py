"""Who takes part in the benchmarks of attention: our kernels, the steps of the ladder, and the peers.

A set of operands holds `q: [b, Hq, D]`, `k_cache, v_cache: [num_blocks, block_size, Hkv, D]`, `block_table`,
`context_lens`; for peers the same keys and values as `k_dense, v_dense: [b, Hkv, t, D]` and `k_vllm, v_vllm` in vLLM's
layout; and `out: [b, Hq, D]`, for those who write into a given tensor. All contexts of a set have one length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from qwen3_ref.paged import gather, paged_attention
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.building import Library
from qwen_cuda.loading import using

STEPS = Path(__file__).with_name("steps")
BLOCK_SIZE = 16
ULPS = 1.0  # half an ulp for the one rounding; values are 0.5 to 1.5, so that results do not cancel
PEER_ULPS = 4.0  # peers round the weights to 16 bits before the product with V


@dataclass(frozen=True)
class Shape:
    """A batch of contexts of one length. By default the heads of Qwen3-0.6B."""

    context: int
    batch: int = 1
    query_heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    block_size: int = BLOCK_SIZE
    dtype: torch.dtype = torch.bfloat16

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def heads(self) -> str:
        """As results name it: query and KV heads, and their size."""
        return f"{self.query_heads}/{self.kv_heads} × {self.head_dim}"

    @property
    def pages(self) -> int:
        """Of one sequence."""
        return -(-self.context // self.block_size)

    def __str__(self) -> str:
        return f"{self.batch} × {self.context}, heads {self.heads}, {str(self.dtype).removeprefix('torch.')}"


def work(op: str, shape: Shape) -> Work:
    """The least traffic: K and V of the contexts and q are read, out is written."""
    numbers = 2 * shape.batch * (shape.context * shape.kv_heads + shape.query_heads) * shape.head_dim
    sizes: dict[str, int | str] = {"context": shape.context, "batch": shape.batch, "heads": shape.heads}
    if shape.block_size != BLOCK_SIZE:
        sizes["block_size"] = shape.block_size
    flops = 4 * shape.batch * shape.context * shape.query_heads * shape.head_dim
    return Work(op, sizes, str(shape.dtype).removeprefix("torch."), numbers * shape.dtype.itemsize, flops)


def operands(shape: Shape, device: torch.device, peers: bool) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only; the pages of each sequence lie in a shuffled order."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def normal(*size: int) -> Tensor:
            return torch.empty(size, device=device).normal_(generator=generator)

        count = shape.batch * shape.pages
        cache = (count, shape.block_size, shape.kv_heads, shape.head_dim)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1))  # one table for all sets: peers plan
        made = {
            "q": normal(shape.batch, shape.query_heads, shape.head_dim).to(shape.dtype),
            "k_cache": normal(*cache).to(shape.dtype),
            "v_cache": (torch.empty(cache, device=device).uniform_(0.5, 1.5, generator=generator)).to(shape.dtype),
            "block_table": order.view(shape.batch, shape.pages).int().to(device),
            "context_lens": torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device),
            "out": torch.full((shape.batch, shape.query_heads, shape.head_dim), torch.nan, device=device).to(
                shape.dtype
            ),
        }
        if peers:
            for name in ("k", "v"):
                rows = [gather(made[f"{name}_cache"], row, 0, shape.context) for row in made["block_table"]]
                made[f"{name}_dense"] = torch.cat(rows).contiguous()
            made["k_vllm"], made["v_vllm"] = vllm_caches(made["k_cache"], made["v_cache"])
        return made

    return make


def vllm_caches(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Our caches in the layout of vLLM's paged_attention_v1, copied.

    K: `[num_blocks, Hkv, D / x, block_size, x]`, x = 16 bytes of elements; V: `[num_blocks, Hkv, D, block_size]`.
    """
    x = 16 // k_cache.element_size()
    num_blocks, block_size, kv_heads, head_dim = k_cache.shape
    k = k_cache.view(num_blocks, block_size, kv_heads, head_dim // x, x).permute(0, 2, 3, 1, 4).contiguous()
    return k, v_cache.permute(0, 2, 3, 1).contiguous()


def inputs(of: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return of["q"], of["k_cache"], of["v_cache"], of["block_table"], of["context_lens"]


def truth(shape: Shape, of: Operands) -> Sequence[Tensor]:
    """The answer in float64, on the operands' device."""
    q, k_cache, v_cache, table, lens = inputs(of)
    return [paged_attention(q.double(), k_cache.double(), v_cache.double(), table, lens, shape.scale)]


def grouped(shape: Shape) -> Variant:
    return Variant("ours", partial(_grouped, shape), ulps=ULPS)


def ladder(shape: Shape) -> Iterator[Variant]:
    """Each step: our operator, pointed at the step's kernel."""
    for library in step_libraries():
        step = library.name.partition("_")[0]
        yield Variant("ours", partial(_grouped, shape), step, ULPS, inside=partial(using, library))


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def peers(shape: Shape, vllm: Vllm | None, on_gpu: bool) -> Iterator[Variant]:
    """PyTorch on dense keys and values, which it need not look up in a table; and vLLM on its own layout."""
    of_peer = partial(Variant, ulps=ULPS + PEER_ULPS, peer=True)
    yield of_peer("sdpa", partial(_sdpa, shape, None))
    if on_gpu:
        yield of_peer("sdpa_cudnn", partial(_sdpa, shape, SDPBackend.CUDNN_ATTENTION))
    if vllm is not None and hasattr(vllm.ops, "paged_attention_v1"):
        yield of_peer("vllm_v1", partial(_vllm, shape, vllm))


def run_vllm(
    vllm: Vllm, out: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, lens: Tensor, scale: float, longest: int
) -> Tensor:
    """paged_attention_v1 into `out`; `k, v` are of `vllm_caches`, no context is longer than `longest`."""
    one = torch.ones((), device=q.device)
    kv_heads, block_size = k.shape[1], k.shape[3]
    vllm.ops.paged_attention_v1(
        out, q, k, v, kv_heads, scale, table, lens, block_size, longest, None, "auto", one, one, 0, 0, 0, 64, 0
    )
    return out


def _grouped(shape: Shape, of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.paged_attention_grouped(*inputs(of), shape.scale)]


def _sdpa(shape: Shape, only: SDPBackend | None, of: Operands) -> list[Tensor]:
    def attend() -> Tensor:
        return scaled_dot_product_attention(
            of["q"][:, :, None], of["k_dense"], of["v_dense"], scale=shape.scale, enable_gqa=True
        )

    if only is None:
        return [attend()[:, :, 0]]
    with sdpa_kernel(only):
        return [attend()[:, :, 0]]


def _vllm(shape: Shape, vllm: Vllm, of: Operands) -> list[Tensor]:
    tables = of["block_table"], of["context_lens"]
    return [run_vllm(vllm, of["out"], of["q"], of["k_vllm"], of["v_vllm"], *tables, shape.scale, shape.context)]
