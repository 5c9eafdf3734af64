"""Checkpoints: the tensors that a config asks for, read from and written to Hugging Face's safetensors layout."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from qwen3_ref.config import Qwen3Config

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that is missing, broken, or does not fit its config."""


def expected_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, in order, with its shape (`[out, in]` for a linear layer)."""
    d, i = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (d,),
            prefix + "self_attn.q_proj.weight": (config.q_size, d),
            prefix + "self_attn.k_proj.weight": (config.kv_size, d),
            prefix + "self_attn.v_proj.weight": (config.kv_size, d),
            prefix + "self_attn.q_norm.weight": (config.head_dim,),
            prefix + "self_attn.k_norm.weight": (config.head_dim,),
            prefix + "self_attn.o_proj.weight": (d, config.q_size),
            prefix + "post_attention_layernorm.weight": (d,),
            prefix + "mlp.gate_proj.weight": (i, d),
            prefix + "mlp.up_proj.weight": (i, d),
            prefix + "mlp.down_proj.weight": (d, i),
        }
    shapes["model.norm.weight"] = (d,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    return shapes


def load_weights(
    directory: str | Path, config: Qwen3Config, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Reads `model.safetensors`, or the shards that `model.safetensors.index.json` lists, as `dtype` on `device`.

    A second copy of a tied head (`lm_head.weight`, present in Qwen3-0.6B's own file) is passed over.
    Raises:
        CheckpointError: a file is missing or cut short, or tensors are missing, unexpected or misshapen; all are named.
    """
    directory = Path(directory)
    wanted = expected_shapes(config)
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path, names in _files(directory).items():
        shapes = _shapes_in(path)
        if names is not None and (absent := sorted(names - shapes.keys())):
            raise CheckpointError(f"{directory / INDEX_FILE} places {_some(absent)} in {path.name}, which lacks it.")
        for name, shape in shapes.items():
            if names is None or name in names or name not in found:  # a copy that the index places elsewhere never wins
                found[name] = (path, shape)
    _compare(directory, wanted, {name: shape for name, (_, shape) in found.items()}, config.tie_word_embeddings)

    by_file: dict[Path, list[str]] = defaultdict(list)
    for name in wanted:
        by_file[found[name][0]].append(name)
    weights: dict[str, Tensor] = {}
    for path, wanted_here in by_file.items():
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in wanted_here:
                    weights[name] = file.get_tensor(name).to(dtype)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_broken(path, error)) from None
    return {name: weights[name] for name in wanted}


def random_weights(
    config: Qwen3Config, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Seeded weights: normal matrices, norm weights spread around 1 (unit norm weights would hide bugs)."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        draw = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        weights[name] = (1 + 0.2 * draw if len(shape) == 1 else config.initializer_range * draw).to(dtype)
    return weights


def save_pretrained(directory: str | Path, model: nn.Module) -> None:
    """Writes `config.json` and `model.safetensors` of a `Qwen3`, each complete or not at all.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config: Qwen3Config = model.config  # type: ignore[assignment]
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    text = json.dumps(dict(sorted({**config.to_dict(), "torch_dtype": dtype}.items())), indent=2) + "\n"

    temporary = directory / f".{WEIGHTS_FILE}.{os.getpid()}"
    try:
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.chmod(0o644)  # safetensors lets only the owner read
        temporary.replace(directory / WEIGHTS_FILE)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(directory / "config.json")
    finally:
        temporary.unlink(missing_ok=True)


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The safetensors files of a checkpoint; for sharded ones with the tensors that the index places in each."""
    index = directory / INDEX_FILE
    if (directory / WEIGHTS_FILE).exists():
        return {directory / WEIGHTS_FILE: None}
    if not index.exists():
        raise CheckpointError(f"{directory} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; one of them must be there.")
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files: dict[Path, set[str] | None] = {}
        for name, file in weight_map.items():
            if file in ("", "..") or Path(file).name != file:
                raise CheckpointError(f"{index} points to {file!r}; shards must lie beside the index.")
            shard = files.setdefault(directory / file, set())
            assert shard is not None
            shard.add(name)
    except (
        OSError,
        UnicodeDecodeError,
        json.JSONDecodeError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise CheckpointError(f"{index} cannot be read: {type(error).__name__}: {error}.") from None
    missing = sorted(path.name for path in files if not path.exists())
    if missing:
        raise CheckpointError(f"{directory} lacks {_some(missing)}, which its index names; download again.")
    return files


def _shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_broken(path, error)) from None


def _broken(path: Path, error: Exception) -> str:
    if path.exists() and not os.access(path, os.R_OK):  # of which safetensors says that there is no such file
        return f"{path} cannot be read: permission denied."
    return f"{path} is not a whole safetensors file ({error}); it may be cut short, so download or copy it again."


def _compare(
    directory: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], tied: bool
) -> None:
    spare = {name for name in found if name.endswith("rotary_emb.inv_freq")} | ({"lm_head.weight"} if tied else set())
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted and name not in spare]
    misshapen = [
        f"{name} is {list(found[name])}, must be {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{len(names)} {kind}: {_some(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise CheckpointError(f"{directory} does not fit its config.json. Tensors " + "; ".join(problems) + ".")


def _some(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
