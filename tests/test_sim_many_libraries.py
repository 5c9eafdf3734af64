"""A process of the tests loads hundreds of libraries of the simulator: a signal finds the one that it concerns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.build_kit import environment, needs_compiler

COPIES = 1000  # what a signal that went from one to the next would take of a thread's stack: more than is left
KERNEL = """
#include "operators.h"
#include "cuda_platform.cuh"

// A thread that has little of its stack left, and computes for some ticks of the watchdog.
__global__ void count(int rounds) {
  volatile char room[44 << 10];
  for (int i = 0; i < rounds; ++i) room[i % sizeof room] = char(i);
}

void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t stream) {
  launch(LaunchOptions{}, count, dim3(1), dim3(2), 0, stream, args.rows > 1 ? 40'000'000 : 1);
}
"""
SCRIPT = f"""
import shutil, sys
from pathlib import Path
import torch
from qwen_cuda import loading
from qwen_cuda.building import Library

folder = Path(sys.argv[1])
loading.load_operators()
library = Library("sim", (folder / "deep.cu",), quick=True)
own = loading.build(library)[0]

def run(path, rows):
    loading.build = lambda _: [path]
    with loading.using(library):
        torch.ops.qwen_sim.rms_norm(torch.ones(rows, 8), torch.ones(8), 0.0)

run(own, 1)
for i in range({COPIES}):
    copy = folder / f"{{i}}.so"
    shutil.copy(own, copy)
    run(copy, 1)
    copy.unlink()
run(own, 2)
print("the first library has run")
"""


@needs_compiler
def test_a_tick_for_the_first_of_many_libraries_takes_little_of_a_threads_stack(tmp_path: Path) -> None:
    (tmp_path / "deep.cu").write_text(KERNEL, encoding="utf-8")
    env = environment(tmp_path)
    del env["QWEN_BUILD_DIR"]  # where the operators are built
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout.endswith("the first library has run\n"), done.stderr[-2000:]
