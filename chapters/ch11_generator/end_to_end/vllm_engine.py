"""vLLM's engine, in this process, on a checkpoint of the same weights: where vLLM is installed as a whole."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.subject import Request

MEMORY = 0.5  # of the GPU's; the rest is for everybody else


def unavailable() -> str | None:
    """Why it cannot take part, in a sentence."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm_engine is left out: vllm is not installed."
    return None


def engine(request: Request) -> Answer:
    """Without detokenisation, and without a cache of prefixes: each request computes its prompt."""
    llm = request.subject.shared("vllm_engine", lambda: _start(request))
    sampling_params = importlib.import_module("vllm").SamplingParams
    prompt = [{"prompt_token_ids": list(request.prompt)}]

    def answer(new_tokens: int) -> list[int]:
        sampling = sampling_params(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        return list(llm.generate(prompt, sampling, use_tqdm=False)[0].outputs[0].token_ids)

    return answer


def _start(request: Request) -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # its fastest mode: no second process
    return importlib.import_module("vllm").LLM(
        model=str(request.subject.folder()),
        skip_tokenizer_init=True,
        max_model_len=request.max_length,
        dtype="bfloat16",
        gpu_memory_utilization=MEMORY,
        enable_prefix_caching=False,
        seed=0,
    )
