"""What chapter 1 shows of its measurements: figures and sentences from docs/results/<gpu>/ch01_math_reference.json."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Rectangle

from docs.hooks.plot_style import ACC, GREY, OTHER, K, Q, V, W, drawing, svg
from qwen3_ref import QWEN3_0_6B, cost

Results = dict[str, Any]


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {
        "one-token.svg": _one_token(results),
        "next-token.svg": _next_token(results),
        "ladder.svg": _ladder(results),
        "roofline.svg": _roofline(results),
    }


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"formats.svg": _formats(), "token-bytes.svg": _token_bytes()}


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    gpu = results["provenance"]["gpu"]
    ours, theirs = (_case(results, "decode", variant, context=128) for variant in ("ours", "transformers"))
    fair = _case(results, "decode", "transformers_no_cudnn", context=128)
    gbps, tflops = results["ceilings"]["read_gbps"], results["ceilings"]["matmul_tflops"][ours["dtype"]]
    ms, arithmetic = ours["us"]["median"] / 1e3, ours["flops"] / tflops / 1e6
    longest = max(c["shape"]["tokens"] for c in _cases(results, "prefill", "ours"))
    cached = _case(results, "decode", "ours", context=longest)
    again = _case(results, "prefill", "ours", "v3", tokens=longest)
    return {
        "one-token": f"""\
![Arithmetic {arithmetic:.1f} µs, reading {ours["floor_us"]:.0f} µs, plain PyTorch {ms:.1f} ms](figures/one-token.svg)

