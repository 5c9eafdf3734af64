"""Which device a model runs on, and in which dtype."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING

from chapters.ch11_generator.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
_SMALL_MODEL_BYTES = 64 << 20
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def check_device(name: str, argument: str = "device") -> str:
    """`name` itself if it is spelled like a device. `argument` is what an error calls it.

    Raises:
        ArgumentError: it is not.
    """
    if _DEVICE.fullmatch(name) is None:
        raise ArgumentError(f"{argument} is {name!r}; it must be auto, cpu, cuda, or cuda:N with the number of a GPU.")
    return name


def check_dtype(name: str, argument: str = "dtype") -> str:
    """`name` itself if it is a dtype that models run in. `argument` is what an error calls it.

    Raises:
        ArgumentError: it is not.
    """
    if name not in ("auto", *DTYPES):
        raise ArgumentError(f"{argument} is {name!r}; it must be auto, {', '.join(DTYPES[:-1])} or {DTYPES[-1]}.")
    return name


def choose_device(name: str) -> torch.device:
    """The device for `name`; `auto` is the first GPU if it computes, else the CPU.

    Raises:
        ArgumentError: the name is no device.
        DeviceError: a GPU was asked for by name and cannot be used.
    """
    import torch

    check_device(name)
    if name == "cpu":
        return torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about old drivers; the error below says what matters
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        device = torch.device("cuda", 0 if name == "auto" else torch.device(name).index or 0)
        problem = _problem(device, count)
    if problem is None:
        return device
    if name == "auto":
        return torch.device("cpu")
    raise DeviceError(f"device is {name!r}, but {problem}; use another device, for example cpu.")


def _problem(device: torch.device, count: int) -> str | None:
    import torch

    if count == 0:
        built = (
            f"PyTorch {torch.__version__} sees no usable NVIDIA GPU"
            if torch.version.cuda
            else "this PyTorch has no CUDA"
        )
        return f"{built} (make doctor says why)"
    if device.index >= count:
        return (
            f"there {'is only 1 GPU, cuda:0' if count == 1 else f'are only {count} GPUs, cuda:0 to cuda:{count - 1}'}"
        )
    try:
        (torch.zeros(1, device=device) + 1).item()
    except RuntimeError as error:  # a GPU too old for this PyTorch, or held exclusively by another process
        return f"a first computation on it failed ({str(error).strip().splitlines()[0]})"
    return None


def limit_threads(weight_bytes: int) -> None:
    """Gives a small model one CPU thread, unless OMP_NUM_THREADS says how many.

    A matrix of the tiny model takes microseconds: a second thread gains nothing on an idle machine (171 against 177
    tok/s were measured) and on a busy one each of some hundred barriers per token waits for it (171 against 10).
    """
    import torch

    if weight_bytes < _SMALL_MODEL_BYTES and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype for `name` on `device`.

    `auto` is bfloat16, the dtype of Qwen3's checkpoints, except on GPUs before Ampere, which lack it and take float16.
    On a CPU too: decoding reads every weight once per token, and bfloat16 is half the bytes (1.2 GB against 2.4 GB for
    Qwen3-0.6B). With two threads, random 0.6B weights decode at 17 to 19 tok/s in bfloat16 and 5 tok/s in float32.
    Only a prefill on a CPU without bfloat16 instructions is slower than in float32.

    Raises:
        ArgumentError: the name is no dtype.
        DeviceError: the device does not compute in it.
    """
    import torch

    check_dtype(name)
    has_bf16 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)
    if name == "auto":
        return torch.bfloat16 if has_bf16 else torch.float16
    if name == "bfloat16" and not has_bf16:
        gpu = torch.cuda.get_device_name(device)
        raise DeviceError(f"dtype is 'bfloat16', but {gpu} has no bfloat16; use float16 or float32.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
