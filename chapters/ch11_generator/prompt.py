"""Where the prompt comes from, and whether it goes through the chat template."""

from __future__ import annotations

import os
import select
import stat
import sys

from chapters.ch11_generator.errors import ArgumentError, GeneratorError

DEFAULT_STORY = "Once upon a time"
DEFAULT_QUESTION = "Explain in three short sentences why the sky is blue."
MOST_PROMPTS = 8  # of a batch: what the decode kernels take
_MAX_STDIN_BYTES = 16 << 20
_PIPE_WAIT_S = 3.0
_REQUESTS = ("tell ", "write ", "please ", "can ", "hello", "hi ", "hi,", "hi!")


def find_prompt(given: str | None, *, read_stdin: bool = True) -> str | None:
    """The prompt, from the first of: the command line, QWEN_PROMPT, a pipe or file on stdin. None if there is none.

    Args:
        given: from the command line; `-` reads stdin to its end, whatever stdin is.
        read_stdin: False leaves stdin alone, for a conversation that reads its turns from there.
    Raises:
        ArgumentError: the prompt is empty, or stdin is no UTF-8 text.
    """
    if given == "-":
        if not read_stdin:
            raise ArgumentError("the prompt is - but a conversation reads its turns from stdin; leave out one of them.")
        return _not_empty(_read_stdin(), "stdin")
    if given is not None:
        return _not_empty(given, "the prompt")
    if os.environ.get("QWEN_PROMPT"):
        return check_text("QWEN_PROMPT", os.environ["QWEN_PROMPT"])
    return (_read_stdin() or None) if read_stdin and _stdin_has_data() else None


def read_prompts(file: str, most: int) -> tuple[str, ...]:
    """The prompts of a text file, one a line; empty lines are left out.

    Raises:
        ArgumentError: the file cannot be read, is no UTF-8 text, or holds no prompt or more than `most`.
    """
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MAX_STDIN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ArgumentError(f"--prompts is {file!a}, which cannot be read: {reason or error}.") from None
    prompts = tuple(line for line in decode_text(data, f"--prompts {file!a}").splitlines() if line.strip())
    if not 1 <= len(prompts) <= most:
        raise ArgumentError(f"--prompts {file!a} holds {len(prompts)} prompts; it must be 1 to {most}, one a line.")
    return prompts


def wants_chat(choice: bool | None, prompt: str, *, has_template: bool, is_tiny: bool) -> bool:
    """Whether `prompt` goes through the chat template.

    Without a choice: always for models that have a template, except the tiny model, which is best at continuing stories
    and is asked only what reads as a question or request.

    Raises:
        ArgumentError: chat was chosen and the model has no template.
    """
    if choice and not has_template:
        raise ArgumentError("--chat needs a chat template and this model has none; use --no-chat.")
    if choice is not None:
        return choice
    if is_tiny:
        return prompt.rstrip().endswith("?") or prompt.lstrip().lower().startswith(_REQUESTS)
    return has_template


def check_text(what: str, text: str) -> str:
    """`text` itself if it is Unicode text.

    Raises:
        ArgumentError: it holds lone surrogates: how bytes of a command line arrive that are not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{what} is not valid text at character {error.start}; it must be UTF-8, so check the terminal's encoding."
        ) from None
    return text


def decode_text(data: bytes, what: str = "stdin") -> str:
    """`data` as UTF-8 text without the newline that ends it. `what` is what an error calls it.

    Raises:
        ArgumentError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{what} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start} belongs to no character;"
            " convert it first, for example with iconv."
        ) from None


def _stdin_has_data() -> bool:
    """Whether stdin is a file, or a pipe on which something arrives soon.

    Programs that start this one often leave it an open pipe that never says anything; waiting for its end would hang.
    """
    if sys.stdin is None:
        return False
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return True
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
            return False  # a terminal or /dev/null
        return bool(select.select([descriptor], [], [], _PIPE_WAIT_S)[0])
    except (OSError, ValueError):
        return False


def _read_stdin() -> str:
    if sys.stdin is None:
        raise ArgumentError("the prompt is - but stdin is closed; give a prompt or a pipe.")
    try:
        data = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    except OSError as error:
        raise GeneratorError(f"stdin cannot be read: {error.strerror or error}.") from error
    if len(data) > _MAX_STDIN_BYTES:
        raise ArgumentError(f"stdin holds more than {_MAX_STDIN_BYTES >> 20} MiB, more than any context; shorten it.")
    return decode_text(data)


def _not_empty(text: str, what: str) -> str:
    if not text:
        raise ArgumentError(f"{what} is empty; give at least one character.")
    return check_text(what, text)
