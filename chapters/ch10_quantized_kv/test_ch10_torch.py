"""The operator as PyTorch sees it, and its public function: schema, compilation, results, threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch10_quantized_kv.combinations import Combination, casts
from chapters.ch10_quantized_kv.store_checks import KEYS, NVFP4
from chapters.ch10_quantized_kv.store_runs import NAME, Setting, assert_same, run, table, weight_of
from qwen3_ref.kv_quantization import dequantize_groups
from qwen_cuda.operators import (
    CastArgs,
    Contiguous,
    HadamardArgs,
    KVCacheFormat,
    KVCacheOut,
    NormArgs,
    RopeArgs,
    norm_rope_hadamard_quant_store,
    store_kv,
)
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

SETTING = Setting(KEYS)


def arguments(device: torch.device, tokens: int = 5) -> tuple[Tensor, dict[str, Any]]:
    """x and all that the operator may be given for K and V in caches."""
    positions, slots = SETTING.indices(tokens)
    tensors = {
        "norm_weight": weight_of(SETTING),
        "cos_sin": table(300, 128),
        "positions": positions,
        "out": torch.zeros(tokens, 4, 128, dtype=torch.bfloat16),
        "k_cache": KEYS.format.new(3),
        "v_cache": KEYS.format.new(3),
        "slot_mapping": slots,
    }
    flat: dict[str, Any] = {name: tensor.to(device) for name, tensor in tensors.items()}
    flat |= {"eps": 1e-6, "hadamard_scale": 0.1, "values": "e4m3", "group": 32, "scale_format": "ue8m0"}
    return SETTING.x(tokens).to(device), flat | {"stage": "norm", "cache_layout": list(KEYS.format.strides)}


def test_opcheck_of_the_store(registered_backend: Backend) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake fits, tracing works."""
    operator = registered_backend.namespace.norm_rope_hadamard_quant_store.default
    for tokens in (5, 0):
        x, flat = arguments(registered_backend.device, tokens)
        torch.library.opcheck(operator, (x,), flat)
    keys = {"out": None, "stage": "", "query_weight": flat["norm_weight"].clone()}
    torch.library.opcheck(operator, (x.repeat(1, 2, 1),), {**flat, **keys, "query_out": torch.empty_like(x)})


def test_a_compiled_store_has_the_bytes_of_eager_code(registered_backend: Backend) -> None:
    operator = getattr(registered_backend.namespace, NAME)
    x, flat = arguments(registered_backend.device)
    expected = {name: v.clone() if isinstance(v, Tensor) else v for name, v in flat.items()}
    operator(x, **expected)

    def store(x: Tensor, flat: dict[str, Any]) -> Tensor:
        operator(x, **flat)
        return flat["out"] + 1

    torch.compile(store, backend="aot_eager", fullgraph=True)(x, flat)
    for name in ("out", "k_cache", "v_cache"):
        assert_same_bits(flat[name], expected[name])


def test_the_store_refuses_gradients() -> None:
    x, flat = arguments(torch.device("cpu"))
    with pytest.raises(RuntimeError, match=rf"^{NAME}: an argument requires a gradient, .*; wrap the call in"):
        getattr(torch.ops.qwen_cuda, NAME)(x.requires_grad_(), **flat)


def test_heads_may_be_shared_out_among_threads() -> None:
    setting = Setting(KEYS, num_blocks=5)
    x, (positions, slots) = setting.x(61), setting.indices(61)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(Backend("cpu"), setting, x, positions, slots)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("cast", casts(), ids=str)
