"""The model that all contenders run, on one set of weights, and the requests that they answer."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from chapters.ch06_split_attention.paged_model import FUSED, PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch10_quantized_kv.cache_formats import CASTS, cache_format
from chapters.ch10_quantized_kv.quantized_model import QuantizedPagedModel
from qwen3_ref import QWEN3_0_6B, Qwen3, Qwen3Config
from qwen3_ref.hub import resolve_model
from qwen3_ref.weights import save_pretrained

RANDOM = "random-0.6b"


@dataclass
class Subject:
    """A model. `kept` holds by name what contenders share, or keep from one request to the next.

    Attributes:
        name: `random-0.6b`, or that of a checkpoint.
        weights: `random`, or `checkpoint`.
        model: 16-bit weights, on the device that is measured. PyTorch's fused attention.
        directory: of the checkpoint; None for random weights.
    """

    name: str
    weights: str
    model: Qwen3
    directory: Path | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Qwen3Config:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gave when it was asked for first."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def paged(self, attention: str = FUSED) -> PagedModel:
        """The weights behind our operators. All of these have the same memory."""
        paged: PagedModel = self.shared(attention, lambda: PagedModel(self.model, attention=attention))
        return paged

    def coded(self, kv_cache: str) -> PagedModel:
        """The same over a quantised cache."""
        make = partial(QuantizedPagedModel, self.model, cache_format(kv_cache, self.config))
        coded: PagedModel = self.shared(kv_cache, make)
        return coded

    def w8_head(self) -> W8Head:
        head: W8Head = self.shared("w8_head", lambda: W8Head.of(self.model.head_weight))
        return head

    def prepare(self) -> None:
        """Makes what contenders share, so that none of them seems to take the memory."""
        for attention in (FUSED, "split", "grouped"):
            self.paged(attention)
        for kv_cache in CASTS:
            self.coded(kv_cache)
        self.w8_head()

    def folder(self) -> Path:
        """A checkpoint's directory; random weights are written into a temporary one, which goes when the run ends."""
        if self.directory is not None:
            return self.directory
        temporary = self.shared("folder", tempfile.TemporaryDirectory)
        path = Path(temporary.name)
        if not (path / "config.json").exists():
            save_pretrained(path, self.model)
        return path

    def prompt(self, length: int) -> tuple[int, ...]:
        """Random token ids, the same in each run."""
        generator = torch.Generator().manual_seed(length)
        return tuple(torch.randint(self.config.vocab_size, (length,), generator=generator).tolist())


@dataclass(frozen=True)
class Request:
    """`new_tokens` greedy tokens after `prompt`. Caches that are made for more than one request hold `max_length`."""

    subject: Subject
    prompt: tuple[int, ...]
    new_tokens: int
    max_length: int

    @property
    def tokens(self) -> int:
        """Of prompt and answer."""
        return len(self.prompt) + self.new_tokens

    @property
    def ids(self) -> torch.Tensor:
        """The prompt, `[1, t]` on the device."""
        return torch.tensor([self.prompt], device=self.subject.device)


def load(name: str, device: torch.device, report: Callable[[str], None] | None = None) -> Subject:
    """Loads a checkpoint, or draws random weights of the shape of Qwen3-0.6B.

    Args:
        name: `auto` (Qwen/Qwen3-0.6B, random weights of its shape where it cannot be had), `random-0.6b`, `tiny`, a
            directory or a hub id.
        report: gets a sentence before a download, and when `auto` takes random weights.
    Raises:
        HubError, ConfigError, CheckpointError: there is no such model, or it cannot be read.
    """
    if name != RANDOM:
        source = resolve_model(name, report=report, progress=False)
        if source.note is None:
            model = Qwen3.from_pretrained(source.dir, torch.bfloat16, device, attention="sdpa")
            return Subject(source.name, "checkpoint", model, source.dir)
        if report is not None:
            report(f"{source.note.replace('The tiny model runs', 'Random weights of its shape run')}")
    config = dataclasses.replace(QWEN3_0_6B, eos_token_ids=())
    return Subject(RANDOM, "random", Qwen3.random(config, dtype=torch.bfloat16, device=device, attention="sdpa"))
