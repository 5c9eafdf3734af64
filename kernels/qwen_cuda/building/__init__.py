"""Builds shared libraries from C++ and CUDA sources, once for each content.

`build(library, …)` returns the path of each; what exists already is returned at once. `library` says what can be
built, `recipes` how, `sources` what a build reads, `toolchain` finds the programs, `store` the place, `ninja_run` runs.
Importing the package imports no PyTorch.
"""

from qwen_cuda.building.build import build
from qwen_cuda.building.library import KERNELS, ROOT, BuildError, Edit, Library

__all__ = ["KERNELS", "ROOT", "BuildError", "Edit", "Library", "build"]
