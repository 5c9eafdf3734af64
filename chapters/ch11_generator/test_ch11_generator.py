"""The Python class: what it returns, what it refuses, and what it must not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import chapters.ch11_generator as package
from chapters.ch10_quantized_kv.cache_formats import CASTS
from chapters.ch11_generator import (
    ArgumentError,
    Generator,
    GeneratorError,
    ModelError,
    SamplingParams,
)
from chapters.ch11_generator.backends import choose_backend
from chapters.ch11_generator.conftest import ROOT
from chapters.ch11_generator.stages import KV_CACHES, Stages
from qwen3_ref.generate import ReferenceEngine, generate
from qwen3_ref.model import Qwen3
from qwen3_ref.tokenizer import Message
from qwen_cuda.building import BuildError, toolchain

GREEDY = SamplingParams()


def test_the_package_offers_what_it_lists() -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_without_kernels_nothing_is_built() -> None:
    """Whoever has no compiler can generate text."""
    script = (
        "import sys, chapters.ch11_generator.generator; print([n for n in sys.modules if n.startswith('qwen_cuda')])"
    )
    path = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert done.stdout.decode().strip() == "[]", done.stderr.decode()


def test_greedy_tokens_equal_those_of_the_reference_loop(endless_dir: Path) -> None:
    """In float32, where the engine's faster paths cannot tip a near-tie."""
    generator = Generator(endless_dir, "cpu", "float32")
    result = generator.generate("Once upon a time", 40, GREEDY)
    engine = ReferenceEngine(Qwen3.from_pretrained(endless_dir, dtype=torch.float32), 128)
    ids = generator.tokenizer.encode("Once upon a time")
    run = generate(engine, generator.tokenizer, ids, 40).run()
    assert result.token_ids == run.token_ids
    assert result.text == run.text
    assert result.finish_reason == "length"


def test_the_paged_backend_tells_the_same_story() -> None:
    """In float32, with a bfloat16 cache: the chat's second answer reuses what the first left in the pages."""
    answers = []
    for backend in ("reference", "paged"):
        generator = Generator("tiny", "cpu", "float32", backend)
        stream = generator.stream("Once upon a time", 40, GREEDY)
        answers.append([piece.token_id for piece in stream])
        assert stream.result.figures.backend == backend
        messages: list[Message] = [{"role": "user", "content": "What is twelve minus five?"}]
        for _ in range(2):
            chat = generator.stream_chat(messages, 20, GREEDY, reuse_cache=True)
            answers[-1] += [piece.token_id for piece in chat]
            messages += [{"role": "assistant", "content": chat.result.text}, {"role": "user", "content": "Thank you!"}]
        assert chat.result.figures.reused_tokens > 0
    assert answers[0] == answers[1]


def test_every_switch_of_the_kernels_tells_a_story() -> None:
    """On the C++ twins. Attention in one launch or in two has the same bits, and so have steps with and without graphs;
    the int8 head may tip a near-tie, but the first words stand."""
    told = {}
    for stages in (Stages(), Stages(attention="split"), Stages(graphs=False), Stages(w8_head=True)):
        generator = Generator("tiny", "cpu", "bfloat16", "kernels", stages=stages)
        result = generator.generate("Once upon a time", 40, GREEDY)
        told[stages] = result.token_ids
        assert (result.figures.backend, result.figures.new_tokens) == ("kernels", 40)
        sampled = [generator.generate("Once", 12, SamplingParams(temperature=1.2, top_k=40, seed=5)) for _ in range(2)]
        assert sampled[0].token_ids == sampled[1].token_ids
    first, *others = told.values()
    assert [tokens == first for tokens in others[:2]] == [True, True]
    assert others[2][:5] == first[:5]


@pytest.mark.parametrize("kv_cache", CASTS)
def test_a_quantised_cache_tells_a_near_story_in_chats_and_batches(kv_cache: str) -> None:
    """The story's first words stand, a chat reuses codes, and a row of a batch says what it says alone."""
    assert ("bf16", *CASTS) == KV_CACHES
    plain = Generator("tiny", "cpu", "bfloat16", "kernels").generate("Once upon a time", 12, GREEDY)
    generator = Generator("tiny", "cpu", "bfloat16", "kernels", stages=Stages(kv_cache=kv_cache))
    assert generator.generate("Once upon a time", 12, GREEDY).token_ids[:5] == plain.token_ids[:5]
    messages: list[Message] = [{"role": "user", "content": "What is twelve minus five?"}]
    chat = generator.stream_chat(messages, 12, GREEDY, reuse_cache=True)
    list(chat)
    messages += [{"role": "assistant", "content": chat.result.text}, {"role": "user", "content": "Thank you!"}]
    again = generator.stream_chat(messages, 12, GREEDY, reuse_cache=True)
    list(again)
    assert again.result.figures.reused_tokens > 0
    assert generator.chat(messages, 12, GREEDY).text == again.result.text
    prompts, sampling = ["Once upon a time", "The cat"], SamplingParams(temperature=0.9, seed=3)
    alone = [generator.generate(prompt, 12, sampling).token_ids for prompt in prompts]
    assert [one.token_ids for one in generator.generate_batch(prompts, 12, sampling)] == alone


