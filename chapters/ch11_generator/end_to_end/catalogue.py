"""Everybody who takes part, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chapters.ch03_swiglu.drop_in.models import without_cudnn_attention
from chapters.ch11_generator.end_to_end import (
    compiled_peer,
    ours,
    transformers_peers,
    vllm_engine,
    vllm_operators,
)
from chapters.ch11_generator.end_to_end.contender import Contender, on_a_gpu
from chapters.ch11_generator.end_to_end.subject import Subject

YARDSTICKS = (ours.OURS, ours.W8)  # part of every run: what others are divided by must have run beside them


def catalogue(report: Callable[[str], None] = lambda sentence: None) -> dict[str, Contender]:
    """By name, ours first. `report` gets sentences about how a peer runs."""
    return {one.name: one for one in (*ours.contenders(), *_peers(report))}


def _peers(report: Callable[[str], None]) -> list[Contender]:
    return [
        Contender(
            "transformers", "transformers, eager", transformers_peers.eager, peer=True, inside=without_cudnn_attention
        ),
        Contender(
            "transformers_compiled", "transformers, static cache, compiled", transformers_peers.compiled, peer=True,
            unavailable=on_a_gpu("transformers_compiled"),
        ),
        Contender(
            "torch_compile", "torch.compile, coordinate descent, one graph",
            partial(compiled_peer.fastest, report=report), peer=True, unavailable=on_a_gpu("torch_compile"),
        ),
        Contender(
            "vllm_operators", "vLLM’s operators and cuBLAS, one graph",
            partial(vllm_operators.in_one_graph, report=report), peer=True,
            unavailable=_on_a_gpu_and("vllm_operators", vllm_operators.unavailable),
        ),
        Contender(
            "vllm_engine", "vLLM’s engine", vllm_engine.engine, peer=True, metered=False,
            unavailable=_on_a_gpu_and("vllm_engine", vllm_engine.unavailable),
        ),
    ]  # fmt: skip


def _on_a_gpu_and(what: str, more: Callable[[], str | None]) -> Callable[[Subject], str | None]:
    return lambda subject: on_a_gpu(what)(subject) or more()


TITLES = {one.name: one.title for one in catalogue().values()}
PEERS = tuple(one.name for one in catalogue().values() if one.peer)
