"""What chapter 11 shows of docs/results/<gpu>/ch11_generator.json: tokens per second; and a request's way."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from chapters.ch11_generator.end_to_end.measurement import DECODE
from chapters.ch11_generator.end_to_end.ours import OURS, W8
from chapters.ch11_generator.end_to_end.tables import by_prompt, prompts_of
from chapters.ch11_generator.end_to_end.work import floor_tok_s
from docs.hooks import tables_ch11
from docs.hooks.operator_tables import Results
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, name_lines, svg

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


def texts(results: Results) -> dict[str, str]:
    """Name of a passage → its Markdown."""
    return {name: text.replace("FIGURES", FIGURES) for name, text in tables_ch11.texts(results).items()}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"decode.svg": _decode(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what needs no measurement."""
    return {"request.svg": _request()}


def _request() -> str:
    """A request's way from text to text: the host above, a step ahead; the device below; the history between."""
    fig, ax = drawing(height=2.9)
    host, device, high, wide = 0.0, 2.6, 0.62, 1.72
    _box(ax, (0, host), 0.82, "ids", W)
    _box(ax, (0.9, device), 1.5, "prefill", K)
    _box(ax, (2.46, device), 0.8, "draw 0", OTHER)
    _arrow(ax, (0.5, host + high), (0.95, device), W)
    for step in range(1, 4):
        at = 3.32 + (step - 1) * (wide + 0.06)
        _box(ax, (at, device), wide - 0.66, f"step {step}", V)
        _box(ax, (at + wide - 0.6, device), 0.6, f"{step}", OTHER)
        asked = 0.95 if step == 1 else at - 0.92
        _box(ax, (asked, host), 0.74, f"start {step}", V)
        _arrow(ax, (asked + 0.6, host + high), (at + 0.1, device), V)
    drawn = [3.26, *(3.32 + step * (wide + 0.06) + wide for step in range(3))]
    for token, at in enumerate(drawn):
        place = 3.32 + token * 0.5
        ax.add_patch(Rectangle((place, 1.45), 0.46, 0.46, fill=False, edgecolor=ACC, lw=1))
        ax.text(place + 0.23, 1.68, f"t{token}", color=ACC, ha="center", va="center", fontsize=8)
        ax.plot([at - 0.3, place + 0.23], [device, 1.93], color=ACC, lw=0.8, alpha=0.8)
        if token < 3:
            said = at + 0.12
            _box(ax, (said, host), 0.7, f"text {token}", ACC)
            _arrow(ax, (place + 0.23, 1.43), (said + 0.3, host + high), ACC)
    ax.text(3.22, 1.68, "history", color=ACC, ha="right", va="center", fontsize=9)
    for words, y in (("host", host), ("device", device)):
        ax.text(-0.1, y + high / 2, words, ha="right", va="center", fontsize=9)
    ax.text(2.46, device + high + 0.12, "the tokens of the draws stay on the device: step 2 reads what step 1 wrote",
            va="top", fontsize=8)  # fmt: skip
    ax.set(xlim=(-0.9, 9.1), ylim=(3.5, -0.1))
    ax.axis("off")
    return svg(fig)


def _box(ax: Axes, corner: tuple[float, float], width: float, words: str, colour: str) -> None:
    ax.add_patch(Rectangle(corner, width, 0.62, facecolor=colour, alpha=0.25, edgecolor=colour, lw=1))
    ax.text(corner[0] + width / 2, corner[1] + 0.31, words, ha="center", va="center", color=colour, fontsize=8.5)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.0, "alpha": 0.8})


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
    name_lines(ax, ((max(prompts), *end) for end in ends))
    return svg(fig)
