"""What chapter 11 shows of docs/results/<gpu>/ch11_generator.json: tokens per second against the context."""

from __future__ import annotations

from chapters.ch11_generator.end_to_end.measurement import DECODE
from chapters.ch11_generator.end_to_end.ours import OURS, W8
from chapters.ch11_generator.end_to_end.tables import by_prompt, prompts_of
from chapters.ch11_generator.end_to_end.work import floor_tok_s
from docs.hooks import tables_ch11
from docs.hooks.operator_tables import Results
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg

__all__ = ["counted", "plots", "texts"]

FIGURES = "../chapters/ch11_generator/figures"  # from a page of docs/
_LINES = {
    OURS: ("ours", V, "o-"),
    W8: ("ours, int8 head", V, "o--"),
    "transformers": ("transformers", ACC, "o-"),
    "transformers_compiled": ("transformers, compiled", OTHER, "o-"),
    "torch_compile": ("torch.compile, one graph", K, "o-"),
    "vllm_operators": ("vLLM’s operators, one graph", Q, "o-"),
    "vllm_engine": ("vLLM’s engine", Q, "o:"),
}
_POINTS = 11  # from one name at the right to the next


def texts(results: Results) -> dict[str, str]:
    """Name of a passage → its Markdown."""
    return {name: text.replace("FIGURES", FIGURES) for name, text in tables_ch11.texts(results).items()}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"decode.svg": _decode(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what needs no measurement: nothing."""
    return {}


def _decode(results: Results) -> str:
    fig, ax = drawing(height=3.8)
    prompts, ends = prompts_of(results), []
    for name, line in tables_ch11.decode_lines(results).items():
        words, colour, style = _LINES[name]
        ax.plot(list(line), list(line.values()), style, color=colour, ms=4)
        ends.append((list(line.values())[-1], words, colour))
    for name in (OURS, W8):
        floors = {n: floor_tok_s(case, results["ceilings"]) for n, case in by_prompt(results, DECODE, name).items()}
        if floors:
            ax.plot(sorted(floors), [floors[n] for n in sorted(floors)], ":", color=W, lw=1)
            ends.append((floors[max(floors)], "floor" if name == OURS else "floor, int8 head", W))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_xticks(prompts, labels=[f"{prompt:,}" for prompt in prompts])
    ax.set(ylabel="tokens per second", xlim=(min(prompts) * 0.8, max(prompts) * 60))
    low, high = ax.get_ylim()
    marks = [n for n in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low <= n <= high]
    ax.set_yticks(marks, labels=[f"{n:,}" for n in marks])
    ax.set_xlabel("tokens of the prompt, batch 1, bfloat16", loc="left")
    fig.draw_without_rendering()
    below = float("-inf")
    for tok_s, words, colour in sorted(ends):
        points = float(ax.transData.transform((max(prompts), tok_s))[1]) * 72 / fig.dpi
        below = max(points, below + _POINTS)
        ax.annotate(
            words, (max(prompts), tok_s), xytext=(7, below - points), textcoords="offset points", va="center",
            color=colour, fontsize=9,
        )  # fmt: skip
    return svg(fig)
