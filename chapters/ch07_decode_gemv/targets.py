"""What chapter 7 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from chapters.ch07_decode_gemv import chain
from chapters.ch07_decode_gemv.candidates import LAYERS, Layer
from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

US = {"qkv": 2.14, "o": 1.8, "gate_up": 3.08, "down": 1.94, "head": 70.5}
STRETCH_US = {"o": 1.44, "down": 1.81}
CHAIN_LAYER_US, STRETCH_CHAIN_LAYER_US = 8.6, 8.2
STACK = chain.Stack()
PEERS = {
    "cublas": "cuBLAS's product alone",
    "cublas_and_ours": "cuBLAS with our other kernels",
    "torch_compile": "torch.compile",
}


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: one row of x, bfloat16, cold."""
    verdicts = []
    for layer in LAYERS:
        ours = find(results, layer, "ours")
        verdicts.append(targets.at_most_us(layer.op, US[layer.op], ours))
        if layer.op in STRETCH_US:
            verdicts.append(targets.at_most_us(f"{layer.op} (stretch)", STRETCH_US[layer.op], ours))
    for us, note in ((CHAIN_LAYER_US, ""), (STRETCH_CHAIN_LAYER_US, " (stretch)")):
        verdicts.append(_a_layer(f"a layer of the chain{note}", us, find_chain(results, "ours")))
    for peer, title in PEERS.items():
        pairs = [find(results, layer, who) for layer in _with(peer) for who in ("ours", peer)]
        name = ", ".join(layer.op for layer in _with(peer))
        verdicts.append(
            targets.times_as_fast(name, f"faster than {title}", pairs, lambda ratios: min(ratios) > 1, digits=2)
        )
    for peer in ("cublas_and_ours", "torch_compile"):
        pairs = [find_chain(results, who) for who in ("ours", peer)]
        verdicts.append(
            targets.times_as_fast(
                "the chain", f"faster than {PEERS[peer]}", pairs, lambda ratios: min(ratios) > 1, digits=2
            )
        )
    alone = [find(results, layer, who) for layer in LAYERS for who in ("ours_without_pdl", "torch_compile")]
    name = f"without PDL, {', '.join(layer.op for layer in LAYERS)}"
    return [*verdicts, targets.not_slower(name, PEERS["torch_compile"], alone)]


def _with(peer: str) -> list[Layer]:
    """The layers that a peer takes part in: around the head stands nothing."""
    return [layer for layer in LAYERS if peer != "cublas_and_ours" or layer.norm or layer.residual]


def _a_layer(name: str, limit_us: float, ours: Case | None) -> Verdict:
    def compare(case: Case) -> tuple[str, bool]:
        us = case["us"]["median"] / STACK.layers
        return f"{us:.2f} µs", us <= limit_us

    return targets.verdict(name, f"≤ {limit_us} µs in a CUDA graph", [ours], compare)


def find(results: Results, layer: Layer, variant: str) -> Case | None:
    shape = {"rows": layer.rows, "n": layer.n, "k": layer.k}
    return targets.find(results, layer.op, variant, shape)


def find_chain(results: Results, variant: str) -> Case | None:
    return targets.find(results, chain.OP, variant, {"layers": STACK.layers, "rows": STACK.rows})
