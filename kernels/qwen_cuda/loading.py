"""Loads the compiled kernels and points the operators at them.

`load_operators()` registers `torch.ops.qwen_cuda` and `torch.ops.qwen_sim`; `backend("sim")` builds the kernels for the
simulator. `using(library)` points operators at other kernels for a while: at a step of a chapter's ladder, at a
learner's file, at a kernel with a planted fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qwen_cuda.building import KERNELS, BuildError, Library, build, sanitizers

Backend = Literal["cuda", "sim"]

_lock = threading.RLock()
_loaded: dict[Path, Loaded] = {}
# Of each (backend, operator): the product's own library, and those of the `using` around now, the innermost last.
_own: dict[tuple[str, str], Loaded] = {}
_inner: dict[tuple[str, str], list[Loaded]] = {}
_variants: dict[str, str] = {}  # of each backend that `backend` has set up


@dataclass(frozen=True, eq=False)
class Loaded:
    """A library in this process. `launchers`: the address of the launcher of each operator that it exports."""

    library: Library
    path: Path
    handle: ctypes.CDLL
    launchers: dict[str, int]

    def address(self, symbol: str) -> int | None:
        """The address of an exported function, None when there is none."""
        function = getattr(self.handle, symbol, None)
        return ctypes.cast(function, ctypes.c_void_p).value if function is not None else None


def bindings_library() -> Library:
    """The operators' schemas and checks, and the kernels for the CPU."""
    sources = (path for folder in ("bindings", "cpu") for path in sorted((KERNELS / folder).glob("*.cpp")))
    return Library("bindings", tuple(sources))


def default_library(name: str, backend: Backend, variant: str = "plain") -> Library:
    """kernels/cuda/`name`.cu, for a GPU or for the simulator."""
    return Library(backend, (KERNELS / "cuda" / f"{name}.cu",), variant)


def default_libraries(backend: Backend, variant: str = "plain") -> list[Library]:
    """Every file of kernels/cuda."""
    return [default_library(path.stem, backend, variant) for path in sorted((KERNELS / "cuda").glob("*.cu"))]


@functools.cache
def operator_names() -> tuple[str, ...]:
    """The operators that a kernel library can export: those that operators.h declares."""
    text = (KERNELS / "cuda" / "include" / "operators.h").read_text(encoding="utf-8")
    return tuple(re.findall(r"^QWEN_EXPORT void qwen_(\w+)\(", text, re.MULTILINE))


def load_operators() -> None:
    """Registers the operators, building what is missing; where there is a GPU, points them at its kernels as well.

    Calls after the first do nothing.

    Raises:
        BuildError: the bindings cannot be built. That the CUDA kernels cannot is said by the operator that needs one.
    """
    with _lock:
        _bindings()


def register_autograd(namespace: str, name: str) -> None:
    """Gives an operator the Autograd kernel of kernels/bindings/autograd.cpp."""
    _bindings().qwen_register_autograd(namespace.encode(), name.encode())


def backend(name: Backend, variant: str | None = None) -> None:
    """Builds kernels/cuda for a backend and points all its operators there; inside a `using`, from its end on.

    `variant` is by default "plain", for the simulator that of QWEN_SIM. Calls after the first with it do nothing.

    Raises:
        BuildError: a kernel cannot be built or loaded.
    """
    variant = variant or (os.environ.get("QWEN_SIM") if name == "sim" else None) or "plain"
    with _lock:
        if _variants.get(name) != variant:
            handle, libraries = _bindings(), default_libraries(name, variant)
            build(*libraries)
            _own.update(((name, op), one) for library in libraries for one in [load(library)] for op in one.launchers)
            _point(handle, name, operator_names())
            _variants[name] = variant


def load(library: Library) -> Loaded:
    """The library in this process, built if need be. No operator is pointed at it yet.

    Raises:
        BuildError: it cannot be built or loaded.
    """
    sanitizers.check_loaded(library.variant)
    path = build(library)[0]
    with _lock:
        if path not in _loaded:
            try:
                handle = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
            except OSError as error:
                raise BuildError(f"{path} was built and cannot be loaded: {error}.") from error
            found = Loaded(library, path, handle, {})
            addresses = {op: found.address(f"qwen_{op}") for op in operator_names()}
            found.launchers.update((op, address) for op, address in addresses.items() if address)
            _loaded[path] = found
        return _loaded[path]


@contextlib.contextmanager
def using(library: Library) -> Iterator[Loaded]:
    """Inside the `with`, operators that `library` exports run its kernels; after it, those that they ran before.

    They do so in all threads. Of several such blocks the one that was entered last counts.

    Raises:
        BuildError: it cannot be built or loaded, or exports no operator.
    """
    loaded = load(library)
    if not loaded.launchers:
        raise BuildError(f"{library.sources[0]} exports no launcher: it must define one that operators.h declares.")
    with _lock:
        handle = _bindings()
        stacks = [_inner.setdefault((library.kind, op), []) for op in loaded.launchers]
        for stack in stacks:
            stack.append(loaded)
        _point(handle, library.kind, loaded.launchers)
    try:
        yield loaded
    finally:
        with _lock:
            for stack in stacks:
                del stack[len(stack) - 1 - stack[::-1].index(loaded)]
            _point(handle, library.kind, loaded.launchers)
            if not any(loaded in stack for stack in stacks):
                _rest(loaded)


def _rest(loaded: Loaded) -> None:
    """Gives back the memory that a simulated library keeps for its next launch: a process may load hundreds of them."""
    release = getattr(loaded.handle, "cudasim_release_stacks", None)
    if release is not None:
        release()


@functools.cache
def _bindings() -> ctypes.CDLL:
    """Registers the operators, and gives the functions through which they are pointed at kernels."""
    import torch

    on_gpu = default_libraries("cuda") if torch.cuda.is_available() else []
    why = "there is no GPU that PyTorch can use; give tensors on the CPU, or see what `make doctor` says."
    try:
        path = build(bindings_library(), *on_gpu)[0]
    except BuildError as error:
        if not on_gpu:
            raise
        on_gpu, why = [], error.sentence
        path = build(bindings_library())[0]
    torch.ops.load_library(str(path))
    handle = ctypes.CDLL(str(path))
    handle.qwen_set_launcher.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    handle.qwen_set_missing.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    handle.qwen_set_simulator_hooks.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    handle.qwen_register_autograd.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    functions = (handle.qwen_set_launcher, handle.qwen_set_missing, handle.qwen_set_simulator_hooks)
    for function in (*functions, handle.qwen_register_autograd):
        function.restype = None
    handle.qwen_set_missing(b"cuda", why.encode())
    handle.qwen_set_missing(b"sim", b'the simulator is not ready; call qwen_cuda.loading.backend("sim") first.')
    _own.update((("cuda", op), one) for library in on_gpu for one in [load(library)] for op in one.launchers)
    _point(handle, "cuda", operator_names())
    return handle


def _point(handle: ctypes.CDLL, name: str, operators: Iterable[str]) -> None:
    """Points each operator at the library that now counts for it, or at nothing."""
    for op in operators:
        inner = _inner.get((name, op))
        loaded = inner[-1] if inner else _own.get((name, op))
        handle.qwen_set_launcher(name.encode(), op.encode(), loaded.launchers[op] if loaded else None)
        if name == "sim":
            symbols = ("cudasim_operand", "cudasim_forget_operands")
            hooks = [loaded.address(symbol) if loaded else None for symbol in symbols]
            handle.qwen_set_simulator_hooks(op.encode(), *hooks)
