"""The conversation: its history, its commands, Ctrl-C, and a context that fills up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chapters.ch11_generator.chat import Chat, without_thought
from chapters.ch11_generator.generator import Generator, Stream
from chapters.ch11_generator.output import Output
from qwen3_ref.generate import Piece
from qwen3_ref.sampling import SamplingParams

Talk = Callable[..., tuple[Chat, int]]


@pytest.fixture
def talk(tiny: Generator) -> Talk:
    """Runs a conversation whose user says `lines`; an exception among them is raised in place of a line."""

    def run(*lines: str | type[BaseException], generator: Generator = tiny, **options: object) -> tuple[Chat, int]:
        left = list(lines)

        def read() -> str:
            line = left.pop(0) if left else EOFError
            if isinstance(line, str):
                return line
            raise line

        settings = {"max_new_tokens": 24, "sampling": SamplingParams(), **options}
        chat = Chat(generator, Output(), read, **settings)  # type: ignore[arg-type]
        return chat, chat.run()

    return run


def test_turns_are_kept_and_answers_use_them(talk: Talk, tiny: Generator, capsys: pytest.CaptureFixture[str]) -> None:
    chat, code = talk("What is two plus two?", "", "What comes after six?", "/exit", "never read")
    assert code == 0
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    assert chat.messages[2]["content"] == "What comes after six?"
    printed = capsys.readouterr()
    assert printed.out == chat.messages[1]["content"] + "\n" + chat.messages[3]["content"] + "\n"
    assert printed.err.count("[tiny | ") == 2
    assert "cached)" in printed.err.splitlines()[-1]


def test_commands(talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prompts: list[str] = []
    start = Generator.stream_chat

    def watch(self: Generator, *arguments: object, **options: object) -> Stream:
        stream = start(self, *arguments, **options)  # type: ignore[arg-type]
        prompts.append(stream.prompt)
        return stream

    monkeypatch.setattr(Generator, "stream_chat", watch)
    chat, _ = talk(
        "Hello", "/reset", "/system Be kind.", "/think on", "Hello", "/think off", "/system", "/help", "/nope", "Hi"
    )
    assert "system" not in prompts[0]
    assert "<|im_start|>system\nBe kind.<|im_end|>" in prompts[1]
    assert prompts[1].count("<|im_start|>user") == 1  # reset forgot the first turn
    assert "</think>" in prompts[0]
    assert not prompts[1].endswith("</think>\n\n")
    assert "Be kind" not in prompts[2]
    assert prompts[2].endswith("</think>\n\n")
    assert len(chat.messages) == 4
    printed = capsys.readouterr().err
    assert "'/nope' is no command. /reset" in printed
    assert "Thinking is on." in printed


def test_end_of_input_leaves_and_two_interrupts_at_the_prompt_leave(talk: Talk) -> None:
    assert talk(EOFError)[1] == 0
    assert talk(KeyboardInterrupt, KeyboardInterrupt, "never read")[1] == 130
    chat, code = talk(KeyboardInterrupt, "Hello", KeyboardInterrupt, "/exit")
    assert code == 0
    assert len(chat.messages) == 2


def test_an_interrupt_stops_the_answer_and_not_the_chat(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    iterate = Stream.__iter__
    answers = 0

    def interrupted(self: Stream) -> Iterator[Piece]:
        nonlocal answers
        answers += 1
        for number, piece in enumerate(iterate(self)):
            if answers == 1 and number == 3:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(Stream, "__iter__", interrupted)
    chat, code = talk("Tell me a story about a fox.", "What is two plus two?")
    assert code == 0
    assert len(chat.messages) == 4
    assert chat.messages[1]["content"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("| interrupted]")
    assert lines[1].endswith(("| stop]", "| length]")), "the second answer came to its own end"


def test_a_full_context_drops_the_oldest_turns_and_says_so(
    talk: Talk, endless: Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = SamplingParams(temperature=1.0, seed=0)  # random weights, taken greedily, may say nothing visible
    chat, _ = talk(*(f"Question {number} is here" for number in range(6)), generator=endless, sampling=warm)
    assert chat.messages[0]["role"] == "user"
    assert chat.messages[0]["content"] != "Question 0 is here"
    assert chat.messages[-2]["content"] == "Question 5 is here"
    printed = capsys.readouterr().err
    assert "The context of 128 tokens is full: the oldest turn was forgotten." in printed
    assert "error" not in printed
    assert printed.count("| length]") == 6


def test_a_message_longer_than_the_context_is_refused_and_forgotten(
    talk: Talk, endless: Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, code = talk("Hi there", "time " * 300, generator=endless)
    assert code == 0
    assert "error: the prompt has" in capsys.readouterr().err
    assert all("time time" not in message["content"] for message in chat.messages)


def test_a_model_without_a_template_cannot_chat(endless_dir: Path, tmp_path: Path) -> None:
    from chapters.ch11_generator.cli import main

    directory = tmp_path / "plain"
    directory.mkdir()
    for file in endless_dir.iterdir():
        if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (directory / file.name).write_bytes(file.read_bytes())
    assert main(["--model", str(directory), "--device", "cpu", "--chat"]) == 2


@pytest.mark.parametrize(
    ("text", "answer"),
    [("yes ", "yes"), ("<think>\nhm\n</think>\n\nyes", "yes"), ("<think>\nhm", ""), ("a<b", "a<b")],
)
def test_thoughts_are_not_kept(text: str, answer: str) -> None:
    assert without_thought(text) == answer
