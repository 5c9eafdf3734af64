"""The command as a process: signals, pipes, a missing hub, and the bytes of a real command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chapters.ch11_generator.fake_hub import FakeHub
from chapters.ch11_generator.generator import Generator
from qwen3_ref.hub import DEFAULT_REPO, TINY_DIR
from qwen3_ref.sampling import SamplingParams

Command = Callable[..., "subprocess.Popen[bytes]"]


def _end(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=300)
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    return process.returncode, (out or b"").decode(), err.decode()


def test_without_a_hub_and_without_options_the_tiny_model_writes_a_story(command: Command) -> None:
    code, out, err = _end(command())
    assert code == 0
    assert out.startswith("Once upon a time")
    assert len(out.split()) > 30
    assert out.endswith("\n")
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("Qwen/Qwen3-0.6B is not in the local cache, and no hub answers at http://127.0.0.1:9")
    assert lines[0].endswith("The tiny model runs instead.")
    assert lines[1].startswith("[tiny | cpu | bfloat16 | reference | prompt ")


def test_a_quantised_cache_says_what_a_token_costs(command: Command) -> None:
    options = ("--model", "tiny", "--greedy", "--max-tokens", "5", "--device", "cpu", "--backend", "kernels", "Once")
    code, out, err = _end(command(*options, "--kv-cache", "fp8"))
    assert code == 0
    assert out.startswith("Once")
    assert "KV cache: fp8, 3,168 bytes a token (bf16 6,144, fp4 1,728)." in err.splitlines()


def test_prompts_of_a_file_are_answered_one_below_the_other(command: Command, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Once upon a time\n\nThe cat\n")
    options = ("--model", "tiny", "--greedy", "--max-tokens", "9", "--prompts", str(tmp_path / "prompts.txt"))
    texts = {}
    for kernels in ("on", "off"):
        code, out, err = _end(command(*options, "--kernels", kernels))
        assert code == 0
        assert [line.split("|")[3].strip() for line in err.splitlines()] == [
            "kernels" if kernels == "on" else "reference"
        ] * 2
        texts[kernels] = out
    assert texts["on"] == texts["off"]
    assert texts["on"].splitlines()[0].startswith("Once upon a time, ")
    assert texts["on"].splitlines()[1].startswith("The cat ")
    code, out, err = _end(command(*options, "--json", "--quiet"))
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["Once upon a time", "The cat"]


def test_a_hub_that_never_answers_costs_seconds_and_not_minutes(command: Command) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(100)  # Python and PyTorch start before, on a machine that may be busy
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        process = command("--max-tokens", "3", environment=endpoint)
        assert process.stderr is not None
        request, _ = listener.accept()
        with request:
            start = time.monotonic()
            first = process.stderr.readline().decode()
            assert time.monotonic() - start < 4 + 16  # it waits 4 s for the hub; a minute would be too long
            assert "did not answer within 4 s. The tiny model runs instead." in first
            assert _end(process)[0] == 0


def test_a_model_comes_from_a_hub(command: Command, hub: FakeHub) -> None:
    hub.repos[DEFAULT_REPO] = {path.name: path.read_bytes() for path in TINY_DIR.iterdir() if path.is_file()}
    process = command("--json", "--greedy", "--max-tokens", "8", "Hi", environment={"HF_ENDPOINT": hub.url})
    code, out, err = _end(process)
    assert code == 0
    answer = json.loads(out)
    assert answer["figures"]["model"] == DEFAULT_REPO
    assert answer["note"] is None
    assert answer["prompt"].startswith("<|im_start|>user\nHi<|im_end|>")
    assert err.splitlines()[0].startswith(f"Downloading {DEFAULT_REPO} (0.01 GB) from {hub.url} to ")


def test_a_pipe_is_the_prompt(command: Command, tiny: Generator) -> None:
    process = command("--model", "tiny", "--quiet", "--greedy", "--max-tokens", "8", stdin=subprocess.PIPE)
    code, out, err = _end(process, b"Once there was a fox\n")
    expected = tiny.generate("Once there was a fox", 8, SamplingParams()).text
    assert (code, out, err) == (0, f"Once there was a fox{expected}\n", "")


def test_a_reader_that_leaves_ends_the_command_quietly(command: Command, long_dir: Path) -> None:
    process = command("--model", str(long_dir), "--no-chat", "-n", "900000", "Once")
    assert process.stdout is not None
    assert process.stdout.read(20)
    process.stdout.close()
    process.stdout = None
    assert process.wait(60) in (0, 141)
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_chat_reads_turns_from_a_pipe(command: Command) -> None:
    process = command("--chat", "--model", "tiny", "--greedy", stdin=subprocess.PIPE)
    code, out, err = _end(process, b"What is two plus two?\n/exit\n")
    assert code == 0
    assert out.count("\n") == 1
    assert err.splitlines()[0].startswith("tiny on cpu. /reset forgets")


def test_ctrl_c_ends_the_line_tells_the_figures_and_exits_with_130(command: Command, long_dir: Path) -> None:
    process = command("--model", str(long_dir), "--no-chat", "-n", "900000", "Once")
    assert process.stdout is not None
    start = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    code, rest, err = _end(process)
    assert code == 130
    assert (start.decode(errors="replace") + rest).endswith("\n")
    assert err.count("\n") == 1
    assert err.endswith("| interrupted]\n")


def test_ctrl_c_while_a_hub_is_silent_exits_with_130(command: Command) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        process = command(environment={"HF_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        connection, _ = listener.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            code, out, err = _end(process)
    assert (code, out) == (130, "")
    assert err == "error: interrupted.\n"


def test_bytes_that_are_no_text_are_a_sentence(command: Command) -> None:
    code, out, err = _end(command(b"caf\xe9", "--model", "tiny"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the prompt is not valid text at character 3" in err


@pytest.mark.parametrize("arguments", [["--quiet", "-n", "3"], ["--json", "-n", "3"], ["--help"]])
def test_a_full_disk_behind_stdout_is_a_sentence(command: Command, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = _end(command("--model", "tiny", *arguments, stdout=full))
    assert code == 1
    assert err == "error: the text cannot be written to stdout: No space left on device.\n"


def test_a_full_disk_behind_stderr_takes_the_remarks_and_not_the_text(command: Command) -> None:
    with open("/dev/full", "wb") as full:
        process = command("--model", "tiny", "-n", "3", stderr=full)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out.startswith(b"Once upon a time")
