"""What a request must move and compute at the least, counted from shapes; the floors follow from measured ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chapters.ch10_quantized_kv.cache_formats import PLAIN, cache_bytes_per_token
from chapters.ch11_generator.end_to_end.subject import Request
from qwen3_ref.config import Qwen3Config
from qwen3_ref.cost import PhaseCost, decode_cost, head_weight_bytes, kv_bytes_per_token, prefill_cost

GROUP = 128  # columns of the int8 head that share a float32 scale


@dataclass(frozen=True)
class Work:
    """Bytes and operations: of the prompt, and of the steps after the first token, `steps` of them together."""

    prefill_bytes: int
    prefill_flops: int
    decode_bytes: int
    decode_flops: int
    steps: int

    @classmethod
    def of(cls, request: Request, int8_head: bool = False, kv_cache: str = PLAIN) -> Work:
        """The int8 head takes part in decoding alone: a prompt's one token goes through the 16-bit one."""
        config, prompt = request.subject.config, len(request.prompt)
        costs: list[PhaseCost] = [decode_cost(config, prompt + i) for i in range(request.new_tokens - 1)]
        saved = head_weight_bytes(config) - int8_head_bytes(config) if int8_head else 0
        kv_share = cache_bytes_per_token(config, kv_cache) / kv_bytes_per_token(config)

        def moved(cost: PhaseCost) -> int:
            return cost.weight_bytes + round(kv_share * (cost.kv_read_bytes + cost.kv_write_bytes))

        prefill = prefill_cost(config, prompt)
        return cls(
            moved(prefill),
            prefill.flops,
            sum(moved(cost) - saved for cost in costs),
            sum(cost.flops for cost in costs),
            len(costs),
        )

    @property
    def token_bytes(self) -> int:
        """Of one step, the mean: the context grows by a token from each to the next."""
        return round(self.decode_bytes / self.steps) if self.steps else 0


def int8_head_bytes(config: Qwen3Config, group: int = GROUP) -> int:
    """An int8 weight each, and a float32 scale for each group of a row."""
    return config.vocab_size * (config.hidden_size + 4 * (config.hidden_size // group))


def floor_tok_s(case: dict[str, Any], ceilings: dict[str, Any]) -> float:
    """The most tokens per second that a `decode` case of the results allows: its bytes at the measured bandwidth."""
    return float(ceilings["read_gbps"]) * 1e9 / int(case["bytes"])
