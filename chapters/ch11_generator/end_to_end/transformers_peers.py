"""transformers' own `generate` on our weights: as it comes, and with a static cache, which it compiles."""

from __future__ import annotations

from chapters.ch01_math_reference.peer import TransformersPeer
from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.subject import Request


def eager(request: Request) -> Answer:
    """A growing cache; Python launches every kernel."""
    peer, ids = _peer(request), request.ids
    return lambda new_tokens: peer.generate(ids, new_tokens)


def compiled(request: Request) -> Answer:
    """A static cache of just this request's size. transformers compiles its decode steps, into CUDA graphs, on a GPU.

    The cache is kept: a new one for each request would be at another address, and be captured again.
    """
    peer, ids = TransformersPeer(request.subject.model), request.ids
    cache = peer.static_cache(request.tokens)

    def answer(new_tokens: int) -> list[int]:
        cache.reset()
        return peer.generate(ids, new_tokens, past_key_values=cache)

    return answer


def _peer(request: Request) -> TransformersPeer:
    peer: TransformersPeer = request.subject.shared("transformers", lambda: TransformersPeer(request.subject.model))
    return peer