def test_a_chat_on_the_kernels_reuses_what_its_first_answer_left() -> None:
    messages: list[Message] = [{"role": "user", "content": "What is twelve minus five?"}]
    generator = Generator("tiny", "cpu", "bfloat16", "kernels")
    chat = generator.stream_chat(messages, 20, GREEDY, reuse_cache=True)
    list(chat)
    messages += [{"role": "assistant", "content": chat.result.text}, {"role": "user", "content": "Thank you!"}]
    again = generator.stream_chat(messages, 20, GREEDY, reuse_cache=True)
    list(again)
    assert again.result.figures.reused_tokens > 0
    fresh = Generator("tiny", "cpu", "bfloat16", "kernels").chat(messages, 20, GREEDY)
    assert fresh.text == again.result.text


def test_a_batch_gives_what_each_prompt_gives_alone() -> None:
    """On the kernels together, on the reference one by one; prompts of several lengths, two of them equal."""
    prompts = ["Once upon a time", "The cat", "One day, Tom and his dog went to the park and", "The cat"]
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=3)
    for backend in ("kernels", "reference"):
        generator = Generator("tiny", "cpu", "bfloat16", backend)
        for how in (GREEDY, sampling):
            alone = [generator.generate(prompt, 25, how, stop=["."]) for prompt in prompts]
            together = generator.generate_batch(prompts, 25, how, stop=["."])
            assert [one.token_ids for one in together] == [one.token_ids for one in alone]
            assert [one.text for one in together] == [one.text for one in alone]
            assert [one.finish_reason for one in together] == [one.finish_reason for one in alone]
            assert all(one.figures.prefill_s > 0 for one in together)
    with pytest.raises(ArgumentError, match="there are 9 prompts; it must be from 1 to 8"):
        generator.generate_batch(["a"] * 9)
    with pytest.raises(ArgumentError, match="the prompt is empty"):
        generator.generate_batch(["a", ""])


def test_auto_takes_the_kernels_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    monkeypatch.setattr(toolchain, "nvcc", lambda: None)
    assert choose_backend("auto", gpu, bf16, 128) == ("kernels", None)
    assert choose_backend("auto", torch.device("cpu"), bf16, 128) == ("reference", None)
    assert choose_backend("paged", gpu, bf16, 128) == ("paged", None)
    assert choose_backend("auto", gpu, torch.float32, 128)[1] == (
        "The CUDA kernels are not used: they take 16-bit weights, and dtype is float32."
    )
    assert "heads of 128, and the model's are of 64" in str(choose_backend("auto", gpu, bf16, 64)[1])

    def missing() -> None:
        raise BuildError("nvcc is not there.")

    monkeypatch.setattr(toolchain, "nvcc", missing)
    assert choose_backend("auto", gpu, bf16, 128) == ("reference", "The CUDA kernels are not used: nvcc is not there.")


def test_a_switch_of_the_kernels_chooses_them() -> None:
    assert Generator("tiny", device="cpu", stages=Stages(kv_cache="fp8")).backend == "kernels"
    assert Generator("tiny", device="cpu", stages=Stages()).backend == "reference"


def test_a_model_that_the_kernels_cannot_run_is_a_sentence(endless_dir: Path) -> None:
    with pytest.raises(ModelError, match=r"^head_dim of the model is 32; the kernels of chapter 4 take 128\.$"):
        Generator(endless_dir, "cpu", backend="paged")


def test_the_decode_step_without_onednn_gives_the_logits_of_the_plain_engine(endless: Generator) -> None:
    """Bfloat16: other kernels may round the last bit of an activation otherwise, no more."""
    endless.generate("Once upon a time", 2, GREEDY)
    engine = endless._engine
    assert engine is not None
    plain = ReferenceEngine(engine.model, 128)  # type: ignore[attr-defined]
    engine.reset()
    ids = endless.tokenizer.encode("Once upon a time")
    engine.prefill(ids)
    plain.prefill(ids)
    ours, theirs = engine.decode(5), plain.decode(5)
    assert torch.backends.mkldnn.enabled
    # Two layers of bfloat16 with 8 bits of mantissa; logits of random weights are around 1.
    assert (ours - theirs).abs().max() <= 4 * 2**-8 * theirs.abs().max()


def test_the_stream_gives_what_generate_gives(tiny: Generator) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7)
    stream = tiny.stream("Once upon a time", 30, sampling)
    pieces = list(stream)
    whole = tiny.generate("Once upon a time", 30, sampling)
    assert "".join(piece.text for piece in pieces) == whole.text == stream.result.text
    assert [piece.token_id for piece in pieces] == whole.token_ids


