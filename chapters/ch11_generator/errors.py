"""What can go wrong in a generation, as exceptions of one family. Every message is a sentence for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""What the command returns when Ctrl-C ends it, as shells do."""

# What PyTorch and the C library say when memory on the host runs out; there is no exception class of its own for it.
_HOST_MEMORY_WORDS = ("can't allocate memory", "Cannot allocate memory", "not enough memory")


class GeneratorError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes:
        exit_code: what the command returns for it: 2 for input that must be changed, 1 for everything else.
    """

    exit_code = 1


class ArgumentError(GeneratorError, ValueError):
    """An argument, option or prompt that cannot be used."""

    exit_code = 2


class ModelError(GeneratorError):
    """A model that cannot be found, fetched, read or run."""


class DeviceError(GeneratorError):
    """A device that is not there, or that cannot compute in the dtype asked for."""


class OutOfMemoryError(GeneratorError):
    """The model or its KV cache does not fit into the memory of the device."""


@contextmanager
def translated(doing: str, advice: str) -> Iterator[None]:
    """Turns what PyTorch raises while `doing` (a phrase such as "loading tiny") into this family.

    Args:
        advice: what the user can do when memory runs out.
    """
    try:
        yield
    except GeneratorError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(f"memory ran out while {doing}; {advice}.") from error
    except ValueError as error:  # includes ConfigError, CheckpointError and TokenizerError
        raise ModelError(str(error)) from error
    except NotImplementedError as error:
        raise DeviceError(f"{doing} failed, because the device lacks an operation: {_first_line(error)}.") from error
    except OSError as error:
        raise ModelError(f"{doing} failed: {_first_line(error)}.") from error
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in _HOST_MEMORY_WORDS):
            raise OutOfMemoryError(f"memory ran out while {doing} ({_first_line(error)}); {advice}.") from error
        raise GeneratorError(f"{doing} failed: {_first_line(error)}.") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
