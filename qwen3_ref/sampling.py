"""From logits to the next token: greedy, or drawn after the usual filters, in Hugging Face's order.

Repetition penalty → temperature → top-k → top-p → min-p → draw.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3_ref.gumbel import draw_token


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. The defaults are greedy decoding.

    Args:
        temperature: logits are divided by it; 0 (and below 1e-6, where the quotient could overflow) takes the most
            likely token.
        top_k: keeps the k most likely tokens; 0 keeps all.
        top_p: keeps the fewest most likely tokens whose probabilities sum to at least p; 1 keeps all.
        min_p: keeps tokens at least min_p times as likely as the most likely one; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen before; 1 does nothing.
        seed: of the random draw; None draws a new one.
    Raises:
        ValueError: a value is out of range; the message names it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, condition: str) -> None:
            if not ok:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {condition}.")

        # Written so that a NaN fails: every comparison with NaN is false.
        need(0 <= self.temperature < math.inf, "temperature", "a finite number of at least 0 (0 is greedy)")
        whole = isinstance(self.top_k, int) and not isinstance(self.top_k, bool)
        need(whole and self.top_k >= 0, "top_k", "a whole number of at least 0 (0 keeps all tokens)")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (1 keeps all tokens)")
        need(0 <= self.min_p <= 1, "min_p", "between 0 and 1 (0 keeps all tokens)")
        need(0 < self.repetition_penalty < math.inf, "repetition_penalty", "a finite number above 0 (1 does nothing)")
        whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        need(self.seed is None or (whole and 0 <= self.seed < 2**63), "seed", "a whole number from 0 to 2^63 - 1")

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken and no random number is drawn."""
        return self.temperature < 1e-6


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Makes tokens that occurred before less likely. `logits: [V]`, `seen: [n]` ids → `[V]`.

    Source: Keskar et al., CTRL, 2019, section 4.1, with the sign handled as in Hugging Face.
    """
    values, divisor = logits[seen], logits.new_tensor(penalty)  # a GPU multiplies by the reciprocal of a plain number
    return logits.index_copy(0, seen, torch.where(values < 0, values * penalty, values / divisor))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """−inf for everything below the k-th largest logit; ties with it stay. `[V]` → `[V]`."""
    threshold = torch.topk(logits, min(k, logits.shape[-1])).values[-1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """−inf for the least likely tokens whose probabilities sum to at most 1 − p; one token always stays. `[V]` → `[V]`.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020, section 3.1.
    """
    ascending, order = torch.sort(logits)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - p
    drop[-1] = False
    return logits.masked_fill(torch.zeros_like(drop).index_copy(0, order, drop), -torch.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """−inf for tokens less likely than `p` times the most likely one. `[V]` → `[V]`.

    Source: Nguyen et al., Turning Up the Heat: Min-p Sampling, 2024, section 3.
    """
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.max(), -torch.inf)


def finite_argmax(logits: Tensor) -> Tensor:
    """`logits: [b, n]` → int64 `[b]`: the first of the largest, −1 where that is NaN or infinite."""
    return torch.where(logits.amax(-1).isfinite(), logits.argmax(-1), -1)


class Sampler:
    """Draws tokens by `params`: the n-th draw of a seed from the same logits is the same token on every device."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._seed = secrets.randbits(63) if params.seed is None else params.seed
        self._draws = 0

    def __call__(self, logits: Tensor, history: Iterable[int] = ()) -> int:
        """The next token id. `logits: [V]` in float32, `history`: prompt and generated ids, for the penalty.

        Raises:
            ValueError: the logits hold a NaN, or no finite value.
        """
        logits = self.filtered(logits, history)
        value = float(logits.max())  # a NaN counts as the largest: it cannot hide
        if not math.isfinite(value):
            raise ValueError(f"the largest logit is {value}; the model's weights or activations are broken.")
        if self.params.greedy:
            return int(logits.argmax())
        self._draws += 1
        return draw_token(logits, self._seed, self._draws - 1)

    def filtered(self, logits: Tensor, history: Iterable[int] = ()) -> Tensor:
        """Logits after penalty, temperature and filters; dropped tokens are −inf. `[V]` → `[V]`."""
        params = self.params
        if params.repetition_penalty != 1 and (seen := sorted(set(history))):
            logits = penalise_repetition(logits, torch.tensor(seen, device=logits.device), params.repetition_penalty)
        if params.greedy:
            return logits
        logits = logits / logits.new_tensor(params.temperature)  # see penalise_repetition
        if params.top_k:
            logits = keep_top_k(logits, params.top_k)
        if params.top_p < 1:
            logits = keep_top_p(logits, params.top_p)
        if params.min_p:
            logits = keep_min_p(logits, params.min_p)
        return logits
