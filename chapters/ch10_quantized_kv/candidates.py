"""Everybody who takes part in chapter 10's benchmark: one launch, our own operators in turn, and PyTorch.

A set of operands holds heads of K and of V as Qwen3-0.6B has them, 8 each, a slice of the packed projection, and empty
caches of one format. An answer is right when the codes stand for what the unfused pipeline's codes stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.cache_formats import FP8, NVFP4
from qwen3_ref import functional
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, quantize_groups
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.building import Library
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.loading import using
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    RopeArgs,
    cos_sin_table,
    norm_rope_hadamard_quant_store,
    store_kv,
)
from qwen_cuda.testing.references import REFERENCES

OP = "norm_rope_hadamard_quant_store"
EPS, THETA, SCALE = 1e-6, 1e6, 128**-0.5
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 128, 16
LEAST_POSITIONS = 4096  # rows of cos_sin: one that fits into a cache whole would be no table of a model
FORMATS = {
    "fp8": KVCacheFormat(FP8, heads=KV_HEADS, block_size=BLOCK_SIZE),
    "fp8_sections": KVCacheFormat(FP8, heads=KV_HEADS, block_size=BLOCK_SIZE, layout="block_wide"),
    "nvfp4": KVCacheFormat(NVFP4, heads=KV_HEADS, block_size=BLOCK_SIZE),
}
# The largest step between neighbouring codes, as a part of the largest number: 448 − 416, and 6 − 4.
STEPS = {"e4m3": 1 / 14, "e2m1": 1 / 3}
# Who rounds between the stages, or adds in another order, may come to a neighbouring code, and to a neighbouring scale:
# twice the steps.
PEER_STEPS = 2.0


def work(tokens: int, name: str) -> Work:
    """The least traffic: K and V in, codes and scales out without padding; a row of cos_sin and two indices a token."""
    form = FORMATS[name]
    head = 2 * HEAD_DIM + form.data_bytes + form.scale_bytes
    nbytes = tokens * (2 * KV_HEADS * head + 4 * HEAD_DIM + 16) + 2 * HEAD_DIM
    return Work(OP, {"tokens": tokens, "kv_heads": KV_HEADS, "format": name}, "bfloat16", nbytes, bandwidth="copy")


def operands(tokens: int, name: str, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only: a sequence in blocks of any order, and empty caches."""
    form, num_blocks = FORMATS[name], -(-tokens // BLOCK_SIZE)
    table = cos_sin_table(max(tokens, LEAST_POSITIONS), THETA, device)

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)
        at_host = torch.Generator().manual_seed(number)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).bfloat16()

        first = int(torch.randint(len(table) - tokens + 1, (), generator=at_host))
        blocks = torch.randperm(num_blocks, generator=at_host).to(device)
        at = torch.arange(tokens, device=device)
        projection = normal(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        made = {
            "x": projection[:, HEADS * HEAD_DIM :].unflatten(1, (2 * KV_HEADS, HEAD_DIM)),
            "weight": normal(HEAD_DIM) * 0.25 + 1,
            "cos_sin": table.clone(),
            "positions": at + first,
            "slot_mapping": blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE,
            "k_cache": form.new(num_blocks, device),
            "v_cache": form.new(num_blocks, device),
        }
        room = torch.ones(2, work(tokens, name).bytes // 4, dtype=torch.bfloat16, device=device)
        return made | {"read": room[0], "written": room[1]}

    return make


def truth(name: str, of: Operands) -> Sequence[Tensor]:
    """Both caches as the unfused pipeline in PyTorch leaves them."""
    form, caches = FORMATS[name], [of["k_cache"].clone(), of["v_cache"].clone()]
    REFERENCES[OP](
        of["x"], norm_weight=of["weight"], eps=EPS, cos_sin=of["cos_sin"], positions=of["positions"],
        hadamard_scale=SCALE, values=form.cast.values, group=form.cast.group, scale_format=form.cast.scales,
        k_cache=caches[0], v_cache=caches[1], slot_mapping=of["slot_mapping"], cache_layout=list(form.strides),
    )  # fmt: skip
    return caches


def error(name: str, got: Tensor, truth: Tensor) -> Tensor:
    """How far what the codes stand for is from what it should be, in the largest steps of a code in its group."""
    form = FORMATS[name]
    back, want = (
        dequantize_groups(*form.views(cache), form.cast.values, form.cast.scales)
        .double()
        .unflatten(-1, (-1, form.cast.group))
        for cache in (got, truth)
    )
    step = want.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) * STEPS[form.cast.values]
    return (back - want).abs() / step


def ours(name: str) -> Variant:
    """One launch; not a code may be another one."""
    return Variant("ours", partial(_ours, name), ulps=0.0, error=partial(error, name))


def ladder(name: str) -> Iterator[Variant]:
    """Our operator, pointed at each step's kernel."""
    for library in step_libraries():
        step = library.name.partition("_")[0]
        inside = partial(using, library)
        yield Variant("ours", partial(_ours, name), step, ulps=0.0, inside=inside, error=partial(error, name))


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(Path(__file__).with_name("steps").glob("v*.cu"))]


