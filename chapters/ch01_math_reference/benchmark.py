"""Chapter 1's benchmark: what a token costs in plain PyTorch, with and without a KV cache, beside transformers.

    make bench-chapter 1
    python chapters/ch01_math_reference/benchmark.py [--device auto] [--output FILE] [--quick]

One to two minutes on a CPU of two cores. transformers runs the same weights in the same dtype on the same threads, in
turn with ours; nothing is timed before it has given the same answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# Threads that wait must sleep, not spin: where other programs run, spinning makes small steps ten times slower. The
# OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor

from chapters.ch01_math_reference.peer import TransformersPeer
from chapters.ch01_math_reference.steps import v1_no_cache, v2_kv_cache, v3_last_logits
from qwen3_ref import QWEN3_0_6B, KVCache, Qwen3
from qwen3_ref.cost import GIB, decode_cost, head_parameters, prefill_cost
from qwen3_ref.hub import TINY_DIR
from qwen_cuda.benchmarking import Case, Report, alternate, arguments, results_path

CHAPTER = "ch01_math_reference"
STEPS = {"v1": v1_no_cache.generate, "v2": v2_kv_cache.generate, "v3": v3_last_logits.generate}
PROMPT = 32


class WrongAnswer(RuntimeError):
    """Two candidates disagree; no time of theirs means anything."""


def main(argv: list[str] | None = None) -> int:
    options = arguments(__doc__.partition("\n")[0], argv)
    device, quick = options.device, options.quick
    on_gpu = device.type == "cuda"
    report = Report(CHAPTER, device, quick)
    print("measured the ceilings of this machine", file=sys.stderr)
    try:
        tiny = Qwen3.from_pretrained(TINY_DIR, torch.float32, device, attention="sdpa")
        ladder(report, tiny, _lengths(on_gpu, quick))
        phases(report, tiny, "tiny", prompts=(128, 512) if quick else (128, 512, 2048), contexts=(128, 1024))
        if not quick and (on_gpu or _memory_bytes() >= 8 * GIB):
            print("drawing random weights of the shape of Qwen3-0.6B", file=sys.stderr)
            dtype = torch.bfloat16 if on_gpu else torch.float32
            full = Qwen3.random(QWEN3_0_6B, dtype=dtype, device=device, attention="sdpa")
            prompts = (128, 512, 2048, 8192, 32768) if on_gpu else (128,)
            contexts = (128, 1024, 8192, 32768) if on_gpu else (128, 2048)
            phases(report, full, "0.6B", prompts, contexts)
        elif not quick:
            report.note("The shape of Qwen3-0.6B is left out: it takes 8 GiB of memory, which this machine lacks.")
    except WrongAnswer as error:
        print(f"wrong answer, nothing is reported: {error}", file=sys.stderr)
        return 1
    report.measure_ceilings_again()
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    return 0


def ladder(report: Report, model: Qwen3, lengths: tuple[int, ...]) -> None:
    """Whole generations by each step and by transformers' `generate`, over the number of new tokens."""
    peer = TransformersPeer(model)
    prompt = _tokens(model, PROMPT)
    for new_tokens in lengths:
        calls: dict[str, Callable[[], list[int]]] = {
            name: lambda step=step, n=new_tokens: step(model, prompt, n)  # type: ignore[misc]
            for name, step in STEPS.items()
        }
        calls["transformers"] = lambda n=new_tokens: peer.generate(prompt, n)  # type: ignore[misc]
        answers = {name: call() for name, call in calls.items()}  # and their warm-up
        for name, answer in answers.items():
            if answer != answers["v1"] and not _tied(model, prompt, answer, answers["v1"]):
                raise WrongAnswer(f"{name} and v1 give different tokens, {answer} and {answers['v1']}.")
        times = alternate(calls, report.device, warmup=0, min_samples=3, max_samples=15, budget_s=0.3)
        shape: dict[str, int | str] = {"model": "tiny", "prompt": PROMPT, "new_tokens": new_tokens}
        for name, us in times.items():
            report.add(_case("generate", name, shape, model, tok_s=us.rate(new_tokens * 1e6)))


def phases(report: Report, model: Qwen3, name: str, prompts: tuple[int, ...], contexts: tuple[int, ...]) -> None:
    """One prefill and one decode step, ours beside transformers', over their lengths."""
    peers = {"transformers": TransformersPeer(model)}
    if report.device.type == "cuda" and model.dtype != torch.float32:  # where PyTorch may choose cuDNN
        peers["transformers_no_cudnn"] = TransformersPeer(model, cudnn=False)
    for phase, measure, lengths in (("prefill", _prefill, prompts), ("decode", _decode, contexts)):
        for length in lengths:
            try:
                measure(report, model, peers, name, length)
            except torch.OutOfMemoryError:
                report.note(f"{name}: {phase} of {length} tokens is left out, the device's memory is full.")
                torch.cuda.empty_cache()


