"""How a model's makers want it to be sampled."""

from __future__ import annotations

import json
from pathlib import Path

from chapters.ch11_generator.errors import ModelError
from qwen3_ref.sampling import SamplingParams

_TOP_K_WHEN_ABSENT = 50  # of transformers' generate


def default_sampling(path: Path) -> SamplingParams:
    """What the generation_config.json at `path` asks for, as Hugging Face reads it: greedy unless `do_sample`.

    Raises:
        ModelError: the file cannot be read or holds values out of range. A missing file means greedy.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        penalty = float(data.get("repetition_penalty") or 1.0)
        if not data.get("do_sample"):
            return SamplingParams(repetition_penalty=penalty)
        temperature, top_k = data.get("temperature"), data.get("top_k")
        return SamplingParams(
            temperature=1.0 if temperature is None else float(temperature),
            top_k=_TOP_K_WHEN_ABSENT if top_k is None else int(top_k),
            top_p=float(data.get("top_p") or 1.0),
            min_p=float(data.get("min_p") or 0.0),
            repetition_penalty=penalty,
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise ModelError(f"{path} cannot be used: {reason}.") from None
