"""The reference on a GPU. Bits are promised on a CPU only; here, errors of the size that the CPU has too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chapters.ch01_math_reference.attention_checks import attention_truth, random_qkv
from chapters.ch01_math_reference.formula_checks import (
    ONE_ROUNDING_ULP,
    SIXTEEN_BIT,
    random_rows,
    rms_norm_truth,
    rotation,
)
from chapters.ch01_math_reference.model_checks import our_chunks
from chapters.ch01_math_reference.twins import SHAPES
from chapters.ch01_math_reference.ulp import largest_ulp_error
from qwen3_ref import Qwen3
from qwen3_ref import functional as F
from qwen3_ref.generate import ReferenceEngine, generate
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.sampling import Sampler, SamplingParams
from qwen3_ref.tokenizer import Tokenizer
from qwen3_ref.weights import save_pretrained

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
DTYPES = (torch.float32, torch.bfloat16)


def test_norm_and_swiglu_round_once() -> None:
    for dtype in SIXTEEN_BIT:
        x, weight = random_rows(dtype, 1024, seed=1)
        got = F.rms_norm(x.cuda(), weight.cuda(), 1e-6, "fused").cpu()
        assert largest_ulp_error(got, rms_norm_truth(x, weight, 1e-6)) <= ONE_ROUNDING_ULP
        wide = F.swiglu(x.double(), x.flip(0).double())
        assert largest_ulp_error(F.swiglu(x.cuda(), x.flip(0).cuda(), "fused").cpu(), wide) <= ONE_ROUNDING_ULP


def test_rope_angles_are_as_exact_as_float32_allows() -> None:
    positions = torch.tensor([0, 1, 4096, 40_959, 131_071])
    cos, sin = (x.cpu().double() for x in F.rope_cos_sin(positions.cuda(), 128, 1e6, torch.float32))
    truth = rotation(positions, 128, 1e6)
    slack = positions.double()[:, None] * 4 * 2.0**-24 + 2.0**-22
    assert bool(((cos - truth.real).abs() <= slack).all())
    assert bool(((sin - truth.imag).abs() <= slack).all())


@pytest.mark.parametrize("attention", [F.attention_naive, F.attention_online], ids=["naive", "online"])
def test_attention_in_float64_equals_the_definition(attention: Callable[..., Tensor]) -> None:
    q, k, v = random_qkv(8, 2, 3, 40, seed=2)
    mask = F.causal_mask(3, 40)
    got = attention(q.cuda(), k.cuda(), v.cuda(), 0.3, mask.cuda()).cpu()
    torch.testing.assert_close(got, attention_truth(q, k, v, 0.3, mask), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_as_near_the_truth_as_on_a_cpu(
    shape: str, dtype: torch.dtype, attention: str, tmp_path: Path
) -> None:
    """Against float64, whole prompt and cached decode: at most three times the error of the CPU's eager model.

    The GPU sums in another order, and its bf16 products may round partial sums.
    """
    config = SHAPES[shape]
    save_pretrained(tmp_path, Qwen3.random(config, seed=5, dtype=dtype))
    cpu = Qwen3.from_pretrained(tmp_path)
    gpu = Qwen3.from_pretrained(tmp_path, device="cuda", attention=attention)  # type: ignore[arg-type]
    assert gpu.device.type == "cuda"
    truth_model = Qwen3.from_weights(config, {name: weight.double() for name, weight in cpu.state_dict().items()})
    tokens = torch.randint(config.vocab_size, (3, 33), generator=torch.Generator().manual_seed(6))
    for chunks in ([33], [20, 1, 1, 11]):
        truth = our_chunks(truth_model, tokens, chunks)
        cpu_error = float((our_chunks(cpu, tokens, chunks).double() - truth).abs().max())
        logits = our_chunks(gpu, tokens.cuda(), chunks)
        assert logits.dtype == dtype
        assert float((logits.cpu().double() - truth).abs().max()) <= 3 * cpu_error
        assert torch.equal(our_chunks(gpu, tokens.cuda(), chunks), logits), "the same inputs give the same bits"


def test_the_model_in_float64_is_the_same_on_both_devices() -> None:
    for shape, config in SHAPES.items():
        cpu = Qwen3.random(config, seed=1, dtype=torch.float64)
        gpu = Qwen3.from_weights(config, {name: weight.cuda() for name, weight in cpu.state_dict().items()})
        tokens = torch.randint(config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
        want = our_chunks(cpu, tokens, [5, 1, 6])
        got = our_chunks(gpu, tokens.cuda(), [5, 1, 6]).cpu()
        # cos and sin of float64 differ by a last place between the two; everything after it is float64.
        assert torch.allclose(got, want, rtol=0, atol=1e-11 * float(want.abs().max())), shape


def test_draws_on_the_gpu_are_seeded_and_filtered() -> None:
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, 2.0], device="cuda")

    def draws(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, top_k=3, seed=seed))
        return [sampler(logits, [0, 5]) for _ in range(300)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert set(draws(1)) == {0, 1, 5}
    with pytest.raises(ValueError, match="the largest logit is nan"):
        Sampler(SamplingParams(temperature=1.0))(logits * torch.nan)


def test_the_tiny_model_writes_on_the_gpu() -> None:
    tokenizer = Tokenizer.from_pretrained(TINY_DIR)
    engine = ReferenceEngine(Qwen3.from_pretrained(TINY_DIR, device="cuda"), 128)
    prompt = tokenizer.encode("Once upon a time")
    texts = [generate(engine, tokenizer, prompt, 60).run().text for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0].split()) > 20
