"""The end-to-end benchmark on a GPU, as far as no compiler is needed: every variant of ours, and a peer's graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chapters.ch11_generator import benchmark
from chapters.ch11_generator.end_to_end.catalogue import PEERS, catalogue
from chapters.ch11_generator.end_to_end.compiled_peer import CompiledModel
from chapters.ch11_generator.end_to_end.right_tokens import Judge
from chapters.ch11_generator.end_to_end.step_graph import answering
from chapters.ch11_generator.end_to_end.subject import Request, load
from qwen_cuda.testing.benchmarks import results_of_a_run

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("operators", "quick_ceilings")]


def test_all_of_ours_are_timed_on_a_gpu(gpu_device: torch.device, tmp_path: Path) -> None:
    names = [name for name in catalogue() if name not in PEERS]
    small = ("--model", "tiny", "--contexts", "40", "--new-tokens", "12", "--rounds", "2")
    data = results_of_a_run(benchmark, tmp_path, "--device", str(gpu_device), *small, "--only", *names, "transformers")
    assert {case["variant"] for case in data["cases"]} == {*names, "transformers"}
    memory = {one["variant"]: one for one in data["end_to_end"]["memory"]}
    assert all(memory[name]["peak_bytes"] >= memory[name]["held_bytes"] > 0 for name in names)


def test_a_peers_step_in_one_graph_gives_right_tokens(gpu_device: torch.device) -> None:
    subject = load("tiny", gpu_device)
    request = Request(subject, subject.prompt(40), 12, 64)
    peer = CompiledModel(request, "products", compiler=lambda function: function)
    answer, judge = answering(peer, request, graph=True), Judge(subject)
    whole = answer(12)
    assert judge.complaint(request, whole) is None
    assert (answer(1), answer(12)) == (whole[:1], whole)
