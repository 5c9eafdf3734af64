"""The shape of a Qwen3 model, read from a Hugging Face `config.json`.

Whatever this package does not compute is refused here by name, so that no later stage can be wrong in silence.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_DTYPES = ("bfloat16", "float16", "float32")

# What transformers takes for a key that a config.json leaves out. These are not Qwen3-0.6B's values.
_WHEN_ABSENT = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}


class ConfigError(ValueError):
    """A `config.json` that is missing, malformed, or describes a model that this package does not compute."""


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes and constants of a Qwen3 model. Field names are those of Hugging Face's `config.json`.

    `head_dim` is independent: Qwen3-0.6B has 16 heads of 128 = 2048 query channels on a hidden size of 1024.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    torch_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a positive integer.")
        for name in ("rms_norm_eps", "rope_theta", "initializer_range"):
            value = getattr(self, name)
            # `not (0 < value < inf)` rather than `value <= 0`: a NaN must fail too.
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
                raise ConfigError(f"{name} is {value!r}; it must be a positive, finite number.")
        if not isinstance(self.tie_word_embeddings, bool):
            raise ConfigError(f"tie_word_embeddings is {self.tie_word_embeddings!r}; it must be true or false.")
        bos = self.bos_token_id
        if bos is not None and (not isinstance(bos, int) or isinstance(bos, bool) or bos < 0):
            raise ConfigError(f"bos_token_id is {bos!r}; it must be a token id or null.")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; RoPE rotates pairs, so it must be even.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads is {self.num_attention_heads}; it must be a multiple of "
                f"num_key_value_heads, which is {self.num_key_value_heads}."
            )
        if self.torch_dtype not in _DTYPES:
            raise ConfigError(f"torch_dtype is {self.torch_dtype!r}; it must be one of {', '.join(_DTYPES)}.")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def q_size(self) -> int:
        """Channels of all query heads, `Hq * D`."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Channels of all key (or value) heads, `Hkv * D`."""
        return self.num_key_value_heads * self.head_dim

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Qwen3Config:
        """Reads `directory/config.json`; stop tokens come from `generation_config.json` when it is there.

        Raises:
            ConfigError: the file is missing, is not JSON, or asks for something that is not supported.
        """
        path = Path(directory) / "config.json"
        data = _read_json(path, required=True)
        generation = _read_json(path.with_name("generation_config.json"), required=False)
        try:
            if generation.get("eos_token_id") is not None:
                data = {**data, "eos_token_id": generation["eos_token_id"]}
            return cls.from_dict(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Qwen3Config:
        """Builds a config from the contents of a `config.json`, in the spelling of transformers 4 or 5.

        Raises:
            ConfigError: a required key is absent or a feature outside this package is switched on.
        """
        _refuse_unsupported(data)
        values = {f.name: data[f.name] for f in fields(cls) if f.name in data and f.name != "torch_dtype"}
        rope = data.get("rope_parameters") or {}
        if "rope_theta" in rope:  # transformers 5 has moved it there
            values["rope_theta"] = rope["rope_theta"]
        for name, value in _WHEN_ABSENT.items():
            values.setdefault(name, value)
        values["torch_dtype"] = str(data.get("dtype") or data.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        values["eos_token_ids"] = _token_ids(data.get("eos_token_id"))
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"the key{'s' * (len(missing) > 1)} {', '.join(missing)} must be present.")
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The config as Qwen3's own repositories spell it, readable by transformers and by `from_dict`."""
        data = asdict(self)
        eos = list(data.pop("eos_token_ids"))
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "rope_scaling": None,
            "sliding_window": None,
            "use_cache": True,
            "use_sliding_window": False,
            "max_window_layers": self.num_hidden_layers,
            **data,
            "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
        }


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path} does not exist; a model directory must hold a config.json.") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}; it must hold a JSON object.")
    return data


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in ids):
        raise ConfigError(f"eos_token_id is {value!r}; it must be a token id or a list of token ids.")
    return ids


def _refuse_unsupported(data: dict[str, Any]) -> None:
    def need(ok: bool, name: str, value: Any, support: str) -> None:
        if not ok:
            raise ConfigError(f"{name} is {value!r}; this implementation supports only {support}.")

    model_type = data.get("model_type")
    need(model_type == "qwen3", "model_type", model_type, "'qwen3' (dense; no mixture of experts, no vision)")
    need(data.get("hidden_act", "silu") == "silu", "hidden_act", data.get("hidden_act"), "'silu'")
    need(not data.get("attention_bias"), "attention_bias", data.get("attention_bias"), "projections without a bias")
    sliding = data.get("use_sliding_window")
    need(not sliding, "use_sliding_window", sliding, "full attention in every layer")
    kinds = data.get("layer_types") or []
    full = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    need(full, "layer_types", kinds, "a list of 'full_attention' for every layer")
    # transformers 5's `rope_parameters` may hold theta alone; transformers 4's `rope_scaling` always means a scaling.
    for name, unnamed in (("rope_parameters", "default"), ("rope_scaling", None)):
        rope = data.get(name)
        plain = not rope or (
            isinstance(rope, dict)
            and rope.get("rope_type", rope.get("type", unnamed)) == "default"
            and not any(isinstance(value, dict) for value in rope.values())  # one RoPE for each kind of layer
        )
        need(plain, name, rope, "plain RoPE (null, or rope_type 'default')")
    quantised = data.get("quantization_config")
    need(quantised is None, "quantization_config", quantised, "unquantised checkpoints (bfloat16, float16, float32)")


QWEN3_0_6B = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    bos_token_id=151643,
    eos_token_ids=(151645, 151643),
)
"""Qwen/Qwen3-0.6B: 596,049,920 parameters, the model that every chapter counts bytes for."""
