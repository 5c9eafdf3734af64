"""What is refused on the way to a text, and what the simulator says of a planted bug. The lesson quotes it.

python -m chapters.ch11_generator.faults sync            write the reports into README.md
python -m chapters.ch11_generator.faults sync --check    write nothing; fail if README.md says something else
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from chapters.ch11_generator.backends import check_backend
from chapters.ch11_generator.options import SamplingOptions
from chapters.ch11_generator.request import request
from chapters.ch11_generator.sampling_checks import Draws, normal
from chapters.ch11_generator.stages import Stages
from qwen3_ref.hub import resolve_model
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Tokenizer
from qwen_cuda.building import ROOT, BuildError
from qwen_cuda.loading import using
from qwen_cuda.operators import sample_tokens
from qwen_cuda.testing import quotations
from qwen_cuda.testing.quotations import Fault, sentence_of

LESSON = Path(__file__).resolve().parent / "README.md"
KERNEL = ROOT / "kernels" / "cuda" / "sample_tokens.cu"

# --8<-- [start:fault]
ONE_HISTOGRAM = Fault(
    KERNEL,
    "state.histograms[pass++ % 2]",
    "state.histograms[0 * pass]",
    header="kept_tokens.cuh",
)
# --8<-- [end:fault]


def histogram() -> str:
    """What the simulator says when all passes of a search share one histogram: two searches, two blocks."""
    some = Draws(normal(1, 1500), top_k=20, top_p=0.9)
    with using(ONE_HISTOGRAM.library):
        return sentence_of(lambda: torch.ops.qwen_sim.sample_tokens(some.logits, **some.parameters(), seen=some.seen()))


def refusals() -> str:
    """A few requests that are refused, and how: by the command, by the generator, by the operator."""
    tokenizer = Tokenizer.from_pretrained(resolve_model("tiny").dir)
    long, some = "Once upon a time " * 100, Draws(normal(9, 70))
    calls: tuple[Callable[[], object], ...] = (
        lambda: check_backend("fast", "--backend"),
        lambda: Stages(w8_head=True).require_none("reference"),
        lambda: SamplingOptions.parse(None, None, "1.5", None, None, None, greedy=False),
        lambda: SamplingOptions.parse("0.6", None, None, None, None, None, greedy=True),
        lambda: request(tokenizer, ("tiny", 256), long, 64, SamplingParams(), ()),
        lambda: request(tokenizer, ("tiny", 256), "Once", 0, SamplingParams(), ()),
        lambda: sample_tokens(some.logits, **some.parameters(), seen=some.seen()),
    )
    return "\n".join(_refused(call) for call in calls)


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except BuildError:
        raise
    except (ValueError, RuntimeError) as error:
        return str(error)
    raise AssertionError("The call went through; it was to be refused.")


def reports() -> dict[str, str]:
    """Name of a report in the lesson → its text."""
    return {"histogram": histogram(), "refusals": refusals()}


if __name__ == "__main__":
    raise SystemExit(quotations.main(LESSON, reports))
