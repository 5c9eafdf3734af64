"""An `Engine` that draws a given text: the generation loop can then be tested to the letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chapters.ch01_math_reference.twins import SHAPES


class ScriptedEngine:
    """Whatever the prompt, greedy decoding draws `script`, then token 0 for ever. Records what it is asked for."""

    def __init__(
        self,
        script: Sequence[int],
        max_context: int = 1000,
        vocab_size: int = 4096,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.config = replace(SHAPES["group1-tied"], vocab_size=vocab_size, eos_token_ids=eos_token_ids)
        self.max_context, self.device = max_context, torch.device("cpu")
        self.prefilled: list[list[int]] = []
        self.decoded: list[int] = []
        self._script, self._length, self._drawn = list(script), 0, 0

    @property
    def length(self) -> int:
        return self._length

    def reset(self, length: int = 0) -> None:
        self._length = length
        self._drawn = 0

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        self.prefilled.append(list(token_ids))
        return self._append(len(token_ids))

    def decode(self, token_id: int) -> Tensor:
        self.decoded.append(token_id)
        return self._append(1)

    def _append(self, tokens: int) -> Tensor:
        self._length += tokens
        assert self._length <= self.max_context, "the loop overfilled the context"
        token = self._script[self._drawn] if self._drawn < len(self._script) else 0
        self._drawn += 1
        logits = torch.zeros(self.config.vocab_size)
        logits[token] = 5.0
        return logits
