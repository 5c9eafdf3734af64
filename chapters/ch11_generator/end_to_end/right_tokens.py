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
from chapters.ch10_quantized_kv.cache_formats import CASTS, PLAIN
from chapters.ch10_quantized_kv.reference_cache import CodedKVCache
from chapters.ch11_generator.end_to_end.subject import Request, Subject
from qwen3_ref import KVCache, Qwen3
from qwen_cuda.testing.ulp import ulp


class Judge:
    """The reference in float32, on the model's weights, over the contender's kind of cache.

    Attributes:
        bounds: what was allowed, by the prompt's length, and by the cache where it is quantised: "128, fp8".
    """

    def __init__(self, subject: Subject) -> None:
        wide = {name: tensor.float() for name, tensor in subject.model.state_dict().items()}
        self._subject = subject
        self._model = Qwen3.from_weights(subject.config, wide, "sdpa")
        self._leads: dict[tuple[object, ...], float] = {}
        self.bounds: dict[str, float] = {}

    def complaint(
        self, request: Request, tokens: list[int], int8_head: bool = False, kv_cache: str = PLAIN
    ) -> str | None:
        """What is wrong with an answer to the request, in half a sentence; None if nothing is."""
        vocab = self._subject.config.vocab_size
        if unknown := next((token for token in tokens if not 0 <= token < vocab), None):
            return f"it gave the token {unknown}, and the model has 0 to {vocab - 1}"
        key = (*request.prompt, -1, *tokens, int8_head, kv_cache)
        if key not in self._leads:
            self._leads[key] = self._most_behind(request, tokens, int8_head, kv_cache)
        behind, bound = self._leads[key], self.bounds[_kind(request, kv_cache)]
        if not behind <= bound:  # NaN too
            return f"one of its tokens is {behind:.3g} behind the best logit; rounding explains {bound:.3g}"
        return None

    @torch.inference_mode()
    def _most_behind(self, request: Request, tokens: list[int], int8_head: bool, kv_cache: str) -> float:
        hidden = self._hidden(self._model, request, tokens, kv_cache)
        logits = linear(hidden, self._model.head_weight)
        if (kind := _kind(request, kv_cache)) not in self.bounds:
            self.bounds[kind] = self._bound(request, tokens, logits, kv_cache)
        if int8_head:  # the prompt's own token goes through the 16-bit head
            logits[1:] = linear(hidden[1:], self._subject.w8_head().dequantized())
        chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        return float((logits.amax(-1) - chosen).max())

    def _bound(self, request: Request, tokens: list[int], exact: Tensor, kv_cache: str) -> float:
        """From the error of plain PyTorch in 16 bits on the same text: a difference of two logits has two errors.

        Over codes too: what rounding moves across the border of two codes is part of that error.
        """
        model = self._subject.model
        rounded = linear(self._hidden(model, request, tokens, kv_cache), model.head_weight)
        rms = float((rounded.float() - exact).square().mean().sqrt())
        return max(TIE_ERRORS * rms, TIE_ULPS * float(ulp(exact.amax().cpu(), model.dtype)))

    @staticmethod
    def _hidden(model: Qwen3, request: Request, tokens: list[int], kv_cache: str) -> Tensor:
        """`[n, d]`: what stands before the head where each token was drawn. In chunks, whose scores fit."""
        ids = torch.tensor([[*request.prompt, *tokens[:-1]]], device=model.device)
        sizes = model.config, 1, ids.shape[1], model.dtype, model.device
        cache = KVCache(*sizes) if kv_cache == PLAIN else CodedKVCache(*sizes, cast=CASTS[kv_cache])
        hidden = torch.cat([model.model(part, cache)[0] for part in ids.split(CHUNK, dim=1)])
        return hidden[len(request.prompt) - 1 :]


def _kind(request: Request, kv_cache: str) -> str:
    prompt = str(len(request.prompt))
    return prompt if kv_cache == PLAIN else f"{prompt}, {kv_cache}"
