"""Our engines: as they are, with one stage off at a time, and the way from the first version to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from chapters.ch06_split_attention.paged_engine import PagedEngine
from chapters.ch06_split_attention.paged_model import FUSED
from chapters.ch09_graph_capture.graph_engine import GraphEngine
from chapters.ch10_quantized_kv.cache_formats import CASTS, PLAIN
from chapters.ch11_generator.end_to_end.contender import Answer, CannotRun, Contender, on_a_gpu
from chapters.ch11_generator.end_to_end.subject import Request
from qwen3_ref.generate import DrawingEngine, Engine, ReferenceEngine
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.building import Edit, Library
from qwen_cuda.loading import default_library, using

OURS, W8 = "ours", "ours_w8_head"
CODED = {name: f"ours_{name}_cache" for name in CASTS}  # name of a cache → variant
# Kernels of a greedy decode step → the file in which they ask for programmatic dependent launch.
LAUNCHES = {
    "decode_linear": "decode_linear.cu",
    "fused_decode_attention": "partition_merge.cuh",
    "head_argmax": "head_argmax.cuh",
    "advance_decode": "advance_decode.cu",
}


class Row(NamedTuple):
    """A row of a table: a variant, and what sets it apart."""

    variant: str
    what: str


ABLATIONS = (
    Row(OURS, "all stages"),
    Row("ours_without_pdl", "without programmatic dependent launch (chapter 9)"),
    Row("ours_split", "attention as the write of the cache and a second launch (chapter 6)"),
    Row("ours_without_graphs", "launch by launch in place of CUDA graphs (chapter 9)"),
    Row("paged", "products and head by PyTorch, the token by way of the host (chapters 7 to 9)"),
    Row("reference", "no kernel of ours"),
    Row(W8, "and the head as int8 (chapter 8)"),
    *(Row(variant, f"and keys and values as {name.upper()} (chapter 10)") for name, variant in CODED.items()),
)
CHAIN = (
    Row("reference", "plain PyTorch with a KV cache (chapter 1)"),
    Row("paged_grouped", "kernels for norms, SiLU·mul, pages and attention, a block a KV head (chapters 2 to 5)"),
    Row("paged", "attention in one launch, cut into partitions (chapter 6)"),
    Row("ours_launched", "products and head fused with their neighbours; tokens stay on the device (chapters 7, 8)"),
    Row("ours_without_pdl", "the step as a CUDA graph (chapter 9)"),
    Row(OURS, "each launch prepared before the one ahead has ended (chapter 9)"),
    Row(W8, "the head as int8 (chapter 8)"),
)


def contenders() -> Iterator[Contender]:
    """All of ours."""
    yield Contender(OURS, "ours", _kernels)
    yield Contender(W8, "ours, int8 head", partial(_kernels, w8_head=True), int8_head=True)
    for name, variant in CODED.items():
        yield Contender(variant, f"ours, {name.upper()} cache", partial(_kernels, kv_cache=name), kv_cache=name)
    yield Contender("ours_split", "ours, attention in two launches", partial(_kernels, attention="split"))
    launched = partial(_kernels, graphs=False)
    needs = on_a_gpu
    yield Contender("ours_without_graphs", "ours, without graphs", launched, unavailable=needs("ours_without_graphs"))
    for name, title, make in (
        ("ours_without_pdl", "ours, without dependent launch", _kernels),
        ("ours_launched", "ours, without graphs and dependent launch", launched),
    ):
        yield Contender(name, title, make, unavailable=needs(name), inside=without_pdl)
    yield Contender("paged", "chapters 2 to 6", _paged)
    yield Contender("paged_grouped", "chapters 2 to 5", partial(_paged, attention="grouped"))
    yield Contender("reference", "chapter 1", _reference)


def answers(engine: Engine, prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    """Greedy tokens, none of which ends the text, from an empty cache."""
    engine.reset()
    if isinstance(engine, DrawingEngine):
        return list(engine.tokens(prompt, SamplingParams(), (), new_tokens))
    tokens = [int(engine.prefill(prompt).argmax())]
    while len(tokens) < new_tokens:
        tokens.append(int(engine.decode(tokens[-1]).argmax()))
    return tokens


def libraries_without_pdl() -> list[Library]:
    """The kernels of a decode step, launched without programmatic dependent launch."""
    return [
        Library(plain.kind, plain.sources, edits=(Edit(file, "options.dependent = true;", ""),))
        for name, file in LAUNCHES.items()
        for plain in [default_library(name, "cuda")]
    ]


@contextmanager
def without_pdl() -> Iterator[None]:
    with ExitStack() as stack:
        for library in libraries_without_pdl():
            stack.enter_context(using(library))
        yield


def _kernels(
    request: Request, attention: str = FUSED, w8_head: bool = False, graphs: bool = True, kv_cache: str = PLAIN
) -> Answer:
    subject = request.subject
    head = subject.w8_head() if w8_head else None
    model = subject.paged(attention) if kv_cache == PLAIN else subject.coded(kv_cache)
    failed: list[str] = []
    engine = GraphEngine(model, request.max_length, w8_head=head, graphs=graphs, report=failed.append)

    def answer(new_tokens: int) -> list[int]:
        tokens = answers(engine, request.prompt, new_tokens)
        if failed:  # its time would be that of another variant
            raise CannotRun(failed[0])
        return tokens

    return answer


def _paged(request: Request, attention: str = FUSED) -> Answer:
    return _with(request, lambda length: PagedEngine(request.subject.paged(attention), length))


def _reference(request: Request) -> Answer:
    return _with(request, lambda length: ReferenceEngine(request.subject.model, length))


def _with(request: Request, make: Callable[[int], Engine]) -> Answer:
    return partial(answers, make(request.max_length), request.prompt)
