"""Reading `config.json`: what transformers wrote is read as transformers means it, the rest is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config as TheirConfig

from qwen3_ref import QWEN3_0_6B, ConfigError, Qwen3Config

# Qwen3-0.6B's own file, in the spelling of transformers 4.
QWEN3_0_6B_FILE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# The same, as transformers 5 writes it.
QWEN3_0_6B_FILE_5: dict[str, Any] = {
    **{
        key: value for key, value in QWEN3_0_6B_FILE.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")
    },
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "layer_types": ["full_attention"] * 28,
}


def changed(**values: Any) -> dict[str, Any]:
    return {**QWEN3_0_6B_FILE, **values}


def without(*names: str) -> dict[str, Any]:
    return {key: value for key, value in QWEN3_0_6B_FILE.items() if key not in names}


def their_config(data: dict[str, Any]) -> Any:
    """transformers' reading of the same keys. (Its declared types are wider than what it holds.)"""
    return TheirConfig(**data)


def write(directory: Path, text: str | bytes, name: str = "config.json") -> Path:
    data = text if isinstance(text, bytes) else text.encode()
    (directory / name).write_bytes(data)
    return directory


@pytest.mark.parametrize("data", [QWEN3_0_6B_FILE, QWEN3_0_6B_FILE_5], ids=["transformers 4", "transformers 5"])
def test_qwen3_0_6b_is_read_from_both_spellings(data: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, json.dumps(data))
    assert Qwen3Config.from_pretrained(tmp_path) == replace(QWEN3_0_6B, eos_token_ids=(151645,))
    # The model's repository names two stop tokens in a second file, which wins.
    write(tmp_path, json.dumps({"eos_token_id": [151645, 151643]}), "generation_config.json")
    assert Qwen3Config.from_pretrained(tmp_path) == QWEN3_0_6B


def test_sizes_of_qwen3_0_6b() -> None:
    assert (QWEN3_0_6B.group_size, QWEN3_0_6B.q_size, QWEN3_0_6B.kv_size) == (2, 2048, 1024)
    assert QWEN3_0_6B.q_size != QWEN3_0_6B.hidden_size


def test_absent_keys_mean_what_they_mean_to_transformers() -> None:
    """A key that a file leaves out has transformers' default, not Qwen3-0.6B's value."""
    optional = ("head_dim", "rms_norm_eps", "rope_theta", "max_position_embeddings", "tie_word_embeddings")
    for name in (*optional, "initializer_range", "num_key_value_heads"):
        data = changed(num_attention_heads=64)
        del data[name]
        ours, theirs = Qwen3Config.from_dict(data), their_config(data)
        expected = theirs.rope_parameters["rope_theta"] if name == "rope_theta" else getattr(theirs, name)
        assert getattr(ours, name) == expected, name
    heads = Qwen3Config.from_dict(changed(num_key_value_heads=None))
    assert heads.num_key_value_heads == their_config(changed(num_key_value_heads=None)).num_key_value_heads == 16


CONFIGS = st.builds(
    lambda kv, group, half, **rest: Qwen3Config(
        num_key_value_heads=kv, num_attention_heads=kv * group, head_dim=2 * half, **rest
    ),
    kv=st.integers(1, 9),
    group=st.integers(1, 9),
    half=st.integers(1, 300),
    vocab_size=st.integers(1, 10**6),
    hidden_size=st.integers(1, 10**5),
    intermediate_size=st.integers(1, 10**5),
    num_hidden_layers=st.integers(1, 99),
    rms_norm_eps=st.floats(1e-12, 1e-2),
    rope_theta=st.floats(1, 1e9) | st.integers(1, 10**9),
    max_position_embeddings=st.integers(1, 10**7),
    tie_word_embeddings=st.booleans(),
    initializer_range=st.floats(1e-3, 1),
    bos_token_id=st.none() | st.just(0),
    eos_token_ids=st.sampled_from([(), (0,), (0, 0)]),
    torch_dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
)


@settings(max_examples=50, deadline=None)
@given(config=CONFIGS)
def test_to_dict_is_read_back_by_us_and_by_transformers(config: Qwen3Config) -> None:
    data = json.loads(json.dumps(config.to_dict()))
    assert Qwen3Config.from_dict(data) == config
    theirs = their_config(data)
    for name, value in asdict(config).items():
        if name not in ("eos_token_ids", "rope_theta", "torch_dtype"):
            assert getattr(theirs, name) == value, name
    assert theirs.rope_parameters == {"rope_theta": config.rope_theta, "rope_type": "default"}
    assert set(theirs.layer_types) == {"full_attention"}
    # And what transformers makes of it, in its own spelling, is the same config.
    assert Qwen3Config.from_dict({**theirs.to_dict(), "dtype": config.torch_dtype}) == config