*Figure 1.* One token of Qwen3-0.6B behind 128 others, {ours["dtype"]}, batch 1, on one {gpu}, on a logarithmic axis.
*Reading* is the floor at the {gbps:,.0f} GB/s that this card was measured to read, *arithmetic* what its measured
{tflops:,.0f} TFLOP/s of matrix products would need. Plain PyTorch takes {ms:.1f} ms, {1 / ours["floor_fraction"]:.0f}
times the floor. transformers takes {_time(theirs)} as it comes, and {_time(fair)} when cuDNN's attention, which plans
anew for each length of the cache, is kept out as in ours
([ledger](../../docs/experiments.md#cudnns-attention-in-a-growing-cache)).
""",
        "next-token": f"""\
![Time of the next token against the length of the text, with and without a KV cache](figures/next-token.svg)

*Figure 6.* The next token of Qwen3-0.6B on one {gpu}, {ours["dtype"]}: with a KV cache, and without one, when the whole
text goes through again. At {longest:,} tokens it is {_time(cached)} against {_time(again)}. Dashed: the floor of each.
Where a solid line runs flat, far above its floor, the GPU waits for the next launch, not for memory or arithmetic.
""",
        "roofline": f"""\
![The roofline with decode and prefill](figures/roofline.svg)

*Figure 8.* The roofline of one {gpu}, ceilings measured in the same run: {gbps:,.0f} GB/s, {tflops:,.0f} TFLOP/s
({ours["dtype"]}), ridge at {1e3 * tflops / gbps:.0f} flop per byte. Open circles: where decode and prefill of
Qwen3-0.6B could be. Full circles: where plain PyTorch is.
""",
        "tables": _tables(results),
        "cudnn": f"""\
| {gpu}, {ours["dtype"]} | transformers as it comes | transformers, no cuDNN | ours, no cuDNN |
|---|---:|---:|---:|
{_cudnn_rows(results)}
""",
    }


def _cudnn_rows(results: Results) -> str:
    rows = []
    for op, size, lengths in (("decode", "context", (128, 8192)), ("prefill", "tokens", (128, 8192, 32768))):
        for length in lengths:
            three = (_cases(results, op, who) for who in ("transformers", "transformers_no_cudnn", "ours"))
            found = [next((c for c in cases if c["shape"].get(size) == length and c["shape"]["model"] == "0.6B"), None)
                     for cases in three]  # fmt: skip
            if all(found):
                rows.append(f"| {op}, {size} {length:,} | " + " | ".join(_time(c) for c in found if c) + " |")
    return "\n".join(rows)


def _tables(results: Results) -> str:
    where = results["provenance"]
    lines = [
        f"Measured on one {where['gpu']} ({where['sms']} SMs, driver {where['driver']}, torch {where['torch']}),",
        f"commit `{where['commit'][:12]}`, {where['date'][:10]}. Times are medians. The floor is the larger of bytes ÷",
        "measured read bandwidth and operations ÷ measured rate of matrix products.",
        "",
        "| phase | plain PyTorch | transformers | without cuDNN | floor | floor ÷ ours |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for op, size in (("decode", "context"), ("prefill", "tokens")):
        for ours in _cases(results, op, "ours"):
            shape = ours["shape"]
            if ours["step"] == "v3":
                same = {"model": shape["model"], size: shape[size]}
                theirs = _case(results, op, "transformers", **same)
                fair = [c for c in _cases(results, op, "transformers_no_cudnn") if same.items() <= c["shape"].items()]
                title = f"{op}, {shape['model']} {ours['dtype']}, {size} {shape[size]:,}"
                without = _time(fair[0]) if fair else "–"  # float32 never goes to cuDNN
                figures = (_time(ours), _time(theirs), without, _us(ours["floor_us"]), f"{ours['floor_fraction']:.1%}")
                lines.append(f"| {title} | {' | '.join(figures)} |")
    lines += [
        "",
        "*Without cuDNN* is transformers with cuDNN's attention kept out, as in ours. Each length is timed after one",
        "call, in which cuDNN plans: a prompt of a new length pays for that once, a growing cache in every step.",
        "What it plans is the faster kernel for long prompts, and there we lose.",
    ]
    rates = {
        (case["step"] or case["variant"], case["shape"]["new_tokens"]): case["tok_s"]["median"]
        for case in results["cases"]
        if case["op"] == "generate"
    }
    lengths = sorted({n for _, n in rates})
    lines += [
        "",
        "![Whole generations of the tiny model by v1, v2 and transformers](figures/ladder.svg)",
        "",
        "*Figure 9.* Whole generations of the tiny model from a prompt of 32 tokens, float32.",
        "",
        "The same in tokens per second:",
        "",
        "| new tokens | " + " | ".join(f"{n:,}" for n in lengths) + " |",
        "|---|" + "---:|" * len(lengths),
    ]
    titles = {"v1": "v1, no cache", "v2": "v2, KV cache", "v3": "v3, last logits", "transformers": "transformers"}
    for name, title in titles.items():
        lines.append(f"| {title} | " + " | ".join(f"{rates[name, n]:,.0f}" for n in lengths) + " |")
    return "\n".join(lines) + "\n"


def _formats() -> str:
    formats = [("FP32", 1, 8, 23, 1), ("BF16", 1, 8, 7, 2), ("INT8", 1, 0, 7, 3)]
    fig, ax = drawing(height=2.1)
    for name, sign, exponent, fraction, row in formats:
        for i in range(sign + exponent + fraction):
            colour = ACC if i < sign else K if i < sign + exponent else Q
            ax.add_patch(Rectangle((i, -row), 0.88, 0.62, facecolor=colour, linewidth=0, alpha=0.85))
        ax.text(-0.6, 0.3 - row, name, ha="right", va="center", fontsize=11)
    ax.text(0.44, -0.15, "sign", ha="center", color=ACC)
    ax.text(5, -0.15, "exponent: range", ha="center", color=K)
    ax.text(20, -0.15, "fraction: precision", ha="center", color=Q)
    ax.text(16.5, 0.3 - 2, "the range of FP32, two to three digits", va="center")
    ax.text(8.5, 0.3 - 3, "an integer from −127 to 127, and a scale for a group of 128 of them", va="center")
    ax.set(xlim=(-3.5, 33), ylim=(-3.2, 0.4))
    ax.axis("off")
    return svg(fig)


def _token_bytes() -> str:
    config = QWEN3_0_6B
    attention = 2 * config.num_hidden_layers * config.hidden_size * 2 * (config.q_size + config.kv_size)
    head = cost.head_weight_bytes(config)
    mlp = cost.layer_weight_bytes(config) - attention
    weights = [(attention, W, 0.5), (mlp, W, 0.75), (head, W, 1.0)]
    contexts = (128, 1024, 8192, 32768)
    fig, ax = drawing(height=2.7)
    for row, context in enumerate(contexts):
        left = 0.0
        kv = context * cost.kv_bytes_per_token(config)
        for nbytes, colour, alpha in [*weights, (kv, K, 0.9)]:
            ax.barh(row, nbytes / cost.MIB, left=left, color=colour, alpha=alpha, height=0.62)
            left += nbytes / cost.MIB
        ax.text(left + 40, row, f"KV cache {kv / cost.MIB:,.0f} MiB", va="center", color=K)
    ax.text(0, -0.5, f" layers {(attention + mlp) / cost.MIB:.0f} MiB", va="bottom", color=W)
    ax.text((attention + mlp + head) / cost.MIB, -0.5, f"head {head / cost.MIB:.0f} MiB", va="bottom", color=W)
    ax.set_yticks(range(len(contexts)), labels=[f"{context:,}" for context in contexts])
    ax.set(xlabel="MiB read for one token", ylabel="context", xlim=(0, 5900), ylim=(3.5, -0.95))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _one_token(results: Results) -> str:
    ours, theirs = (_case(results, "decode", variant, context=128) for variant in ("ours", "transformers"))
    tflops = results["ceilings"]["matmul_tflops"][ours["dtype"]]
    bars = [
        ("arithmetic", ours["flops"] / tflops / 1e6, V),
        ("reading: the floor", ours["bytes"] / results["ceilings"]["read_gbps"] / 1e3, W),
        ("plain PyTorch", ours["us"]["median"], ACC),
        ("transformers", theirs["us"]["median"], OTHER),
    ]
    fig, ax = drawing(height=2.5)
    ax.barh(
        [name for name, _, _ in bars], [us for _, us, _ in bars], color=[colour for _, _, colour in bars], height=0.62
    )
    for place, (_, us, colour) in enumerate(bars):
        ax.text(us * 1.15, place, _us(us), va="center", color=colour)
    ax.set(xscale="log", xlim=(0.3, bars[2][1] * 12), xlabel="µs for one token")
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)


def _next_token(results: Results) -> str:
    fig, ax = drawing(height=3.3)
    for op, size, colour, name in (("prefill", "tokens", ACC, "no cache"), ("decode", "context", V, "KV cache")):
        cases = [c for c in _cases(results, op, "ours") if c["step"] == "v3" and c["shape"]["model"] == "0.6B"]
        x = [c["shape"][size] for c in cases]
        y = [c["us"]["median"] / 1e3 for c in cases]
        ax.loglog(x, y, "o-", color=colour, ms=4)
        ax.loglog(x, [c["floor_us"] / 1e3 for c in cases], "--", color=colour, lw=1)
        ax.text(x[-1] * 1.15, y[-1], name, color=colour, va="center")
    ax.set(xlabel="tokens of text so far", ylabel="ms for the next token", xlim=(90, x[-1] * 3.2))
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, labels=[f"{t:,}" for t in x])
    return svg(fig)


def _ladder(results: Results) -> str:
    fig, ax = drawing(height=3)
    for name, colour in (("v1", ACC), ("v2", V), ("transformers", OTHER)):
        cases = [c for c in results["cases"] if c["op"] == "generate" and name in (c["step"], c["variant"])]
        x = [c["shape"]["new_tokens"] for c in cases]
        y = [n / c["tok_s"]["median"] for n, c in zip(x, cases, strict=True)]
        ax.loglog(x, y, "o-", color=colour, ms=4)
        ax.text(x[-1] * 1.08, y[-1], name, color=colour, va="bottom" if name == "transformers" else "top")
    ax.set(xlabel="new tokens", ylabel="s in all", xlim=(x[0] * 0.8, x[-1] * 2.2))
    ax.set_xticks(x, labels=[str(n) for n in x])
    low, high = ax.get_ylim()
    seconds = [s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= s <= high]
    ax.set_yticks(seconds, labels=[f"{s:g}" for s in seconds])
    ax.minorticks_off()
    return svg(fig)


def _roofline(results: Results) -> str:
    dtype = _case(results, "decode", "ours", context=128)["dtype"]
    gbps, peak = results["ceilings"]["read_gbps"] * 1e9, results["ceilings"]["matmul_tflops"][dtype] * 1e12
    cases = [c for op in ("decode", "prefill") for c in _cases(results, op, "ours") if c["shape"]["model"] == "0.6B"]
    cases = [c for c in cases if c["step"] == "v3"]
    right = 3 * max(c["flops"] / c["bytes"] for c in cases)
    xs = [0.3, peak / gbps, max(right, 4 * peak / gbps)]
    fig, ax = drawing(height=3.8)
    ax.loglog(xs, [min(peak, gbps * x) / 1e12 for x in xs], color=W, lw=2.2)
    ax.text(xs[-1], peak / 1e12 * 1.25, f"{peak / 1e12:,.0f} TFLOP/s", ha="right", color=W)
    ax.text(0.3, gbps / 1e12 * 3, f"{gbps / 1e9:,.0f} GB/s", color=W)
    for c in cases:
        intensity, reached = c["flops"] / c["bytes"], c["flops"] / c["us"]["median"] / 1e6
        colour = Q if c["op"] == "decode" else K
        roof = min(peak, gbps * intensity) / 1e12
        ax.plot((intensity, intensity), (reached, roof), color=colour, lw=0.8, alpha=0.45)
        ax.plot(intensity, roof, "o", ms=5, mfc="none", mec=colour)
        ax.plot(intensity, reached, "o", ms=5, color=colour)
        if c["op"] == "prefill":
            ax.text(intensity * 1.15, reached, f"{c['shape']['tokens']:,}", color=colour, va="top", fontsize=8.5)
    first = cases[0]
    ax.text(2.2, first["flops"] / first["us"]["median"] / 1e6, "decode", color=Q, va="center")
    ax.text(right / 3, 0.2, "prefill of … tokens", color=K, ha="right")
    ax.axvline(peak / gbps, color=GREY, ls=":", lw=1)
    ax.set(xlabel="flop per byte", ylabel="TFLOP/s")
    return svg(fig)


def _cases(results: Results, op: str, variant: str) -> list[Results]:
    return [c for c in results["cases"] if c["op"] == op and c["variant"] == variant]


def _case(results: Results, op: str, variant: str, step: str | None = None, **shape: int | str) -> Results:
    """The only case of this kind; 0.6B unless another model is asked for."""
    wanted = {"model": "0.6B"} | shape
    for case in _cases(results, op, variant):
        if wanted.items() <= case["shape"].items() and step in (None, case["step"]):
            return case
    raise KeyError(f"{results['chapter']}: there is no case {op}, {variant}, {wanted}; run the full benchmark.")


def _time(case: Results) -> str:
    return _us(case["us"]["median"])


def _us(us: float) -> str:
    return f"{us / 1e3:,.1f} ms" if us >= 1e3 else f"{us:,.0f} µs" if us >= 10 else f"{us:.1f} µs"
