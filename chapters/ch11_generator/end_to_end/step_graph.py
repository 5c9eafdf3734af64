"""A peer's decode step as one CUDA graph: what its request looks like around the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.subject import Request

_WARM_UPS = 3


class Counters:
    """What a step reads and moves on, in memory that stays: `token: [1]` to compute next, its `position: [1]`.

    `answer: [n]` collects what was drawn, `drawn: [1]` counts it. All int64.
    """

    def __init__(self, request: Request) -> None:
        device = request.subject.device
        self.token, self.position, self.drawn = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(3))
        self.answer = torch.zeros(request.new_tokens, dtype=torch.int64, device=device)

    def set(self, token: Tensor | int, position: int, drawn: int) -> None:
        self.token.copy_(torch.as_tensor(token))
        self.position.fill_(position)
        self.drawn.fill_(drawn)

    def advance(self, token: Tensor) -> None:
        """The end of a step, on the device alone. `token: [1]` int64."""
        self.token.copy_(token)
        self.answer.index_copy_(0, self.drawn, token)
        self.position.add_(1)
        self.drawn.add_(1)


class Peer(Protocol):
    """Somebody else's model: `prefill` fills a cache and gives the first token, `[]`; `step` computes the next one."""

    counters: Counters

    def prefill(self) -> Tensor: ...

    def step(self) -> None: ...


def answering(peer: Peer, request: Request, graph: bool) -> Answer:
    """The peer's answers. With `graph` its step is captured now, and replayed for each token.

    The host waits for the last token only: between two replays it has nothing to do.
    """
    step = captured(peer, request) if graph else peer.step

    @torch.inference_mode()
    def answer(new_tokens: int) -> list[int]:
        first = peer.prefill()
        peer.counters.set(first, len(request.prompt), 1)
        peer.counters.answer[0] = first
        for _ in range(new_tokens - 1):
            step()
        tokens: list[int] = peer.counters.answer[:new_tokens].tolist()
        return tokens

    return answer


@torch.inference_mode()
def captured(peer: Peer, request: Request) -> Callable[[], None]:
    """The step as a CUDA graph, after steps that may compile and tune."""
    device = request.subject.device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            peer.counters.set(0, 0, 0)
            peer.step()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        peer.step()

    def replay() -> None:
        graph.replay()

    return replay