REFUSALS: list[tuple[dict[str, Any], str]] = [
    (without("model_type"), "model_type is None.*supports only 'qwen3'"),
    (changed(model_type="qwen3_moe"), "model_type is 'qwen3_moe'.*no mixture of experts"),
    (changed(hidden_act="gelu"), "hidden_act is 'gelu'.*'silu'"),
    (changed(attention_bias=True), "attention_bias is True.*without a bias"),
    (changed(use_sliding_window=True), "use_sliding_window is True.*full attention"),
    (changed(layer_types=["sliding_attention"] * 28), "layer_types is .*sliding_attention.*full_attention"),
    (changed(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_scaling is .*yarn.*plain RoPE"),
    (changed(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling is .*linear.*plain RoPE"),
    (changed(rope_parameters={"rope_type": "yarn"}), "rope_parameters is .*yarn.*plain RoPE"),
    (
        changed(rope_parameters={"full_attention": {"rope_theta": 1e4}}),
        "rope_parameters is .*full_attention.*plain RoPE",
    ),
    (changed(quantization_config={"quant_method": "awq"}), "quantization_config is .*awq.*unquantised"),
    (without("vocab_size", "hidden_size"), "the keys vocab_size, hidden_size must be present"),
    (without("num_attention_heads"), "the key num_attention_heads must be present"),
    (changed(vocab_size=0), "vocab_size is 0; it must be a positive integer"),
    (changed(hidden_size=1024.0), "hidden_size is 1024.0; it must be a positive integer"),
    (changed(num_hidden_layers="28"), "num_hidden_layers is '28'; it must be a positive integer"),
    (changed(num_hidden_layers=True), "num_hidden_layers is True; it must be a positive integer"),
    (changed(num_key_value_heads=7), "num_attention_heads is 16; it must be a multiple of num_key_value_heads, .* 7"),
    (changed(head_dim=63), "head_dim is 63; .* must be even"),
    (changed(head_dim=None), "head_dim is None; it must be a positive integer"),
    (changed(rms_norm_eps=0), "rms_norm_eps is 0; it must be a positive"),
    (changed(rms_norm_eps=math.nan), "rms_norm_eps is nan; it must be a positive"),
    (changed(rms_norm_eps=math.inf), "rms_norm_eps is inf; it must be a positive"),
    (changed(rms_norm_eps="1e-6"), "rms_norm_eps is '1e-6'; it must be a positive"),
    (changed(rope_theta=-1e6), "rope_theta is -1000000.0; it must be a positive"),
    (changed(rope_theta=math.inf), "rope_theta is inf; it must be a positive"),
    (changed(rope_theta=None, rope_parameters={"rope_theta": math.nan}), "rope_theta is nan; it must be a positive"),
    (changed(torch_dtype="int8"), "torch_dtype is 'int8'; it must be one of bfloat16, float16, float32"),
    (changed(eos_token_id="<|im_end|>"), "eos_token_id is '<.im_end.>'; it must be a token id"),
    (changed(eos_token_id=[151645, -1]), r"eos_token_id is \[151645, -1\]; it must be"),
    (changed(tie_word_embeddings="false"), "tie_word_embeddings is 'false'; it must be true or false"),
    (changed(tie_word_embeddings=None), "tie_word_embeddings is None; it must be true or false"),
    (changed(rope_parameters=[1]), r"rope_parameters is \[1\]; .*plain RoPE"),
    (changed(rope_scaling={"factor": 2.0}), "rope_scaling is .*plain RoPE"),
    (changed(rope_scaling="dynamic"), "rope_scaling is 'dynamic'"),
    (changed(layer_types="full"), "layer_types is 'full'"),
    (changed(layer_types=[["full_attention"]]), "layer_types is .*a list of"),
    (changed(initializer_range=-1), "initializer_range is -1; it must be a positive"),
    (changed(bos_token_id="<s>"), "bos_token_id is '<s>'; it must be a token id or null"),
]


@pytest.mark.parametrize(("data", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_what_is_not_supported_is_refused_by_name(data: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        Qwen3Config.from_dict(data)
    write(tmp_path, json.dumps(data))
    with pytest.raises(ConfigError, match=f"config.json: .*{message}"):  # from a file, the message names the file
        Qwen3Config.from_pretrained(tmp_path)


def test_default_spellings_of_plain_rope_are_accepted() -> None:
    for extra in (
        {"rope_scaling": None},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": None},
        {"rope_parameters": {"rope_theta": 1000000}},
        {"layer_types": None},
        {"use_sliding_window": False, "sliding_window": 4096},
        {"some_key_of_the_future": 1},
    ):
        assert Qwen3Config.from_dict(changed(**extra)).rope_theta == 1e6


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["rope_type", "type", "x"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(sorted({**QWEN3_0_6B_FILE, **QWEN3_0_6B_FILE_5, "quantization_config": None})),
    value=JSON_VALUES,
)
def test_any_value_of_any_key_is_read_or_refused_but_never_crashes(key: str, value: Any) -> None:
    try:
        config = Qwen3Config.from_dict(changed(**{key: value}))
    except ConfigError:
        return
    for name in ("rms_norm_eps", "rope_theta", "initializer_range"):
        assert math.isfinite(getattr(config, name)), name
    assert isinstance(config.tie_word_embeddings, bool)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("", "cannot be read as JSON"),
        (b"\xff\xfe{}", "cannot be read as JSON"),
        ("[]", "holds a list; it must hold a JSON object"),
        ("null", "holds a NoneType; it must hold a JSON object"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_broken_file_is_named(text: str | bytes, message: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, json.dumps(QWEN3_0_6B_FILE))
    write(tmp_path, text, name)
    with pytest.raises(ConfigError, match=f"{name} {message}"):
        Qwen3Config.from_pretrained(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"config\.json does not exist; a model directory must hold"):
            Qwen3Config.from_pretrained(directory)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        Qwen3Config.from_pretrained(tmp_path)
