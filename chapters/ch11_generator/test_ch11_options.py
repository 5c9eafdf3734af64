"""The command's options: every bad value is one sentence that names the option, and the exit code is 2."""

from __future__ import annotations

import pytest

from chapters.ch11_generator.cli import main
from chapters.ch11_generator.options import SamplingOptions
from qwen3_ref.sampling import SamplingParams

BAD = [
    (["--max-tokens", "0"], "--max-tokens is '0'; it must be a whole number from 1 to"),
    (["--max-tokens", "many"], "--max-tokens is 'many'"),
    (["--max-tokens", "9" * 5000], "--max-tokens is '999"),
    (["--temperature", "-1"], "--temperature is '-1'; it must be a finite number of at least 0."),
    (["--temperature", "nan"], "--temperature is 'nan'"),
    (["--temperature", "inf"], "--temperature is 'inf'"),
    (["--top-k", "2.5"], "--top-k is '2.5'; it must be a whole number from 0 to"),
    (["--top-p", "0"], "--top-p is '0'; it must be a finite number above 0 and at most 1."),
    (["--top-p", "1.1"], "--top-p is '1.1'"),
    (["--min-p", "-0.1"], "--min-p is '-0.1'; it must be a finite number of at least 0 and at most 1."),
    (["--repetition-penalty", "0"], "--repetition-penalty is '0'; it must be a finite number above 0."),
    (["--seed", "-1"], "--seed is '-1'; it must be a whole number from 0 to 9223372036854775807."),
    (["--seed", "x\udcff\n"], r"--seed is 'x\udcff\n'; it must"),
    (["--greedy", "--temperature", "0.5"], "--greedy means temperature 0, but --temperature is 0.5"),
    (["--device", "tpu"], "--device is 'tpu'; it must be auto, cpu, cuda, or cuda:N"),
    (["--dtype", "fp8"], "--dtype is 'fp8'; it must be auto, float32, bfloat16 or float16."),
    (["--backend", "none"], "--backend is 'none'; it must be auto or one of reference, paged, kernels."),
    (["--kernels", "no"], "--kernels is 'no'; it must be on or off."),
    (["--graphs", "1"], "--graphs is '1'; it must be on or off."),
    (["--kernels", "on", "--backend", "paged"], "--kernels on means --backend kernels, and --backend is paged."),
    (["--kernels", "off", "--w8-head"], "--w8-head is a switch of the backend kernels, and the backend is reference."),
    (
        ["--backend", "paged", "--graphs", "off"],
        "--graphs is a switch of the backend kernels, and the backend is paged",
    ),
    (["--kv-cache", "fp6"], "--kv-cache is 'fp6'; it must be one of bf16, fp8, fp4."),
    (
        ["--kv-cache", "fp8", "--attention", "split"],
        "--kv-cache is fp8 and --attention 'split'; a quantised cache has one attention, its own",
    ),
    (
        ["--kernels", "off", "--kv-cache", "fp8"],
        "--kv-cache is a switch of the backend kernels, and the backend is",
    ),
    (["--backend", "paged", "--kv-cache", "fp4"], "--kv-cache is a switch of the backend kernels"),
    (["--backend", "reference", "--attention", "split"], "--attention is a switch of the backend kernels"),
    (["--kernels", "on", "--attention", "slow"], "attention is 'slow'; it must be one of fused, "),
    (["--stop", ""], "--stop is empty"),
    (["--stop", "a\udcff"], "--stop is not valid text at character 1"),
    (["--system", "a\udcff"], "--system is not valid text at character 1"),
    (["a\udcff"], "the prompt is not valid text at character 1"),
    ([""], "the prompt is empty"),
    (["one", "--prompt", "two"], "there are two prompts"),
    (["--no-chat", "--thinking"], "--no-chat continues the prompt as it is"),
    (["--no-chat", "--system", "x"], "--no-chat continues the prompt as it is"),
    (["--chat", "--json"], "--json prints one answer"),
    (["--prompts", "/none"], "--prompts is '/none', which cannot be read: No such file or directory."),
    (["--prompts", "/dev/null"], "--prompts '/dev/null' holds 0 prompts; it must be 1 to 8, one a line."),
    (["--prompts", "/dev/null", "one"], "--prompts continues the prompts of a file as they are"),
    (["--prompts", "x\0"], "--prompts is 'x\\x00', which cannot be read: embedded null byte."),
    (["--interactive", "-"], "a conversation reads its turns from stdin"),
    (["Once", "upon", "a", "time"], "Put the prompt in quotes."),
    (["--temprature", "1"], "No such option: --temprature"),
    (["--seed"], "--seed"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=[ascii(" ".join(bad))[:24] for bad, _ in BAD])
def test_a_bad_value_is_named_and_the_exit_code_is_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", "tiny", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert sentence in printed.err


def test_help_tells_every_option_and_the_defaults_of_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in (
        "--prompt --model --device --dtype --backend --max-tokens --stop --temperature --top-k --top-p --min-p "
        "--repetition-penalty --seed --greedy --chat --no-chat --interactive --thinking --system --json --quiet"
    ).split():
        assert option in text
    assert "generation_config.json" in text
    assert "Qwen3: 0.6." in text


def _over(default: SamplingParams, greedy: bool = False, **given: str) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return SamplingOptions.parse(**{name: given.get(name) for name in names}, greedy=greedy).over(default)


def test_given_options_win_and_the_model_fills_the_rest() -> None:
    model = SamplingParams(0.6, 20, 0.95)
    assert _over(model) == model
    assert _over(model, temperature="0.8", seed="3") == SamplingParams(0.8, 20, 0.95, seed=3)
    assert _over(model, top_k="0", top_p="1", min_p="0.1") == SamplingParams(0.6, 0, 1.0, min_p=0.1)
    assert _over(model, greedy=True).greedy
    assert _over(model, temperature="0").greedy


def test_a_filter_asks_for_sampling_where_the_model_would_not_sample() -> None:
    assert _over(SamplingParams(), top_p="0.9") == SamplingParams(1.0, top_p=0.9)
    assert _over(SamplingParams()).greedy