def test_codes_and_scales_come_in_their_dtypes(cast: CastArgs) -> None:
    """For one head as for several, in new tensors as in given ones. Read as their dtypes say, they are the numbers."""
    x = Setting(Combination(512), kind="wide").x(4)
    data, scales = norm_rope_hadamard_quant_store(x, cast=cast)  # type: ignore[misc]
    assert (data.dtype, scales.dtype) == (cast.data_dtype, cast.scale_dtype)
    assert data.shape == (4, 2, cast.data_bytes(512))
    assert scales.shape == (4, 2, 512 // cast.group)
    back = norm_rope_hadamard_quant_store(x, cast=CastArgs(cast.values, cast.group, cast.scales, cast_back=True))
    bytes_ = data.view(torch.uint8), scales.view(torch.uint8)
    assert_same_bits(back, dequantize_groups(*bytes_, cast.values, cast.scales).to(x.dtype))  # type: ignore[arg-type]
    if cast.values == "e4m3":
        numbers = data.float().unflatten(-1, (-1, cast.group)) * scales.float()[..., None]
        assert_same_bits(numbers.flatten(-2).to(x.dtype), back)  # type: ignore[arg-type]
    given = Contiguous(torch.zeros_like(data), torch.zeros_like(bytes_[1]))
    assert norm_rope_hadamard_quant_store(x, cast=cast, out=given) == (given.data, given.scales)
    assert_same("data", given.data, data)  # type: ignore[arg-type]
    one = norm_rope_hadamard_quant_store(x[:, 1], cast=cast)
    for part, whole in zip(one, (data, scales), strict=True):  # type: ignore[arg-type]
        assert_same("one head", part.view(torch.uint8), whole.view(torch.uint8)[:, 1])


def test_outputs_of_the_public_store() -> None:
    """A tensor as x, the given one, a stage beside the cache, or nothing; a slice of a projection will do for x."""
    positions, slots = SETTING.indices(5)
    projection = torch.randn(5, 6 * 128).bfloat16()
    x = projection[:, 256:].unflatten(1, (4, 128))
    norm, rope = NormArgs(weight_of(SETTING)), RopeArgs(positions, table(300, 128))
    fresh = norm_rope_hadamard_quant_store(x, norm, rope, HadamardArgs(128**-0.5))
    given = torch.empty(5, 4, 128, dtype=torch.bfloat16)
    assert norm_rope_hadamard_quant_store(x, norm, rope, HadamardArgs(128**-0.5), out=given) is given
    assert_same_bits(fresh, given)  # type: ignore[arg-type]
    form = KVCacheFormat(NVFP4, heads=4)
    caches, out = [form.new(3) for _ in range(3)], torch.empty_like(given)
    to = [KVCacheOut(cache, slots, form) for cache in caches]
    assert norm_rope_hadamard_quant_store(x, norm, rope, HadamardArgs(128**-0.5), NVFP4, to[0]) is None
    assert store_kv(given, to[1]) is None
    with_stage = KVCacheOut(caches[2], slots, form, out=out, out_stage="transform")
    assert norm_rope_hadamard_quant_store(x, norm, rope, HadamardArgs(128**-0.5), NVFP4, with_stage) is out
    assert_same_bits(out, given)
    assert_same_bits(caches[0], caches[1])
    assert_same_bits(caches[0], caches[2])


def test_scores_survive_the_transform_of_both_sides() -> None:
    """q · k is what it was when both went through the orthogonal transform, up to rounding: attention needs no more."""
    q, k = (torch.randn(64, 128, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    turned = [norm_rope_hadamard_quant_store(x, hadamard=HadamardArgs(128**-0.5)) for x in (q, k)]
    assert torch.allclose(turned[0] @ turned[1].T, q @ k.T, atol=1e-4)  # type: ignore[union-attr, operator]


def test_an_outlier_costs_its_neighbours_less_behind_the_transform() -> None:
    """In a group of FP4 with an outlier of 30 numbers of size 1 become zeros. The transform shares it out over all."""
    k = torch.randn(50, 128, generator=torch.Generator().manual_seed(1))
    k[:, 7] = 30.0
    back, transform = CastArgs("e2m1", 32, "ue8m0", cast_back=True), HadamardArgs(128**-0.5)
    direct = norm_rope_hadamard_quant_store(k, cast=back)
    turned = norm_rope_hadamard_quant_store(k, hadamard=transform, cast=back)
    undone = norm_rope_hadamard_quant_store(turned, hadamard=transform)  # type: ignore[arg-type]
    beside = torch.arange(32) != 7
    errors = [float((one - k)[:, :32][:, beside].norm()) for one in (direct, undone)]  # type: ignore[operator]
    assert errors[1] < errors[0] / 2
