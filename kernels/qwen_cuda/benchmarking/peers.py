"""Other people's kernels, where this machine has them. None is needed, and none is fetched."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LIBRARY = "_C_stable_libtorch.abi3.so"
MORE = "_C.abi3.so"  # Machete; its operators join the same namespace
FLASH_LIBRARY = "_vllm_fa3_C.abi3.so"


@dataclass(frozen=True)
class Vllm:
    """vLLM's operators. `ops` is its namespace `torch.ops._C`, `version` that of the package or where it came from."""

    ops: Any
    version: str


def vllm(env: Mapping[str, str] = os.environ) -> Vllm | str:
    """vLLM's operators: of the folder that QWEN_PEERS names, else of the installed package. Or why there are none."""
    folder = env.get("QWEN_PEERS")
    try:
        if folder:
            path = Path(folder) / LIBRARY
            if not path.is_file():
                return f"vLLM's operators are left out: the folder that QWEN_PEERS names holds no {LIBRARY}."
            torch.ops.load_library(str(path))
            version = f"{LIBRARY} of QWEN_PEERS"
            with contextlib.suppress(OSError):  # without it there is one peer less
                torch.ops.load_library(str(path.with_name(MORE)))
        elif importlib.util.find_spec("vllm") is None:
            return (
                "vLLM's operators are left out: vllm is not installed, and QWEN_PEERS names no folder with its "
                f"{LIBRARY}."
            )
        else:
            _import_vllm()
            version = importlib.metadata.version("vllm")
    except Exception as error:  # a peer of another version of CUDA or PyTorch may fail in any way
        said = str(error).strip().partition("\n")[0].replace(folder or "\n", "QWEN_PEERS")  # results hold no local path
        return f"vLLM's operators are left out: they do not load. {type(error).__name__}: {said}"
    if not hasattr(torch.ops._C, "rms_norm"):
        return f"vLLM's operators are left out: {version} registers no rms_norm."
    return Vllm(torch.ops._C, version)


def _import_vllm() -> None:
    """The modules that register its operators; which of them exist depends on the version."""
    found = [name for name in ("vllm._C", "vllm._C_stable_libtorch") if importlib.util.find_spec(name)]
    for name in found:
        importlib.import_module(name)


def flash_attention(env: Mapping[str, str] = os.environ) -> Any:
    """FlashAttention-3: its namespace `torch.ops._vllm_fa3_C`, from where `vllm` looks. Or why there is none."""
    folder = env.get("QWEN_PEERS")
    try:
        if folder:
            path = Path(folder) / FLASH_LIBRARY
            if not path.is_file():
                return f"FlashAttention-3 is left out: the folder that QWEN_PEERS names holds no {FLASH_LIBRARY}."
            torch.ops.load_library(str(path))
        elif importlib.util.find_spec("vllm") is None:
            return "FlashAttention-3 is left out: vllm is not installed, and QWEN_PEERS names no folder with it."
        else:
            importlib.import_module("vllm.vllm_flash_attn._vllm_fa3_C")
    except Exception as error:  # as above
        said = str(error).strip().partition("\n")[0].replace(folder or "\n", "QWEN_PEERS")
        return f"FlashAttention-3 is left out: it does not load. {type(error).__name__}: {said}"
    return torch.ops._vllm_fa3_C
