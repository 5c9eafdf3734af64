"""Bugs planted into the quantised cache, and what comes of them. The lesson quotes it, the lab plays with it.

python -m chapters.ch10_quantized_kv.faults sync            write the reports into README.md
python -m chapters.ch10_quantized_kv.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qwen_cuda.building import Library
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.loading import using
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    attention_workspace,
    norm_rope_hadamard_quant_store,
    paged_attention_quantized,
)
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

HERE = Path(__file__).resolve().parent
LESSON = HERE / "README.md"
STEPS = HERE / "steps"
FP8 = CastArgs("e4m3", 32, "ue8m0")
ORTHOGONAL = HadamardArgs(128**-0.5)

# --8<-- [start:faults]
FAULTS = {
    "race": Fault(
        STEPS / "v2_warp_per_head.cu",
        "      head[i + bit] = u - w;\n    }\n    __syncwarp();\n",
        "      head[i + bit] = u - w;\n    }\n",
    ),
    "saturated": Fault(
        STEPS / "v1_thread_per_head.cu",
        "int(amax_bits + 0x1fffffu >> 23) - 8",
        "int(amax_bits >> 23) - 8",
        header="narrow_floats.cuh",
    ),
}
# --8<-- [end:faults]


def transformed(library: Library, x: Tensor) -> Tensor:
    """Heads through the Hadamard transform by the kernel of `library`, in the simulator. `x: [t, heads, 128]`"""
    out = torch.empty_like(x)
    with using(library):
        options = {"hadamard_scale": ORTHOGONAL.scale, "out": out, "stage": "transform"}
        torch.ops.qwen_sim.norm_rope_hadamard_quant_store(x, **options)
    return out


def given_back(library: Library, x: Tensor) -> Tensor:
    """What FP8 codes of groups of 32 stand for, by the kernel of `library`, in the simulator. `x: [t, heads, 128]`"""
    out = torch.empty_like(x)
    with using(library):
        options = {"values": FP8.values, "group": FP8.group, "scale_format": FP8.scales}
        torch.ops.qwen_sim.norm_rope_hadamard_quant_store(x, **options, out=out, stage="cast_back")
    return out


def race() -> str:
    """What the simulator says when the stages of v2's transform are not kept apart."""
    x = torch.ones(1, 1, 128).bfloat16()
    return sentence_of(lambda: transformed(FAULTS["race"].library, x))


def saturated() -> str:
    """What comes back of a group with the powers of two below 2 · amax ÷ 448 for a scale."""
    x = torch.zeros(1, 1, 128).bfloat16()
    x[..., :4] = torch.tensor([508.0, -480.0, 100.0, 1.5])
    right = Library("sim", (STEPS / "v1_thread_per_head.cu",), "checked")
    rows = {"stored": x, "right": given_back(right, x), "rounded down": given_back(FAULTS["saturated"].library, x)}
    return "\n".join(f"{name:14}" + "".join(f"{float(n):9.4g}" for n in row[0, 0, :4]) for name, row in rows.items())


def attended(queries_too: bool) -> Tensor:
    """Attention over 40 transformed keys in FP8, whose queries are transformed too, or not. `[1, 2, 128]`"""
    random = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, h, 128, generator=random).bfloat16() for n, h in ((1, 2), (40, 1), (40, 1)))
    k[7] = 3 * q[0, :1]  # the first query wants this key
    form = KVCacheFormat(FP8, layout="block_wide")
    caches = form.new(3), form.new(3)
    to = KVCacheOut(caches[0], torch.arange(40), form, v_cache=caches[1])
    norm_rope_hadamard_quant_store(torch.cat((k, v), dim=1), hadamard=ORTHOGONAL, cast=FP8, out=to)
    table, lens = torch.arange(3, dtype=torch.int32)[None], torch.tensor([40], dtype=torch.int32)
    room = attention_workspace(q, 1, 1)
    transform = ORTHOGONAL if queries_too else None
    out = paged_attention_quantized(q, *caches, table, lens, 128**-0.5, form, 48, 1, room, hadamard=transform)
    return torch.cat((v[7].float()[None], out.float()), dim=1)


def basis() -> str:
    """What a query finds among transformed keys: the value of the one key that it matches, or no such thing."""
    rows = {
        "its value": attended(True)[0, 0],
        "transformed q": attended(True)[0, 1],
        "q as it is": attended(False)[0, 1],
    }
    return "\n".join(f"{name:14}" + "".join(f"{float(n):8.2f}" for n in row[:6]) for name, row in rows.items())


def refusals() -> str:
    """A few combinations that are refused, and how."""
    x, form = torch.ones(1, 2, 128), KVCacheFormat(FP8, heads=2)
    latent, cache, slots = torch.ones(1, 1, 512), form.new(1), torch.zeros(1, dtype=torch.int64)
    to = KVCacheOut(cache, slots, form)
    calls: tuple[Callable[[], object], ...] = (
        lambda: CastArgs("e2m1", 128, "float32"),
        lambda: norm_rope_hadamard_quant_store(latent, hadamard=ORTHOGONAL),
        lambda: norm_rope_hadamard_quant_store(x, norm=NormArgs(torch.ones(128)), out=to),
        lambda: norm_rope_hadamard_quant_store(x, cast=CastArgs("e4m3", 64, "ue8m0"), out=to),
    )
    return "\n".join(_refused(call) for call in calls)


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("The call went through; it was to be refused.")


def exercise() -> str:
    """What the starter of the exercise says."""
    library = Library("sim", (HERE / "exercise" / "norm_rope_hadamard_quant_store.cu",))
    return sentence_of(lambda: transformed(library, torch.ones(1, 1, 128).bfloat16()))


def reports() -> dict[str, str]:
    """Name of a passage in the lesson → its text."""
    return {
        "race": race(),
        "saturated": saturated(),
        "basis": basis(),
        "refusals": refusals(),
        "exercise": exercise(),
    }


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
