"""Decode steps and prefills of a model of transformers, one by one: as it comes, and as CUDA graphs.

Eager, Python launches every kernel, and the GPU waits for it: that is how a model of transformers runs unless more is
done. In a CUDA graph the launches are prepared, and the time is that of the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

Mode = Literal["eager", "graph"]
MODES: tuple[Mode, ...] = get_args(Mode)
_NO_WORK = ("empty", "new_empty", "empty_like", "detach", "alias", "lift_fresh", "_unsafe_view")


class Runner(Protocol):
    """One model in one mode. `token: [1, 1]` is the last one that it chose."""

    token: Tensor

    def start(self, prompt: Tensor) -> None:
        """Fills an empty cache with `prompt: [1, t]` and chooses the first token."""

    def steps(self, count: int) -> list[float]:
        """Appends `count` greedy tokens. → ms per token, one or more samples of it."""

    def prefills(self, prompt: Tensor, count: int) -> list[float]:
        """Runs `prompt` from nothing, `count` times. → ms of each."""


class EagerRunner:
    """A growing cache, every kernel launched from Python, and the host waits for each token, as in `generate`."""

    def __init__(self, model: Any) -> None:
        self._model, self._device = model, model.device
        self._cache = DynamicCache(config=model.config)
        self.token = torch.zeros((1, 1), dtype=torch.long, device=self._device)

    def start(self, prompt: Tensor) -> None:
        self._cache = DynamicCache(config=self._model.config)
        self._advance(prompt)

    def steps(self, count: int) -> list[float]:
        return [_ms(lambda: self._advance(self.token), self._device) for _ in range(count)]

    def prefills(self, prompt: Tensor, count: int) -> list[float]:
        return [_ms(lambda: self.start(prompt), self._device) for _ in range(count)]

    def _advance(self, ids: Tensor) -> None:
        out = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self.token = out.logits[:, -1:].argmax(-1)


class GraphRunner:
    """A static cache of `longest` tokens; on a GPU the decode step and each prefill are CUDA graphs.

    The step counts its own position, which the cache keeps on the device, and writes its own next input. A CPU has no
    graphs: there the same step is simply called.
    """

    def __init__(self, model: Any, longest: int) -> None:
        self._model, self._device = model, model.device
        self._cache = StaticCache(config=model.config, max_cache_len=longest)
        self.token = torch.zeros((1, 1), dtype=torch.long, device=self._device)
        self._step: Callable[[], object] | None = None
        self._prefills: dict[int, Callable[[], object]] = {}

    def start(self, prompt: Tensor) -> None:
        if self._step is None:
            self._fill(prompt)
            self._step = _captured(self._advance, self._device)  # its warm-up moves the cache
        self._fill(prompt)

    def steps(self, count: int) -> list[float]:
        step = self._step
        assert step is not None, "start comes first"

        def run() -> None:
            for _ in range(count):
                step()

        return [_ms(run, self._device) / count]

    def prefills(self, prompt: Tensor, count: int) -> list[float]:
        length = prompt.shape[1]
        if length not in self._prefills:
            mask = _only_causal(self._model.config)
            self._prefills[length] = _captured(
                lambda: self._model(prompt, attention_mask=mask, use_cache=False, logits_to_keep=1).logits, self._device
            )
        return [_ms(self._prefills[length], self._device) for _ in range(count)]

    def _fill(self, prompt: Tensor) -> None:
        self._cache.reset()
        self._run(prompt)

    def _advance(self) -> None:
        self._run(self.token)

    def _run(self, ids: Tensor) -> None:
        out = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self.token.copy_(out.logits[:, -1:].argmax(-1))


def runner(mode: Mode, model: Any, longest: int) -> Runner:
    """`longest`: how many tokens its cache must hold."""
    return EagerRunner(model) if mode == "eager" else GraphRunner(model, longest)


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2]
        self.count += not (func.is_view or name in _NO_WORK)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def operators_per_step(model: Any, prompt: Tensor) -> int:
    """How many operators that compute, views left out, one eager decode step calls: each launches a kernel or more."""
    one = EagerRunner(model)
    one.start(prompt)
    with _Count() as counter:
        one.steps(1)
    return counter.count


def _only_causal(config: Any) -> dict[str, None] | None:
    """What transformers makes of a prompt without padding: no mask at all, attention is causal by itself.

    It must read the device to find that out, which it cannot while a graph is recorded; so it is told.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return {"full_attention": None} if kinds == {"full_attention"} else None


def _captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a CUDA graph, after three warm-up calls on the stream on which it is recorded."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = call()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def _ms(call: Callable[[], object], device: torch.device) -> float:
    """From an idle GPU to an idle GPU, by the clock of the host."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3
