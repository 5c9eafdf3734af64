"""One run of the command, once its options are known to be good."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from chapters.ch11_generator.errors import INTERRUPTED
from chapters.ch11_generator.options import SamplingOptions
from chapters.ch11_generator.output import Output, json_object
from chapters.ch11_generator.placement import limit_threads
from chapters.ch11_generator.prompt import DEFAULT_QUESTION, DEFAULT_STORY, find_prompt, wants_chat
from chapters.ch11_generator.stages import PLAIN_CACHE, Stages

if TYPE_CHECKING:
    from chapters.ch11_generator.generator import Generator, Stream
    from qwen3_ref.sampling import SamplingParams


@dataclass(frozen=True)
class Job:
    """What to generate, and how to show it. See the options of the command.

    Attributes:
        prompt: from the command line, if it is there; see `find_prompt`.
        prompts: several, to be decoded together in place of one; empty otherwise.
        talk: a conversation in place of one answer; it begins with the prompt if there is one.
        chat: True or False if the user decided it.
        max_tokens: None for `default_max_tokens`; the difference is a remark when the context cuts it.
    """

    model: str
    device: str
    dtype: str
    backend: str
    stages: Stages
    prompt: str | None
    prompts: tuple[str, ...]
    talk: bool
    chat: bool | None
    thinking: bool
    system: str
    max_tokens: int | None
    default_max_tokens: int
    sampling: SamplingOptions
    stop: tuple[str, ...]
    as_json: bool
    quiet: bool


def run(job: Job) -> int:
    """Loads the model and does the job. Returns the exit code; errors are raised."""
    output = Output(quiet=job.quiet, text=not job.as_json)
    prompt = None if job.prompts else find_prompt(job.prompt, read_stdin=not job.talk)
    with _ctrl_c_exits_at_once():
        from chapters.ch11_generator.generator import Generator  # imports PyTorch, hence here and not above
    generator = Generator(
        job.model, job.device, job.dtype, job.backend, stages=job.stages, report=output.note, progress=not job.quiet
    )
    limit_threads(generator.weight_bytes)
    if generator.source.note is not None:
        output.warning(generator.source.note)
    if job.stages.kv_cache != PLAIN_CACHE:
        from chapters.ch10_quantized_kv.cache_formats import cost_sentence  # imports PyTorch

        output.note(cost_sentence(generator.config, job.stages.kv_cache))
    sampling = job.sampling.over(generator.default_sampling)
    if job.prompts:
        return _answer_all(job, generator, output, sampling)
    work = _talk if job.talk else _answer
    return work(job, prompt, generator, output, sampling)


@contextlib.contextmanager
def _ctrl_c_exits_at_once() -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process instead of raising KeyboardInterrupt.

    Raised inside the import system the exception can get lost in a callback, and the program would run on.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        os.write(2, b"error: interrupted.\n")
        os._exit(INTERRUPTED)

    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else has decided what Ctrl-C does
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _answer(job: Job, prompt: str | None, generator: Generator, output: Output, sampling: SamplingParams) -> int:
    is_tiny = generator.source.name == "tiny"
    if prompt is None:
        prompt = DEFAULT_STORY if job.chat is False or (is_tiny and not job.chat) else DEFAULT_QUESTION
    chat = wants_chat(job.chat, prompt, has_template=generator.has_chat_template, is_tiny=is_tiny)
    limit = job.max_tokens or job.default_max_tokens
    if chat:
        messages = [{"role": "system", "content": job.system}] if job.system else []
        messages.append({"role": "user", "content": prompt})
        stream = generator.stream_chat(messages, limit, sampling, job.stop, thinking=job.thinking)
    else:
        stream = generator.stream(prompt, limit, sampling, job.stop)
    if job.max_tokens is not None and stream.max_new_tokens < job.max_tokens:
        output.note(
            f"--max-tokens is {job.max_tokens}, but the context of {generator.max_context} tokens has room for "
            f"{stream.max_new_tokens}."
        )
    if not chat:
        output.text(prompt, dim=True)  # a continuation reads as one text with what it continues
    interrupted = _show(stream, output)
    if job.as_json:
        output.json(json_object(stream.prompt, stream.result, generator.source.note))
    output.figures(stream.result, "interrupted" if interrupted else None)
    return INTERRUPTED if interrupted else 0


def _answer_all(job: Job, generator: Generator, output: Output, sampling: SamplingParams) -> int:
    limit = job.max_tokens or job.default_max_tokens
    results = generator.generate_batch(job.prompts, limit, sampling, job.stop)
    for prompt, result in zip(job.prompts, results, strict=True):
        output.text(prompt, dim=True)
        output.text(result.text)
        output.end_line()
        if job.as_json:
            output.json(json_object(prompt, result, generator.source.note))
        output.figures(result)
    return 0


def _show(stream: Stream, output: Output) -> bool:
    """Prints the text as it comes. True if Ctrl-C stopped it."""
    try:
        for piece in stream:
            output.text(piece.text)
        interrupted = False
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second one must not cut the figures short
        interrupted = True
    output.end_line()
    return interrupted


def _talk(job: Job, prompt: str | None, generator: Generator, output: Output, sampling: SamplingParams) -> int:
    from chapters.ch11_generator.chat import HELP, Chat, terminal_reader

    wants_chat(True, "", has_template=generator.has_chat_template, is_tiny=False)
    read = terminal_reader()
    first = [prompt] if prompt else []
    output.note(f"{generator.source.name} on {generator.device}. {HELP}")
    chat = Chat(
        generator,
        output,
        lambda: first.pop() if first else read(),
        max_new_tokens=job.max_tokens or job.default_max_tokens,
        sampling=sampling,
        stop=job.stop,
        system=job.system,
        thinking=job.thinking,
    )
    return chat.run()
