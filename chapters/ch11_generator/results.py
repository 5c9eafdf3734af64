"""What a generation gives: the text, and the figures of how it came about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qwen3_ref.generate import FinishReason


@dataclass(frozen=True)
class Figures:
    """What a generation did and how long it took.

    Attributes:
        prompt_tokens: of the whole prompt.
        reused_tokens: of these, found in the KV cache and not computed again.
        new_tokens: drawn, a stop token included.
        prefill_s: seconds from the start to the first new token.
        decode_s: seconds from the first new token to the last.
        seed: that draws the same tokens again; None for greedy decoding.
    """

    model: str
    device: str
    dtype: str
    backend: str
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    seed: int | None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first; None if there are none."""
        return (self.new_tokens - 1) / self.decode_s if self.new_tokens > 1 and self.decode_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """All figures, `decode_tok_s` included, ready for JSON."""
        return {**asdict(self), "decode_tok_s": self.decode_tok_s}


@dataclass(frozen=True)
class Result:
    """A generation as it stands: complete, or as far as it came.

    Attributes:
        text: of the answer, without the prompt and without a stop string.
        token_ids: every token drawn, a stop token included.
        finish_reason: "stop" (stop token or stop string), "length" (token limit), None if it was left before its end.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    figures: Figures