def test_equal_seeds_give_equal_text_and_other_seeds_other_text(tiny: Generator) -> None:
    def text(seed: int) -> str:
        return tiny.generate("Once upon a time", 30, SamplingParams(temperature=1.5, seed=seed)).text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_the_seed_that_was_drawn_draws_the_same_text_again(tiny: Generator) -> None:
    first = tiny.generate("Once upon a time", 30, SamplingParams(temperature=1.5))
    assert first.figures.seed is not None
    again = tiny.generate("Once upon a time", 30, SamplingParams(temperature=1.5, seed=first.figures.seed))
    assert again.text == first.text
    assert tiny.generate("Once", 2, GREEDY).figures.seed is None


def test_figures_count_what_was_done(tiny: Generator) -> None:
    result = tiny.generate("Once upon a time", 20, GREEDY)
    figures = result.figures
    assert (figures.model, figures.device, figures.dtype, figures.backend) == ("tiny", "cpu", "bfloat16", "reference")
    assert figures.prompt_tokens == len(tiny.tokenizer.encode("Once upon a time"))
    assert figures.reused_tokens == 0
    assert figures.new_tokens == len(result.token_ids) == 20
    assert figures.prefill_s > 0
    assert figures.decode_tok_s == pytest.approx(19 / figures.decode_s)
    assert json.loads(json.dumps(figures.to_dict()))["decode_tok_s"] == figures.decode_tok_s
    assert tiny.generate("Once", 1, GREEDY).figures.decode_tok_s is None


def test_the_tiny_model_stops_by_itself_and_at_a_stop_string(tiny: Generator) -> None:
    whole = tiny.generate("Once upon a time", 400, GREEDY)
    assert whole.finish_reason == "stop"
    assert whole.token_ids[-1] in tiny.config.eos_token_ids
    word = whole.text.split()[6]
    cut = tiny.generate("Once upon a time", 400, GREEDY, stop=["\0", word])
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(word)]


def test_chat_goes_through_the_template(tiny: Generator) -> None:
    messages = [{"role": "user", "content": "What is two plus two?"}]
    stream = tiny.stream_chat(messages, 40, GREEDY)
    assert stream.prompt == tiny.tokenizer.render_chat(messages, enable_thinking=False)
    assert "".join(piece.text for piece in stream) == tiny.chat(messages, 40, GREEDY).text
    thoughtful = tiny.stream_chat(messages, 40, GREEDY, thinking=True)
    assert thoughtful.prompt == tiny.tokenizer.render_chat(messages, enable_thinking=True) != stream.prompt


def test_a_second_turn_computes_only_what_is_new(endless_dir: Path) -> None:
    generator = Generator(endless_dir, "cpu", "float32")
    messages = [{"role": "user", "content": "Hello"}]
    first = generator.stream_chat(messages, 8, GREEDY, reuse_cache=True)
    answer = "".join(piece.text for piece in first)
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And now?"}]
    second = generator.stream_chat(messages, 8, GREEDY, reuse_cache=True)
    list(second)
    fresh = Generator(endless_dir, "cpu", "float32").chat(messages, 8, GREEDY)
    assert fresh.figures.reused_tokens == 0 < second.result.figures.reused_tokens
    assert second.result.token_ids == fresh.token_ids


def test_a_stream_that_lost_the_cache_says_so(endless: Generator) -> None:
    first = endless.stream("Once", 20, GREEDY)
    pieces = iter(first)
    next(pieces)
    endless.generate("Twice", 2, GREEDY)
    with pytest.raises(GeneratorError, match="another generation has begun"):
        next(pieces)
    assert len(first.result.token_ids) == 1


def test_a_limit_beyond_the_context_is_lowered_and_the_context_is_used_to_its_end(endless: Generator) -> None:
    prompt_tokens = endless.count_tokens("Once upon a time")
    stream = endless.stream("Once upon a time", 10_000, GREEDY)
    assert stream.max_new_tokens == endless.max_context - prompt_tokens
    list(stream)
    assert (stream.result.finish_reason, len(stream.result.token_ids)) == ("length", stream.max_new_tokens)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(endless: Generator) -> None:
    words = " time" * 127
    assert endless.count_tokens(words) == 127
    assert endless.generate(words, 5, GREEDY).figures.new_tokens == 1
    with pytest.raises(ArgumentError, match=r"the prompt has 128 tokens, but the context of .* is 128 tokens"):
        endless.generate(words + " time", 1)


def test_the_cache_grows_with_the_request(long_dir: Path) -> None:
    generator = Generator(long_dir, "cpu")
    generator.generate("Once", 2, GREEDY)
    assert generator._engine is not None
    assert generator._engine.max_context == 1024
    generator.stream("Once", 1500, GREEDY)
    assert generator._engine.max_context == 2048
