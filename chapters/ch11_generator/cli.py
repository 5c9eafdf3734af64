"""The command: `make generate`, `make chat`, `python -m chapters.ch11_generator`, `qwen-generate`.

Exit codes: 0 text was generated, 1 it could not be, 2 an option or the prompt cannot be used, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, TextIO

import typer

from chapters.ch11_generator.backends import check_backend
from chapters.ch11_generator.errors import INTERRUPTED, ArgumentError, GeneratorError
from chapters.ch11_generator.job import Job, run
from chapters.ch11_generator.options import SamplingOptions, whole_number
from chapters.ch11_generator.output import Output, writing
from chapters.ch11_generator.placement import check_device, check_dtype
from chapters.ch11_generator.prompt import MOST_PROMPTS, check_text, read_prompts
from chapters.ch11_generator.stages import Stages, switch

_PROG = "qwen-generate"
_MAX_TOKENS, _MAX_TOKENS_LONG = 256, 1024

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _option(*names: str, text: str, metavar: str | None = None, panel: str | None = None) -> Any:
    # Values stay text here and are checked by `options`, which names the option, the value and the range.
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel)


_SAMPLING, _CHAT, _OUTPUT = "Sampling (by default as the model's generation_config.json says)", "Chat", "Output"
_STAGES = "Stages of the kernels"

Prompt = Annotated[
    str | None,
    typer.Argument(
        help="The prompt. - reads stdin; so does a pipe. Without one, a default prompt runs.", metavar="[PROMPT]"
    ),
]
PromptOption = Annotated[
    str | None, _option("--prompt", "-p", text="The prompt again, for scripts; also QWEN_PROMPT.", metavar="TEXT")
]
Prompts = Annotated[
    str | None,
    _option("--prompts", text=f"A file of up to {MOST_PROMPTS} prompts, one a line, decoded together.", metavar="FILE"),
]
Model = Annotated[
    str,
    _option(
        "--model", "-m", metavar="MODEL",
        text="auto: Qwen/Qwen3-0.6B from cache or hub, else the tiny one; or tiny, a directory, a hub id.",
    ),
]  # fmt: skip
Device = Annotated[str, _option("--device", text="auto, cpu, cuda, cuda:N.", metavar="DEVICE")]
Dtype = Annotated[str, _option("--dtype", text="auto (bfloat16), float32, bfloat16, float16.", metavar="DTYPE")]
BackendName = Annotated[
    str, _option("--backend", text="auto (kernels on a GPU), reference, paged, kernels.", metavar="NAME")
]
Kernels = Annotated[
    str | None, _option("--kernels", text="off: PyTorch's operations alone.", metavar="on|off", panel=_STAGES)
]
Attention = Annotated[
    str,
    _option(
        "--attention", text="Of a decode step: fused, auto, grouped, split, sdpa, …", metavar="NAME", panel=_STAGES
    ),
]
W8Head = Annotated[bool, _option("--w8-head", text="The output head as int8: see make quality-gate.", panel=_STAGES)]
Graphs = Annotated[
    str | None, _option("--graphs", text="Decode steps as CUDA graphs. Default: on.", metavar="on|off", panel=_STAGES)
]
KVCache = Annotated[
    str, _option("--kv-cache", text="bf16, fp8 or fp4: fewer bytes a token.", metavar="NAME", panel=_STAGES)
]
MaxTokens = Annotated[
    str | None,
    _option(
        "--max-tokens",
        "-n",
        metavar="N",
        text=f"At most so many new tokens; {_MAX_TOKENS}, or {_MAX_TOKENS_LONG} in a conversation or with --thinking.",
    ),
]
Stop = Annotated[
    list[str] | None, _option("--stop", text="End the text before this string; repeatable.", metavar="TEXT")
]
Temperature = Annotated[
    str | None,
    _option("--temperature", "-t", text="0 is greedy. Qwen3: 0.6.", metavar="X", panel=_SAMPLING),
]
TopK = Annotated[
    str | None, _option("--top-k", text="Keep the K likeliest tokens; 0 all. Qwen3: 20.", metavar="K", panel=_SAMPLING)
]
TopP = Annotated[
    str | None,
    _option(
        "--top-p", text="Keep the likeliest tokens that sum to P; 1 all. Qwen3: 0.95.", metavar="P", panel=_SAMPLING
    ),
]
MinP = Annotated[
    str | None,
    _option(
        "--min-p", text="Keep tokens at least P times as likely as the likeliest; 0 all.", metavar="P", panel=_SAMPLING
    ),
]
Penalty = Annotated[
    str | None,
    _option("--repetition-penalty", text="Above 1 makes tokens seen before less likely.", metavar="X", panel=_SAMPLING),
]
Seed = Annotated[
    str | None,
    _option("--seed", text="The same seed gives the same text; drawn if not given.", metavar="N", panel=_SAMPLING),
]
Greedy = Annotated[bool, _option("--greedy", text="Always the likeliest token: --temperature 0.", panel=_SAMPLING)]
ChatFlag = Annotated[
    bool | None,
    _option(
        "--chat/--no-chat", panel=_CHAT,
        text="Use the chat template, or continue the prompt as it is. Default: chat with models that have a template; "
        "with tiny only for a question or request. --chat without a prompt talks until Ctrl-D.",
    ),
]  # fmt: skip
Interactive = Annotated[
    bool, _option("--interactive", "-i", text="Talk, beginning with the prompt if given.", panel=_CHAT)
]
Thinking = Annotated[
    bool | None, _option("--thinking/--no-thinking", text="Let the model think first. Default: no.", panel=_CHAT)
]
System = Annotated[
    str | None, _option("--system", text="What the model is told before the conversation.", metavar="TEXT", panel=_CHAT)
]
Json = Annotated[bool, _option("--json", text="Print one JSON object at the end and no text before it.", panel=_OUTPUT)]
Quiet = Annotated[bool, _option("--quiet", "-q", text="No remarks and no line of figures.", panel=_OUTPUT)]


@app.command()
def generate(
    prompt: Prompt = None,
    prompt_option: PromptOption = None,
    prompts: Prompts = None,
    model: Model = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    backend: BackendName = "auto",
    kernels: Kernels = None,
    attention: Attention = "fused",
    w8_head: W8Head = False,
    graphs: Graphs = None,
    kv_cache: KVCache = "bf16",
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = None,
    seed: Seed = None,
    greedy: Greedy = False,
    chat: ChatFlag = None,
    interactive: Interactive = False,
    thinking: Thinking = None,
    system: System = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> Job:
    """Writes text with Qwen3, on a GPU if there is one and on a CPU otherwise.

    The text goes to stdout as it comes. A last line on stderr tells the model, device, dtype, backend, prompt and new
    tokens, prefill time, decode speed, the seed, and why the text ended (stop or length).
    """
    if prompt is not None and prompt_option is not None:
        raise ArgumentError("there are two prompts, one as an argument and one as --prompt; give one of them.")
    if stop and "" in stop:
        raise ArgumentError("--stop is empty; give at least one character.")
    for text in stop or ():
        check_text("--stop", text)
    check_text("--system", system or "")
    wants_template = chat or interactive or bool(thinking) or system is not None
    if chat is False and wants_template:
        raise ArgumentError(
            "--no-chat continues the prompt as it is; leave out --interactive, --thinking and --system."
        )
    limit = whole_number("--max-tokens", max_tokens, 1, 10**7)
    sampling = SamplingOptions.parse(temperature, top_k, top_p, min_p, repetition_penalty, seed, greedy)
    check_device(device, "--device")
    check_dtype(dtype, "--dtype")
    backend = _backend(check_backend(backend, "--backend"), switch("--kernels", kernels))
    stages = Stages(attention, w8_head, switch("--graphs", graphs) is not False, kv_cache)
    if backend not in ("auto", "kernels"):
        stages.require_none(backend)
    given = prompt if prompt is not None else prompt_option
    # A conversation reads its turns from stdin; with a prompt on the command line --chat means a single answer.
    talk = interactive or bool(chat and given is None and not os.environ.get("QWEN_PROMPT"))
    if prompts is not None and (given is not None or talk or wants_template):
        raise ArgumentError(
            "--prompts continues the prompts of a file as they are; leave out the prompt and the options of a chat."
        )
    if talk and as_json:
        raise ArgumentError("--json prints one answer; give a prompt, and leave out --interactive.")
    return Job(
        model=model,
        device=device,
        dtype=dtype,
        backend=backend,
        stages=stages,
        prompt=given,
        prompts=read_prompts(prompts, MOST_PROMPTS) if prompts is not None else (),
        talk=talk,
        chat=True if wants_template else chat,
        thinking=bool(thinking),
        system=system or "",
        max_tokens=limit,
        default_max_tokens=_MAX_TOKENS_LONG if talk or thinking else _MAX_TOKENS,
        sampling=sampling,
        stop=tuple(stop or ()),
        as_json=as_json,
        quiet=quiet,
    )


def _backend(named: str, kernels: bool | None) -> str:
    """`--backend` and `--kernels` together."""
    if kernels is None:
        return named
    wanted = "kernels" if kernels else "reference"
    if named not in ("auto", wanted):
        raise ArgumentError(
            f"--kernels {'on' if kernels else 'off'} means --backend {wanted}, and --backend is {named}."
        )
    return wanted


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code; every failure becomes one sentence on stderr.

    With QWEN_DEBUG=1 the traceback of a failure is shown in place of the sentence.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded: spinning threads steal busy cores
    try:
        with writing():  # --help writes here; it gives an exit code in place of a job
            job = app(arguments, prog_name=_PROG, standalone_mode=False)
        code = run(job) if isinstance(job, Job) else int(job or 0)
        _flush()
        return code
    except BrokenPipeError:
        return 0  # the reader has what it wanted: `qwen-generate | head -1` is no failure
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _complain("interrupted.")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("QWEN_DEBUG") == "1":
            raise
        sentence, code = _explain(error)
        _complain(sentence)
        return code
    finally:
        _drop_unwritable(sys.stdout)
        _drop_unwritable(sys.stderr)


def _complain(sentence: str) -> None:
    _drop_unwritable(sys.stdout)  # what it still holds would fail once more when `Output` takes it over
    Output().error(sentence)


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, GeneratorError):
        return str(error), error.exit_code
    # typer's own complaints about the command line. Its exceptions have moved between modules from version to version;
    # what they have in common is this method.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        hint = " Put the prompt in quotes." if "unexpected extra argument" in str(error) else ""
        return f"{str(describe()).rstrip('.')}. {_PROG} --help lists the options.{hint}", 2
    name = type(error).__name__
    return f"this should not have happened: {name}: {error}. QWEN_DEBUG=1 shows where; please report it.", 1


def _flush() -> None:
    if sys.stdout is not None:
        with writing():
            sys.stdout.flush()


def _drop_unwritable(stream: TextIO | None) -> None:
    """Points a stream that cannot be written to nowhere: the interpreter's last flush would fail with exit code 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
