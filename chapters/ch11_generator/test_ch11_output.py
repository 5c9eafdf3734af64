"""What is printed where, where prompts come from, and when the chat template is used."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chapters.ch11_generator import prompt as prompt_module
from chapters.ch11_generator.cli import main
from chapters.ch11_generator.errors import ArgumentError
from chapters.ch11_generator.output import Output
from chapters.ch11_generator.prompt import DEFAULT_STORY, find_prompt, wants_chat

TINY = ("--model", "tiny", "--device", "cpu")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # Not a fixture: pytest puts its own stdout back between a fixture and its test.
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    return screen


def test_json_is_one_object_and_nothing_else_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "Once upon a time", "--json", "--seed", "1", "-n", "12"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["prompt"] == "Once upon a time"
    assert len(answer["token_ids"]) == answer["figures"]["new_tokens"] == 12
    assert answer["finish_reason"] == "length"
    assert answer["figures"]["seed"] == 1
    assert answer["text"]
    assert printed.err.startswith("[tiny | cpu | bfloat16 | reference | prompt 4 | new 12 | prefill ")


def test_a_story_follows_its_prompt_and_an_answer_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "Once upon a time", "-n", "5", "--greedy"]) == 0
    story = capsys.readouterr()
    assert story.out.startswith("Once upon a time, ")
    assert "| greedy | length]" in story.err
    assert main([*TINY, "What is two plus two?", "-n", "20", "--greedy", "--quiet"]) == 0
    answer = capsys.readouterr()
    assert "What is" not in answer.out
    assert answer.out.endswith("\n")
    assert answer.err == ""


def test_equal_seeds_print_equal_text(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("5", "5", "6"):
        assert main([*TINY, "-n", "40", "--seed", seed, "--temperature", "1.5"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith(DEFAULT_STORY)


def test_a_limit_that_the_context_cuts_is_told(endless_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", str(endless_dir), "--no-chat", "--device", "cpu", "-n", "500", "Once"]) == 0
    assert "--max-tokens is 500, but the context of 128 tokens has room for 127." in capsys.readouterr().err
    assert main(["-m", str(endless_dir), "--no-chat", "--device", "cpu", "Once"]) == 0
    assert "--max-tokens" not in capsys.readouterr().err  # nobody asked for 256


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--model", "/no/such/place"], 1, "/no/such/place does not exist"),
        (["--model", "tiny", "--device", "cuda:77"], 1, "device is 'cuda:77', but"),
        (["--model", "tiny", "--prompt", "time " * 3000], 2, "but the context of tiny is"),
    ],
)
def test_a_failure_is_one_sentence_with_its_exit_code(
    arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert sentence in printed.err


def test_weights_cut_short_are_one_sentence(
    endless_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "cut"
    shutil.copytree(endless_dir, directory)
    os.truncate(directory / "model.safetensors", 10_000)
    assert main(["--model", str(directory), "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "may be cut short" in printed.err


def test_qwen_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN_DEBUG", "1")
    with pytest.raises(ArgumentError, match="--seed is 'x'"):
        main(["--seed", "x"])


def test_a_failure_that_nobody_foresaw_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: object) -> int:
        raise KeyError("odd")

    monkeypatch.setattr("chapters.ch11_generator.cli.run", fail)
    assert main([]) == 1
    assert "this should not have happened: KeyError: 'odd'. QWEN_DEBUG=1 shows where" in capsys.readouterr().err


def test_a_terminal_gets_dim_thoughts_and_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    output = Output()
    for text in ("<think>", "so", "</think>", "A\x1b[31mB\tC\r\n", "tail "):
        output.text(text)
    output.end_line()
    shown = terminal.getvalue()
    assert "\x1b[2m<think>\x1b[0m" in shown
    assert "\x1b[2mso\x1b[0m" in shown
    assert "A\ufffd[31mB" in shown
    assert "\r" not in shown
    assert shown.endswith("tail \n")


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    output = Output()
    output.text("<think>so</think>yes\n")
    output.error("no.")
    assert terminal.getvalue() == "<think>so</think>yes\nerror: no.\n"


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(quiet=True)
    output.text("<think>\x1b[31m é\u202e" + "x" * 300 + "  ")
    output.note("left out")
    output.warning("kept")
    printed = capsys.readouterr()
    assert printed.out == "<think>\x1b[31m é\u202e" + "x" * 300 + "  "
    assert printed.err == "kept\n"


def test_an_encoding_without_the_character_does_not_end_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Output().text("caf\u00e9")
    assert raw.getvalue() == b"caf?"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    def hold(data: bytes) -> None:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        monkeypatch.setattr(sys, "stdin", opened.enter_context(os.fdopen(reader, encoding="utf-8")))

    with contextlib.ExitStack() as opened:
        yield hold


def test_prompts_come_from_the_command_line_then_the_environment_then_a_pipe(
    stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(b"from the pipe\n")
    monkeypatch.setenv("QWEN_PROMPT", "from the environment")
    assert find_prompt("given") == "given"
    assert find_prompt(None) == "from the environment"
    monkeypatch.setenv("QWEN_PROMPT", "")
    assert find_prompt(None, read_stdin=False) is None
    assert find_prompt(None) == "from the pipe"


def test_an_empty_pipe_is_no_prompt_but_an_empty_dash_is_an_error(stdin: Callable[[bytes], None]) -> None:
    stdin(b"")
    assert find_prompt(None) is None
    stdin(b"\n")
    with pytest.raises(ArgumentError, match="stdin is empty"):
        find_prompt("-")


def test_a_pipe_on_which_nothing_comes_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(prompt_module, "_PIPE_WAIT_S", 0.05)
    with open(reader, encoding="utf-8") as silent, open(writer, "w"):
        monkeypatch.setattr(sys, "stdin", silent)
        assert find_prompt(None) is None


def test_stdin_must_be_utf8_and_of_a_sensible_size(
    stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin("né\nzwei".encode())
    assert find_prompt("-") == "né\nzwei"
    stdin(b"ab\xffc")
    with pytest.raises(ArgumentError, match="byte 0xff at offset 2"):
        find_prompt("-")
    monkeypatch.setattr(prompt_module, "_MAX_STDIN_BYTES", 1 << 10)
    stdin(b"x" * 2000)
    with pytest.raises(ArgumentError, match="stdin holds more than"):
        find_prompt("-")


def test_a_closed_stdin_is_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert find_prompt(None) is None
    with pytest.raises(ArgumentError, match="stdin is closed"):
        find_prompt("-")


@pytest.mark.parametrize(
    ("choice", "prompt", "has_template", "is_tiny", "chat"),
    [
        (None, "Once upon a time", True, True, False),
        (None, "What did Leo take? ", True, True, True),
        (None, "Tell me a story", True, True, True),
        (None, "Once upon a time", True, False, True),
        (None, "Why?", False, False, False),
        (False, "Why?", True, False, False),
        (True, "Once upon a time", True, True, True),
    ],
)
def test_the_template_is_used_when_it_makes_sense(
    choice: bool | None, prompt: str, has_template: bool, is_tiny: bool, chat: bool
) -> None:
    assert wants_chat(choice, prompt, has_template=has_template, is_tiny=is_tiny) is chat


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(ArgumentError, match="needs a chat template"):
        wants_chat(True, "Hi", has_template=False, is_tiny=False)
