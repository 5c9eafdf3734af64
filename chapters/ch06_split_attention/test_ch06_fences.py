"""What orders the blocks of a split: ThreadSanitizer finds a race between them as soon as the fences are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from qwen_cuda.building import ROOT, BuildError, Edit, build, sanitizers
from qwen_cuda.loading import default_library

SOURCE = "paged_attention_split"
WHOLE = default_library(SOURCE, "sim", "tsan")
WITHOUT = replace(WHOLE, edits=(Edit("partition_merge.cuh", "  __threadfence();\n", "", 2),))
# The sanitizer must be in the process before Python is, so the check runs in one of its own.
SCRIPT = """
import sys
import torch
from chapters.ch05_grouped_attention.paged_cases import Heads, paged_case
from chapters.ch06_split_attention.split_checks import split
from chapters.ch06_split_attention.test_ch06_fences import WHOLE, WITHOUT
from qwen_cuda.testing.backends import opened

torch.set_num_threads(1)
with opened("sim", WHOLE if sys.argv[1] == "whole" else WITHOUT) as backend:
    split(backend, paged_case((70, 40), Heads(kv_heads=2, group=2, head_dim=64), seed=1), (16, 5))
"""


def races(which: str) -> str:
    """What ThreadSanitizer says of a run."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, **sanitizers.environment("tsan"), "PYTHONPATH": path, "CUDASIM_THREADS": "2"}
    command = [sys.executable, "-c", SCRIPT, which]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "Traceback" not in run.stderr, run.stderr
    return run.stderr


@pytest.mark.slow
def test_blocks_are_ordered_by_fences_and_the_counter() -> None:
    try:
        sanitizers.environment("tsan")
        build(WHOLE, WITHOUT)
    except BuildError as error:
        pytest.skip(error.sentence)
    assert "data race" not in races("whole")
    assert "data race" in races("without")
