"""Where builds lie, how a process keeps the others out while it writes there, and what is thrown away."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from qwen_cuda.building.library import ROOT, BuildError

UNFINISHED = ".unfinished-kernels-"  # begins the name of the folder of a build that still runs
KEPT_DAYS = 30  # a build that nobody used for so long is removed
# What a build leaves, below the folder of its kind. The user may have named a folder that holds other things too.
_OURS = re.compile(r"(.*-)?[0-9a-f]{16}(\.o)?")
KINDS = ("bindings", "cuda", "objects", "sim")
_DAY_S = 86400


def folders() -> list[Path]:
    """The folders in which a finished build may lie, best first.

    With QWEN_BUILD_DIR only that one; otherwise build/kernels of the checkout, the user's cache, a temporary folder.
    """
    named = os.environ.get("QWEN_BUILD_DIR")
    if named:
        return [Path(named).absolute()]
    places = [ROOT / "build" / "kernels"]
    caches = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # a user without a home
        base = Path(caches) if caches else Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        places.append(base / "qwen3-math-to-cuda" / "kernels")
    temporary = Path(tempfile.gettempdir()) / f"qwen3-math-to-cuda-{os.getuid()}"
    return [*places, temporary] if _is_private(temporary) else places


def _is_private(folder: Path) -> bool:
    """Whether nobody else can put a library there for us to load; true of a folder yet to be made."""
    try:
        state = folder.lstat()
    except OSError:
        return True
    return state.st_uid == os.getuid() and not state.st_mode & 0o022


def writable_folder() -> Path:
    """The first of `folders()` that can be written; it is made if need be.

    Raises:
        BuildError: none can.
    """
    places = folders()
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):  # asks the disk itself: root may write anywhere, except there
                return place
    raise BuildError(
        f"Kernels cannot be built: nothing can be written in {', '.join(map(str, places))}; set QWEN_BUILD_DIR to a "
        "folder of yours that has room."
    )


@contextlib.contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Holds the lock of `folder`; waits, and says so, while another process holds it. Yields whether there is a lock.

    The system frees it at our death. Some network file systems have no locks: then nobody waits, and since builds are
    moved into place whole, the worst is work done twice.
    """
    import fcntl

    with (folder / "lock").open("w") as file:
        locked = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process builds kernels in {folder}; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            locked = False
        yield locked


def mark_used(place: Path) -> None:
    """Keeps `place` from being swept, in a folder that can be written."""
    with contextlib.suppress(OSError):
        if place.stat().st_mtime < time.time() - _DAY_S:
            os.utime(place)


def sweep(folder: Path) -> None:
    """Removes what killed builds left, and what was not used for long. Only the holder of the lock may."""
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    oldest = time.time() - KEPT_DAYS * _DAY_S
    for place in (place for kind in KINDS for place in (folder / kind).glob("*")):
        with contextlib.suppress(OSError):
            if _OURS.fullmatch(place.name) and place.stat().st_mtime < oldest:
                shutil.rmtree(place) if place.is_dir() else place.unlink()


def move(made: Path, place: Path) -> None:
    """Puts `made` into its place in one step, unless another process was faster."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(place)
    except OSError:
        if not place.exists():
            raise
