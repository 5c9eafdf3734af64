"""What a model costs, counted from its shapes: parameters, bytes and floating-point operations of each phase.

Counted are the matrix products and attention. Norms, RoPE, SiLU and the draw add less than 1 % to either and are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qwen3_ref.config import Qwen3Config
from qwen3_ref.weights import expected_shapes

KIB, MIB, GIB = 2**10, 2**20, 2**30


def layer_parameters(config: Qwen3Config) -> int:
    """Parameters of one decoder layer; 15,730,944 for Qwen3-0.6B."""
    prefix = "model.layers.0."
    return sum(prod(shape) for name, shape in expected_shapes(config).items() if name.startswith(prefix))


def parameters(config: Qwen3Config) -> int:
    """All parameters, a tied embedding counted once; 596,049,920 for Qwen3-0.6B."""
    return sum(prod(shape) for shape in expected_shapes(config).values())


def head_parameters(config: Qwen3Config) -> int:
    """Parameters of the language-model head, `V · d`; the embedding's own when tied."""
    return config.vocab_size * config.hidden_size


def layer_weight_bytes(config: Qwen3Config, value_bytes: int = 2) -> int:
    """Bytes of all decoder layers: what every decoded token reads besides the head."""
    return config.num_hidden_layers * layer_parameters(config) * value_bytes


def head_weight_bytes(config: Qwen3Config, value_bytes: int = 2) -> int:
    """Bytes of the head."""
    return head_parameters(config) * value_bytes


def kv_bytes_per_token(config: Qwen3Config, value_bytes: int = 2) -> int:
    """Bytes that one token adds to the KV cache, K and V of all layers; 112 KiB for Qwen3-0.6B in bf16."""
    return 2 * config.num_hidden_layers * config.kv_size * value_bytes


@dataclass(frozen=True)
class PhaseCost:
    """Floating-point operations (a multiply-add is two) and bytes of memory traffic of one phase, each moved once."""

    flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_write_bytes: int

    @property
    def bytes(self) -> int:
        """All bytes read or written."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, flop per byte: the x axis of a roofline."""
        return self.flops / self.bytes

    def floor_us(self, read_gbps: float, tflops: float = float("inf")) -> float:
        """The least time in µs on a machine of `read_gbps` · 10⁹ byte/s and `tflops` · 10¹² flop/s."""
        return max(self.bytes / (read_gbps * 1e3), self.flops / (tflops * 1e6))


def prefill_cost(config: Qwen3Config, tokens: int, value_bytes: int = 2) -> PhaseCost:
    """One pass over a prompt of `tokens` from an empty cache; logits of the last token only."""
    return _cost(config, tokens, tokens * (tokens + 1) // 2, 0, value_bytes)


def decode_cost(config: Qwen3Config, context: int, value_bytes: int = 2) -> PhaseCost:
    """One decoded token behind `context` cached tokens; it attends to them and to itself."""
    return _cost(config, 1, context + 1, context, value_bytes)


def _cost(config: Qwen3Config, tokens: int, pairs: int, cached: int, value_bytes: int) -> PhaseCost:
    d, layers = config.hidden_size, config.num_hidden_layers
    matrix = d * (2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size)
    linear = 2 * (tokens * layers * matrix + head_parameters(config))
    attention = 4 * layers * config.q_size * pairs  # q·k and weight·v, one multiply-add a channel each
    layer_bytes = layer_weight_bytes(config, value_bytes) + d * value_bytes  # and the last norm
    embedding_rows = tokens * d * value_bytes
    per_token = kv_bytes_per_token(config, value_bytes)
    return PhaseCost(
        flops=linear + attention,
        weight_bytes=layer_bytes + head_weight_bytes(config, value_bytes) + embedding_rows,
        kv_read_bytes=cached * per_token,
        kv_write_bytes=tokens * per_token,
    )