@torch.inference_mode()
def _prefill(report: Report, model: Qwen3, peers: dict[str, TransformersPeer], name: str, tokens: int) -> None:
    ids = _tokens(model, tokens)
    cache = KVCache(model.config, 1, tokens, model.dtype, model.device)

    def ours(last_only: bool) -> Tensor:
        cache.clear()
        return model(ids, cache, last_only)[:, -1]

    calls: dict[str, Callable[[], Tensor]] = {"v3": lambda: ours(True)}
    for who, peer in peers.items():
        calls[who] = lambda peer=peer: peer.prefill(ids)  # type: ignore[misc]
        _check(f"prefill of {tokens} tokens, {name}", calls["v3"](), calls[who]())
    if tokens <= 2048:  # logits of every position: 0.6 GiB of them at 2048
        calls["v2"] = lambda: ours(False)
        _check(f"prefill of {tokens} tokens with all logits, {name}", calls["v2"](), calls["v3"]())
    times = alternate(calls, report.device, warmup=0, min_samples=3, budget_s=0.3)
    cost = prefill_cost(model.config, tokens, model.dtype.itemsize)
    every_logit = 2 * (tokens - 1) * head_parameters(model.config)
    for variant, us in times.items():
        flops = cost.flops + (every_logit if variant == "v2" else 0)
        shape: dict[str, int | str] = {"model": name, "tokens": tokens}
        report.add(_case("prefill", variant, shape, model, bytes=cost.bytes, flops=flops, us=us))


@torch.inference_mode()
def _decode(report: Report, model: Qwen3, peers: dict[str, TransformersPeer], name: str, context: int) -> None:
    """Each call appends one token, as a generation does; the cache holds random keys and values at first."""
    most = 30
    cache = KVCache(model.config, 1, context + most + 4, model.dtype, model.device)
    generator = torch.Generator(model.device).manual_seed(1)
    for held in (cache.k, cache.v):
        held[:, :, :, :context].normal_(generator=generator)
    cache.advance(context)
    token = _tokens(model, 1)

    def ours() -> Tensor:
        return model(token, cache, last_only=True)[:, -1]

    calls: dict[str, Callable[[], Tensor]] = {"v3": ours}
    for who, peer in peers.items():
        peer.fill(cache)
        calls[who] = lambda peer=peer: peer.decode(token)  # type: ignore[misc]
    answer = calls["v3"]()
    for who in peers:
        _check(f"decode at context {context}, {name}", answer, calls[who]())
    times = alternate(calls, report.device, warmup=2, min_samples=5, max_samples=most, budget_s=0.5)
    cost = decode_cost(model.config, context, model.dtype.itemsize)
    for variant, us in times.items():
        shape: dict[str, int | str] = {"model": name, "context": context}
        report.add(_case("decode", variant, shape, model, bytes=cost.bytes, flops=cost.flops, us=us))


def _check(what: str, ours: Tensor, theirs: Tensor) -> None:
    """The same token, or one that the other holds for as likely up to its own rounding. NaN fails."""
    a, b = ours[0].float(), theirs[0].float()
    tolerance = 8 * torch.finfo(ours.dtype).eps * float(b.abs().max())
    difference, behind = float((a - b).abs().max()), float(b.max() - b[a.argmax()])
    if not (difference <= tolerance and behind <= tolerance):
        raise WrongAnswer(f"{what}: logits differ by {difference:.3g}; rounding explains {tolerance:.3g}.")


@torch.inference_mode()
def _tied(model: Qwen3, prompt: Tensor, ours: list[int], theirs: list[int]) -> bool:
    """Whether the first token in which two answers differ was a draw, which rounding may decide either way."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        return False  # one is longer
    text = torch.cat((prompt, torch.tensor([ours[:at]], dtype=prompt.dtype, device=prompt.device)), dim=1)
    logits = model(text, last_only=True)[0, -1].float()
    tolerance = 8 * torch.finfo(model.dtype).eps * float(logits.abs().max())
    return float(logits.max() - logits[[ours[at], theirs[at]]].min()) <= tolerance


def _case(op: str, name: str, shape: dict[str, int | str], model: Qwen3, **figures: Any) -> Case:
    """`name` is a step of ours or a peer. The tiny model stays in a processor's cache between calls, 0.6B in none."""
    ours = name in STEPS
    return Case(
        op=op,
        variant="ours" if ours else name,
        step=name if ours else None,
        shape=shape,
        dtype=str(model.dtype).removeprefix("torch."),
        cache="warm" if shape["model"] == "tiny" else "cold",
        **figures,
    )


def _lengths(on_gpu: bool, quick: bool) -> tuple[int, ...]:
    """New tokens of the ladder. On a GPU launches take so long that the square needs more tokens to show."""
    return (16, 32, 64) if quick else (32, 128, 512) if on_gpu else (16, 32, 64, 128)


def _tokens(model: Qwen3, count: int) -> Tensor:
    """Random token ids `[1, count]`, the same in each run."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(model.config.vocab_size, (1, count), generator=generator).to(model.device)


def _memory_bytes() -> int:
    """Main memory of this machine; 0 when the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
