"""Checkpoints: transformers reads ours, we read its, and whatever is wrong with one is said by name."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3Config as TheirConfig
from transformers import Qwen3ForCausalLM

from chapters.ch01_math_reference.twins import SHAPES
from qwen3_ref import CheckpointError, Qwen3
from qwen3_ref import weights as weights_module
from qwen3_ref.weights import expected_shapes, load_weights, random_weights, save_pretrained

TIED, UNTIED = SHAPES["group1-tied"], SHAPES["group2-untied"]
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether both hold the same names, dtypes and bits."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def save(directory: Path, tensors: dict[str, Tensor]) -> Path:
    """Writes `tensors` as the directory's single file, whatever they are."""
    save_file(tensors, directory / FILE, metadata={"format": "pt"})
    return directory


def shard(directory: Path, tensors: dict[str, Tensor], parts: int = 3) -> Path:
    """Writes `tensors` dealt to `parts` shards with an index."""
    weight_map: dict[str, str] = {}
    for part in range(parts):
        name = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = {key: tensors[key] for key in list(tensors)[part::parts]}
        save_file(mine, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, name)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def rewrite_index(directory: Path, **changes: Any) -> None:
    index = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps({"weight_map": {**index["weight_map"], **changes}}))


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return random_weights(TIED, seed=1, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_transformers_reads_what_we_save(config: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model = Qwen3.random(config, seed=2, dtype=dtype)
    save_pretrained(tmp_path, model)
    loaded: Any = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    theirs, report = loaded
    assert not any(report.values()), report
    state = theirs.state_dict()
    assert theirs.dtype == dtype
    assert torch.equal(state.pop("lm_head.weight"), model.head_weight) or not config.tie_word_embeddings
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items() if name in state)
    assert same(load_weights(tmp_path, config, dtype), model.state_dict())
    assert Qwen3.from_pretrained(tmp_path).config == replace(config, torch_dtype=str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("max_shard_size", ["1GB", "50KB"], ids=["single", "sharded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_we_read_what_transformers_saves(config: Any, dtype: torch.dtype, max_shard_size: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    built: Any = Qwen3ForCausalLM(TheirConfig(**config.to_dict()))
    theirs = built.to(dtype).eval()
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1, 0.3)
    theirs.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / INDEX).exists() == (max_shard_size == "50KB")
    ours = Qwen3.from_pretrained(tmp_path)
    assert ours.dtype == dtype
    assert ours.config == replace(config, torch_dtype=str(dtype).removeprefix("torch."))
    assert same(ours.state_dict(), {name: theirs.state_dict()[name] for name in expected_shapes(config)})
    assert not any(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("stored", DTYPES, ids=str)
def test_weights_come_in_the_dtype_asked_for(stored: torch.dtype, tmp_path: Path) -> None:
    weights = random_weights(TIED, seed=1, dtype=stored)
    save(tmp_path, weights)
    for dtype in (*DTYPES, torch.float64):
        assert same(load_weights(tmp_path, TIED, dtype), {name: weight.to(dtype) for name, weight in weights.items()})


def test_random_weights_are_seeded_and_never_unit() -> None:
    a, b, c = (random_weights(TIED, seed, torch.float32) for seed in (1, 1, 2))
    assert same(a, b)
    assert not same(a, c)
    assert {name: tuple(weight.shape) for name, weight in a.items()} == expected_shapes(TIED)
    norms = torch.cat([weight for name, weight in a.items() if "norm" in name])
    assert 0.15 < float(norms.std()) < 0.25
    assert abs(float(norms.mean()) - 1) < 0.05


def test_a_spare_head_of_a_tied_checkpoint_is_passed_over(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """Qwen3-0.6B's own file holds lm_head.weight a second time, and old ones hold RoPE frequencies."""
    spare = {
        "lm_head.weight": torch.ones(TIED.vocab_size, TIED.hidden_size),
        "model.rotary_emb.inv_freq": torch.ones(8),
    }
    save(tmp_path, {**tensors, **spare})
    assert same(load_weights(tmp_path, TIED, torch.bfloat16), tensors)
    with pytest.raises(CheckpointError, match=r"1 missing: lm_head\.weight"):
        load_weights(save(tmp_path, tensors), replace(TIED, tie_word_embeddings=False), torch.bfloat16)


def test_missing_unexpected_and_misshapen_tensors_are_all_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    tensors["model.layers.2.self_attn.k_norm.weight"] = torch.ones(8)
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.ones(80, 48)  # transposed
    with pytest.raises(CheckpointError) as caught:
        load_weights(save(tmp_path, tensors), TIED, torch.float32)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} does not fit its config.json. Tensors 2 missing: ")
    assert "model.layers.1.mlp.up_proj.weight, model.norm.weight" in message
    assert "1 unexpected: model.layers.0.self_attn.q_proj.bias" in message
    assert "2 misshapen: model.layers.0.mlp.down_proj.weight is [80, 48], must be [48, 80], " in message
    assert "model.layers.2.self_attn.k_norm.weight is [8], must be [16]." in message


def test_a_long_list_of_tensors_is_cut_short(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"34 missing: .* and 28 more"):
        load_weights(
            save(tmp_path, {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"]}), TIED, torch.float32
        )


def test_an_absent_checkpoint_is_named(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=rf"{directory} holds neither {FILE} nor {INDEX}"):
            load_weights(directory, TIED, torch.float32)


def test_a_cut_or_damaged_file_is_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    whole = (save(tmp_path, tensors) / FILE).read_bytes()
    rng = random.Random(0)
    cuts = [0, 1, 7, 8, 9, 500, len(whole) // 2, len(whole) - 1]
    damaged = [whole[:cut] for cut in cuts] + [
        whole + b"\0",
        b"\xff" * 64,
        b"version https://git-lfs.github.com/spec/v1\n",
    ]
    for _ in range(60):  # random bytes in the header: lengths, names, shapes, offsets
        bad = bytearray(whole)
        for _ in range(3):
            bad[rng.randrange(3000)] = rng.randrange(256)
        damaged.append(bytes(bad))
    refused = 0
    for data in damaged:
        (tmp_path / FILE).write_bytes(data)
        try:
            load_weights(tmp_path, TIED, torch.float32)
        except CheckpointError:  # anything else fails the test
            refused += 1
    assert refused >= len(cuts) + 3 + 50, "only damage that stays a valid header may pass"
    (tmp_path / FILE).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=rf"{FILE} is not a whole safetensors file .* cut short"):
        load_weights(tmp_path, TIED, torch.float32)


def test_shards_are_read_by_their_index(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    assert same(load_weights(shard(tmp_path, tensors), TIED, torch.bfloat16), tensors)


def test_the_index_decides_which_copy_counts(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """A shard that holds a tensor which the index places elsewhere (left over from another run) does not win."""
    shard(tmp_path, tensors)
    for path in sorted(tmp_path.glob("*.safetensors")):
        stale = {name: torch.zeros_like(weight) for name, weight in tensors.items()}
        save_file({**stale, **load_file(path)}, path, metadata={"format": "pt"})
    assert same(load_weights(tmp_path, TIED, torch.bfloat16), tensors)


def test_a_missing_shard_is_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    shard(tmp_path, tensors)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"lacks model-00002-of-00003.safetensors, which its index names; download again"
    ):
        load_weights(tmp_path, TIED, torch.float32)


def test_a_tensor_that_its_shard_lacks_is_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    shard(tmp_path, tensors)
    rewrite_index(tmp_path, **{"model.embed_tokens.weight": "model-00002-of-00003.safetensors"})
    with pytest.raises(CheckpointError, match=r"places model.embed_tokens.weight in model-00002-of.*, which lacks it"):
        load_weights(tmp_path, TIED, torch.float32)


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/passwd", "sub/file.safetensors", "..", ".", ""])
def test_an_index_that_points_outside_is_refused(place: str, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    save_file(tensors, tmp_path / "secret.safetensors")
    save_file(tensors, tmp_path / "sub" / "file.safetensors")
    shard(tmp_path / "sub", tensors)
    rewrite_index(tmp_path / "sub", **{"model.norm.weight": place})
    with pytest.raises(CheckpointError, match=r"points to .*; shards must lie beside the index"):
        load_weights(tmp_path / "sub", TIED, torch.float32)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": null}', "\xff", "[" * 99999],
)
def test_a_broken_index_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=f"{INDEX} cannot be read"):
        load_weights(tmp_path, TIED, torch.float32)


def test_an_empty_index_misses_everything(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(CheckpointError, match="35 missing"):
        load_weights(tmp_path, TIED, torch.float32)


def test_a_file_that_may_not_be_read_is_not_called_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).mkdir()  # stands in for a file without permission, which root would read all the same
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(CheckpointError, match=rf"{FILE} cannot be read: permission denied\.$"):
        load_weights(tmp_path, TIED, torch.float32)


def test_a_directory_in_a_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(CheckpointError, match=rf"{FILE} is not a whole safetensors file"):
        load_weights(tmp_path, TIED, torch.float32)


@pytest.mark.parametrize("fails", ["save_file", "replace", "write_text"])
def test_a_save_that_fails_leaves_the_old_files_whole(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Qwen3.random(TIED, seed=1), Qwen3.random(TIED, seed=2)
    save_pretrained(tmp_path, old)

    def full_disk(*args: Any, **kwargs: Any) -> None:
        if fails == "save_file":
            Path(args[1]).write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(weights_module if fails == "save_file" else Path, fails, full_disk)
        with pytest.raises(OSError, match="No space left"):
            save_pretrained(tmp_path, new)
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "config.json"}
    survivor = Qwen3.from_pretrained(tmp_path).state_dict()  # every file is whole, and is an old or a new one
    assert same(survivor, old.state_dict()) or (fails == "write_text" and same(survivor, new.state_dict()))
    save_pretrained(tmp_path, new)
    assert same(Qwen3.from_pretrained(tmp_path).state_dict(), new.state_dict())


def test_saving_over_the_files_that_a_model_is_read_from(tmp_path: Path) -> None:
    """Weights may be views of the mapped file; writing a new one beside it and renaming keeps them valid."""
    save_pretrained(tmp_path, Qwen3.random(TIED, seed=1))
    model = Qwen3.from_pretrained(tmp_path)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_pretrained(tmp_path, Qwen3.random(TIED, seed=2))
    assert same(model.state_dict(), before)


def test_a_model_whose_tensors_share_memory_can_be_saved(tmp_path: Path) -> None:
    """Packed projections are views of one tensor; the file must hold each on its own."""
    weights = random_weights(TIED, seed=1, dtype=torch.float32)
    names = [f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "qkv"]
    packed = torch.cat([weights[name] for name in names])
    weights |= dict(zip(names, packed.split([32, 32, 32]), strict=True))
    save_pretrained(tmp_path, Qwen3.from_weights(TIED, weights))
    assert same(load_weights(tmp_path, TIED, torch.float32), weights)
