"""How many processes run the tests side by side, for `pytest -n auto` of pytest-xdist; `make test` says that."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qwen_cuda.building import ninja_run

_MOST = 8  # the longest test file ends last, however many there are
_BYTES = 2 << 30  # a process that has loaded PyTorch and a model or two, with its share of the compilers'


def count(config: pytest.Config) -> int:
    """One process for each core, as far as the memory goes; 0 means that pytest itself runs the tests, one by one.

    So it does on a single core; where a test talks to its user (-s, --trace); and where there is a GPU, whose memory
    and time the tests would share.
    """
    if config.option.capture == "no" or config.option.trace or Path("/dev/nvidiactl").exists():
        return 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    workers = min(ninja_run.jobs(), memory // _BYTES, _MOST)
    return workers if workers > 1 else 0


def share_cores(config: pytest.Config) -> None:
    """In one of those processes: PyTorch, if the collected tests have loaded it, computes on its share of the cores."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    torch = sys.modules.get("torch")
    if torch is not None and workers > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
