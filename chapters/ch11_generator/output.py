"""What the command prints: the text on stdout, everything about it on stderr.

Colours appear on a terminal only, and not with NO_COLOR. A pipe gets the plain text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.console import Console
from rich.text import Text

from chapters.ch11_generator.errors import GeneratorError

if TYPE_CHECKING:
    from chapters.ch11_generator.results import Result

# A model can write any character. On a terminal, control characters could move the cursor or change its settings.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Output:
    """Writes text as it comes, and notes.

    Args:
        quiet: leaves out notes and figures; warnings and errors stay.
        text: False writes no text, for `--json`.
    """

    def __init__(self, *, quiet: bool = False, text: bool = True) -> None:
        self._quiet, self._show_text = quiet, text
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)
        self._thinking = False
        self._line_open = False

    def text(self, text: str, *, dim: bool = False) -> None:
        """Writes `text` at once. On a terminal, thought between <think> and </think> is dim."""
        if not text or not self._show_text:
            return
        with writing():
            if self._out.is_terminal:
                self._styled(text.translate(_CONTROLS), dim)
            else:
                self._out.file.write(text)
            self._out.file.flush()
        self._line_open = not text.endswith("\n")

    def json(self, value: dict[str, Any]) -> None:
        """Writes `value` on one line."""
        with writing():
            self._out.file.write(json.dumps(value, ensure_ascii=False) + "\n")
            self._out.file.flush()

    def _styled(self, text: str, dim: bool) -> None:
        for part in re.split("(<think>|</think>)", text):
            self._thinking |= part == "<think>"
            self._out.print(Text(part, style="dim" if dim or self._thinking else ""), end="", soft_wrap=True)
            self._thinking &= part != "</think>"

    def end_line(self) -> None:
        """Ends the line if text has left it open."""
        if self._line_open:
            self.text("\n")

    def note(self, sentence: str) -> None:
        """A remark that `quiet` leaves out."""
        if not self._quiet:
            self._say(sentence, "dim")

    def warning(self, sentence: str) -> None:
        """A remark that must not be missed."""
        self._say(sentence, "yellow")

    def error(self, sentence: str) -> None:
        """Why the command failed."""
        self._say(f"error: {sentence}", "bold red")

    def figures(self, result: Result, ending: str | None = None) -> None:
        """One line about a generation. `ending` stands in for a finish reason that is not there."""
        self.note(figures_line(result, ending))

    def _say(self, sentence: str, style: str) -> None:
        with contextlib.suppress(OSError):  # a closed stderr takes the remark with it, not the generation
            if self._err.is_terminal:
                self._err.print(Text(sentence, style=style), soft_wrap=True)
            else:
                self._err.file.write(sentence + "\n")
            self._err.file.flush()


def figures_line(result: Result, ending: str | None = None) -> str:
    """Model, device, dtype, backend, tokens, times and how the generation ended, on one line."""
    f = result.figures
    reused = f" ({f.reused_tokens} cached)" if f.reused_tokens else ""
    speed = f"decode {f.decode_tok_s:.1f} tok/s" if f.decode_tok_s else "decode -"
    parts = [
        f.model,
        f.device,
        f.dtype,
        f.backend,
        f"prompt {f.prompt_tokens}{reused}",
        f"new {f.new_tokens}",
        f"prefill {f.prefill_s * 1e3:.0f} ms",
        speed,
        "greedy" if f.seed is None else f"seed {f.seed}",
        result.finish_reason or ending or "unfinished",
    ]
    return "[" + " | ".join(parts) + "]"


def json_object(prompt: str, result: Result, note: str | None) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "prompt": prompt,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "figures": result.figures.to_dict(),
        "note": note,
    }


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # Console would end the process with status 1


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Around writes to stdout: a full disk becomes a sentence. A closed pipe stays what it is, for it is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GeneratorError(f"the text cannot be written to stdout: {error.strerror or error}.") from error


def _console(stream: TextIO | None) -> Console:
    # A closed descriptor gives None, an odd locale an encoding that lacks characters: neither may end a generation.
    if stream is None:
        stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    elif hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    # Rich drops colours for NO_COLOR and keeps dim and bold; who sets it wants none of them.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return _Console(file=stream, color_system=colours, highlight=False, markup=False, emoji=False)