def unfused(name: str) -> Variant:
    """Our operators in turn: norm and rotation, Hadamard transform, two stores. The heads are rounded in between."""
    return Variant("ours_unfused", partial(_unfused, name), ulps=PEER_STEPS, error=partial(error, name))


def eager(name: str) -> Variant:
    return Variant("torch_eager", partial(_eager, name), ulps=PEER_STEPS, peer=True, error=partial(error, name))


def copy_of_the_bytes() -> Variant:
    """The driver's copy of as many bytes as go in and out, half of them read: a yardstick."""
    return Variant("copy", _copy, ulps=0.0, truth=lambda of: [of["read"].double()])


def everybody(name: str) -> Iterator[Variant]:
    yield ours(name)
    yield unfused(name)
    yield eager(name)


def _ours(name: str, of: Operands) -> list[Tensor]:
    form = FORMATS[name]
    to = KVCacheOut(of["k_cache"], of["slot_mapping"], form, of["v_cache"])
    norm, rope = NormArgs(of["weight"], EPS), RopeArgs(of["positions"], of["cos_sin"])
    norm_rope_hadamard_quant_store(of["x"], norm, rope, HadamardArgs(SCALE), form.cast, to)
    return [of["k_cache"], of["v_cache"]]


def _unfused(name: str, of: Operands) -> list[Tensor]:
    k, v = of["x"].split(KV_HEADS, dim=1)
    turned = norm_rope_hadamard_quant_store(k, NormArgs(of["weight"], EPS), RopeArgs(of["positions"], of["cos_sin"]))
    turned = norm_rope_hadamard_quant_store(turned, hadamard=HadamardArgs(SCALE))  # type: ignore[arg-type]
    for cache, heads in ((of["k_cache"], turned), (of["v_cache"], v)):
        store_kv(heads, KVCacheOut(cache, of["slot_mapping"], FORMATS[name]))  # type: ignore[arg-type]
    return [of["k_cache"], of["v_cache"]]


def _eager(name: str, of: Operands) -> list[Tensor]:
    """Operation by operation, in float32 where PyTorch's own modules round, and an indexed write."""
    form = FORMATS[name]
    k, v = of["x"].float().split(KV_HEADS, dim=1)
    cos, sin = of["cos_sin"][of["positions"]][:, None].chunk(2, dim=-1)
    k = functional.apply_rope(functional.rms_norm(k, of["weight"].float(), EPS, "fused"), cos, sin)
    k = hadamard_transform(k, SCALE)
    block, place = of["slot_mapping"] // BLOCK_SIZE, of["slot_mapping"] % BLOCK_SIZE
    for cache, heads in ((of["k_cache"], k), (of["v_cache"], v)):
        codes = quantize_groups(heads.bfloat16().float(), form.cast.values, form.cast.group, form.cast.scales)
        for rows, bytes_ in zip(form.views(cache), codes, strict=True):
            rows[block, place] = bytes_
    return [of["k_cache"], of["v_cache"]]


def _copy(of: Operands) -> list[Tensor]:
    return [of["written"].copy_(of["read"])]
