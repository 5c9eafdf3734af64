"""The program that runs under ncu: every case once to get ready, and once more between two marks.

python -m qwen_cuda.benchmarking.profile_call MODULE CASES    CASES is a JSON list of settings; see `profile`
"""

from __future__ import annotations

import importlib
import json
import sys

import torch


def main(module: str, cases: str) -> None:
    prepared = importlib.import_module(module).prepared
    for case in json.loads(cases):
        with torch.inference_mode(), prepared(**case) as call:
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
