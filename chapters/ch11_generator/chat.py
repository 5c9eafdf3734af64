"""A chat of many turns on a terminal: history, commands, and a context that does not overflow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

from chapters.ch11_generator.errors import INTERRUPTED, ArgumentError, GeneratorError
from chapters.ch11_generator.generator import Generator
from chapters.ch11_generator.output import Output
from chapters.ch11_generator.prompt import decode_text
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Message

HELP = (
    "/reset forgets the conversation, /system TEXT sets what the model is told first, /think on|off, /help, /exit. "
    "Ctrl-C stops an answer, Ctrl-D ends the chat."
)


class Chat:
    """The conversation of one `Generator`.

    Args:
        read: gives the next line of the user; raises EOFError at the end and KeyboardInterrupt on Ctrl-C.
        system: what the model is told before the first turn; empty for nothing.
    Attributes:
        messages: the turns so far, without the system message.
    """

    def __init__(
        self,
        generator: Generator,
        output: Output,
        read: Callable[[], str],
        *,
        max_new_tokens: int,
        sampling: SamplingParams,
        stop: Sequence[str] = (),
        system: str = "",
        thinking: bool = False,
    ) -> None:
        self._generator, self._output, self._read = generator, output, read
        self._max_new_tokens, self._sampling, self._stop = max_new_tokens, sampling, stop
        self._system, self._thinking = system, thinking
        self.messages: list[Message] = []

    def run(self) -> int:
        """Talks until the user leaves. Returns the exit code: 0, or 130 if two Ctrl-C in a row ended it."""
        interrupted = False
        while True:
            try:
                line = self._read().strip()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if interrupted:
                    return INTERRUPTED
                interrupted = True
                self._output.note("Ctrl-C again, Ctrl-D or /exit ends the chat.")
                continue
            interrupted = False
            if line.startswith("/"):
                if line in ("/exit", "/quit"):
                    return 0
                self._command(line)
            elif line:
                self._turn(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "/reset" and not rest:
            self.messages.clear()
            self._output.note("The conversation is forgotten.")
        elif name == "/system":
            self._system = rest
            self._output.note("The system message is set." if rest else "The system message is gone.")
        elif name == "/think" and rest in ("on", "off"):
            self._thinking = rest == "on"
            self._output.note(f"Thinking is {rest}.")
        elif name == "/help":
            self._output.note(HELP)
        else:
            self._output.warning(f"{line!r} is no command. {HELP}")

    def _turn(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            self._make_room()
            stream = self._generator.stream_chat(
                self._all(), self._max_new_tokens, self._sampling, self._stop, thinking=self._thinking, reuse_cache=True
            )
            ending = None
            try:
                for piece in stream:
                    self._output.text(piece.text)
            except KeyboardInterrupt:
                ending = "interrupted"
            self._output.end_line()
            self._output.figures(stream.result, ending)
            answer = without_thought(stream.result.text)
        except GeneratorError as error:
            self._output.end_line()
            self._output.error(str(error))
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()

    def _all(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        return system + self.messages

    def _make_room(self) -> None:
        """Drops the oldest turns until the answer has room, half the context at most."""
        limit = self._generator.max_context
        room = min(self._max_new_tokens, limit // 2)
        dropped = 0
        while len(self.messages) > 1 and self._prompt_tokens() + room > limit:
            # A turn of the user goes with its answer: the history must begin with the user.
            del self.messages[: 2 if len(self.messages) > 2 else 1]
            dropped += 1
        if dropped:
            turns = "the oldest turn was" if dropped == 1 else f"the {dropped} oldest turns were"
            self._output.warning(f"The context of {limit} tokens is full: {turns} forgotten.")

    def _prompt_tokens(self) -> int:
        return self._generator.count_tokens(self._generator.render(self._all(), self._thinking))


def without_thought(text: str) -> str:
    """An answer without what the model thought before it; Qwen3 is not shown its old thoughts."""
    _, mark, answer = text.partition("</think>")
    if not mark:
        return "" if text.lstrip().startswith("<think>") else text.strip()
    return answer.strip()


def _ask() -> str:
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        print()  # what follows must not stand behind the prompt
        raise


def terminal_reader() -> Callable[[], str]:
    """Reads lines: with a prompt and line editing from a terminal, plainly from a pipe.

    Raises (when called):
        EOFError: stdin has ended.
        ArgumentError: a line is not UTF-8.
    """
    if sys.stdin is None:
        raise ArgumentError("a chat reads stdin, and stdin is closed; give a prompt instead.")
    if sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() history and editing
        return _ask

    def read() -> str:
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        return decode_text(data)

    return read
