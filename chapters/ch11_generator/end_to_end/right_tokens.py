"""Whether greedy tokens are right: nowhere is the token that was chosen far behind the best one.

Two right computations in 16 bits may choose differently where two logits are nearly equal, and go on with other texts
from there. So each answer is read once more, as it stands, by the reference in float32: at every place its best logit
may lead the chosen token's by as much as rounding explains, and by no more.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from chapters.ch03_swiglu.drop_in.greedy import TIE_ERRORS, TIE_ULPS
from chapters.ch06_split_attention.paged_model import CHUNK
from chapters.ch11_generator.end_to_end.subject import Request, Subject
from qwen3_ref import KVCache, Qwen3
from qwen_cuda.testing.ulp import ulp


class Judge:
    """The reference in float32, on the model's weights. `bounds`: what was allowed, by the prompt's length."""

    def __init__(self, subject: Subject) -> None:
        wide = {name: tensor.float() for name, tensor in subject.model.state_dict().items()}
        self._subject = subject
        self._model = Qwen3.from_weights(subject.config, wide, "sdpa")
        self._leads: dict[tuple[object, ...], float] = {}
        self.bounds: dict[int, float] = {}

    def complaint(self, request: Request, tokens: list[int], int8_head: bool = False) -> str | None:
        """What is wrong with an answer to the request, in half a sentence; None if nothing is."""
        vocab = self._subject.config.vocab_size
        if unknown := next((token for token in tokens if not 0 <= token < vocab), None):
            return f"it gave the token {unknown}, and the model has 0 to {vocab - 1}"
        key = (*request.prompt, -1, *tokens, int8_head)
        if key not in self._leads:
            self._leads[key] = self._most_behind(request, tokens, int8_head)
        behind, bound = self._leads[key], self.bounds[len(request.prompt)]
        if not behind <= bound:  # NaN too
            return f"one of its tokens is {behind:.3g} behind the best logit; rounding explains {bound:.3g}"
        return None

    @torch.inference_mode()
    def _most_behind(self, request: Request, tokens: list[int], int8_head: bool) -> float:
        hidden = self._hidden(self._model, request, tokens)
        logits = linear(hidden, self._model.head_weight)
        if len(request.prompt) not in self.bounds:
            self.bounds[len(request.prompt)] = self._bound(request, tokens, logits)
        if int8_head:  # the prompt's own token goes through the 16-bit head
            logits[1:] = linear(hidden[1:], self._subject.w8_head().dequantized())
        chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        return float((logits.amax(-1) - chosen).max())

    def _bound(self, request: Request, tokens: list[int], exact: Tensor) -> float:
        """From the error of plain PyTorch in 16 bits on the same text: a difference of two logits has two errors."""
        model = self._subject.model
        rounded = linear(self._hidden(model, request, tokens), model.head_weight)
        rms = float((rounded.float() - exact).square().mean().sqrt())
        return max(TIE_ERRORS * rms, TIE_ULPS * float(ulp(exact.amax().cpu(), model.dtype)))

    @staticmethod
    def _hidden(model: Qwen3, request: Request, tokens: list[int]) -> Tensor:
        """`[n, d]`: what stands before the head where each token was drawn. In chunks, whose scores fit."""
        ids = torch.tensor([[*request.prompt, *tokens[:-1]]], device=model.device)
        cache = KVCache(model.config, 1, ids.shape[1], model.dtype, model.device)
        hidden = torch.cat([model.model(part, cache)[0] for part in ids.split(CHUNK, dim=1)])
        return hidden[len(request.prompt) - 1 :]
