"""Chapter 11: all stages together, as a command (`make generate`, `qwen-generate`) and as a Python class.

from chapters.ch11_generator import Generator

generator = Generator("tiny")
print(generator.generate("Once upon a time").text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chapters.ch11_generator.errors import ArgumentError, DeviceError, GeneratorError, ModelError, OutOfMemoryError

if TYPE_CHECKING:
    from chapters.ch11_generator.generator import Generator, Stream
    from chapters.ch11_generator.results import Figures, Result
    from qwen3_ref.sampling import SamplingParams

__all__ = [
    "ArgumentError",
    "DeviceError",
    "Figures",
    "Generator",
    "GeneratorError",
    "ModelError",
    "OutOfMemoryError",
    "Result",
    "SamplingParams",
    "Stream",
]


def __getattr__(name: str) -> Any:
    # PyTorch takes more than a second to import; `qwen-generate --help` and a mistyped option answer without it.
    if name == "SamplingParams":
        from qwen3_ref.sampling import SamplingParams

        return SamplingParams
    if name in __all__:
        from chapters.ch11_generator import generator

        return getattr(generator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
