"""Many requests on one generator: every answer right again, memory flat, whatever came before.

    python -m chapters.ch11_generator.soak --requests 10000 --output soak.json

Requests are drawn from a fixed set of different ones: prompts, lengths, ways of sampling, stop strings, several prompts
together, streams that are left in the middle, and some that must be refused. The first answer to each is remembered,
and every later one must be the same tokens. Exit code: 0, or 1 with a sentence about what went wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch

from chapters.ch11_generator.errors import ArgumentError, GeneratorError
from chapters.ch11_generator.generator import Generator
from chapters.ch11_generator.stages import KV_CACHES, PLAIN_CACHE, Stages
from qwen3_ref.sampling import SamplingParams

WORDS = "once upon a time there was little cat and dog who went to the park with mom they saw big red ball".split()
DIFFERENT = 200  # requests; each comes up about 50 times in 10,000
HOST_GROWTH = 64 << 20  # bytes: what allocators of the host may keep between the first half and the end

Tokens = list[list[int]]


@dataclass(frozen=True)
class Wish:
    """One request. `left_after`: tokens after which its stream is left, None for never."""

    prompts: tuple[str, ...]
    tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    left_after: int | None


def wish(number: int, longest: int) -> Wish:
    """Request `number` of the fixed set; prompts of up to `longest` words."""
    draw = random.Random(number)
    many = draw.choice((1, 1, 1, 1, 2, 3, 8))
    prompts = tuple(" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(many))
    sampling = SamplingParams(
        temperature=draw.choice((0.0, 0.0, 0.7, 1.3)),
        top_k=draw.choice((0, 1, 20)),
        top_p=draw.choice((1.0, 0.9)),
        min_p=draw.choice((0.0, 0.05)),
        repetition_penalty=draw.choice((1.0, 1.0, 1.2)),
        seed=number,
    )
    left_after = draw.randint(0, 9) if many == 1 and draw.random() < 0.2 else None
    return Wish(prompts, draw.randint(1, 48), sampling, draw.choice(((), (".",), ("cat", "dog"))), left_after)


def answer(generator: Generator, one: Wish) -> Tokens:
    """The tokens of each prompt."""
    options = one.tokens, one.sampling, one.stop
    if len(one.prompts) > 1:
        return [result.token_ids for result in generator.generate_batch(one.prompts, *options)]
    stream = generator.stream(one.prompts[0], *options)
    return [[piece.token_id for piece in islice(stream, one.left_after)]]


def must_refuse(generator: Generator) -> None:
    """What cannot be answered, and must leave the generator as it was."""
    for prompt, tokens in (("", 5), ("cat " * (generator.max_context + 1), 5), ("cat", 0)):
        try:
            generator.generate(prompt, tokens)
        except ArgumentError:
            continue
        raise AssertionError(f"a prompt of {len(prompt)} characters and {tokens} tokens was not refused")


@dataclass
class Memory:
    """Bytes in use: of the GPU by tensors, of the process at its peak."""

    gpu: int
    host_peak: int

    @classmethod
    def now(cls, generator: Generator) -> Memory:
        gpu = torch.cuda.memory_allocated() if generator.device.startswith("cuda") else 0
        unit = 1 if sys.platform == "darwin" else 1024
        return cls(gpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def soak(generator: Generator, requests: int, *, different: int = DIFFERENT, longest: int = 60) -> dict[str, object]:
    """Runs `requests` requests and returns the figures.

    Raises:
        AssertionError: an answer differs from an earlier one to the same request, a bad request was answered, or memory
            has grown in the second half.
    """
    known: dict[int, Tokens] = {}
    order, start = random.Random(0), time.perf_counter()
    drawn, middle = 0, Memory(0, 0)
    for count in range(requests):
        if count == max(requests // 2, 1):
            middle = Memory.now(generator)
        if count % 50 == 0:
            must_refuse(generator)
        number = order.randrange(different)
        tokens = answer(generator, wish(number, longest))
        drawn += sum(map(len, tokens))
        before = known.setdefault(number, tokens)
        assert tokens == before, f"request {number} was answered with {before}, and now, as number {count}, {tokens}"
    end = Memory.now(generator)
    assert end.gpu <= middle.gpu, f"the GPU's memory in use grew from {middle.gpu} to {end.gpu} bytes"
    grown = end.host_peak - middle.host_peak
    assert grown <= HOST_GROWTH, f"the process grew by {grown} bytes in the second half"
    return {
        "requests": requests,
        "different": len(known),
        "tokens": drawn,
        "seconds": round(time.perf_counter() - start, 1),
        "model": generator.source.name,
        "device": generator.device,
        "backend": generator.backend,
        "memory": {"middle": asdict(middle), "end": asdict(end)},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--backend", default="kernels")
    parser.add_argument("--kv-cache", choices=KV_CACHES, default=PLAIN_CACHE)
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if options.requests < 1:
        parser.error(f"--requests is {options.requests}; it must be at least 1.")
    try:
        stages = Stages(kv_cache=options.kv_cache)
        generator = Generator(options.model, backend=options.backend, stages=stages, report=print)
        figures = soak(generator, options.requests) | {"kv_cache": options.kv_cache}
    except (AssertionError, GeneratorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = json.dumps(figures, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
