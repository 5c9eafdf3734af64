"""Where a model's files are: the tiny checkpoint, a directory, the local Hugging Face cache, or the hub.

Downloads go through `huggingface_hub`, which writes each file under a temporary name and moves it into the cache only
when it is whole. A download that breaks off leaves the files that were finished, and of the others nothing that a later
run could mistake for a model. `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN` and the proxy
variables mean what they mean to that library.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qwen3_ref.config import ConfigError, Qwen3Config
from qwen3_ref.weights import INDEX_FILE, WEIGHTS_FILE

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

TINY_DIR = Path(__file__).resolve().parent / "tiny"
DEFAULT_REPO = "Qwen/Qwen3-0.6B"
PROBE_SECONDS = 4.0
"""The hub has this long to answer the first request, name look-up and proxies included."""

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_SIDE_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json")
_NEEDED = ("config.json", "tokenizer.json")


class HubError(RuntimeError):
    """A model that cannot be found or fetched. The message says why and what to do."""


class _HubUnreachableError(HubError):
    """No hub answered in time, or what answered is not a hub."""


@dataclass(frozen=True)
class ModelSource:
    """A directory that holds a model.

    Attributes:
        dir: holds config.json, tokenizer.json and the weights.
        name: what to call the model in output: "tiny", a hub id, or the path as it was given.
        note: one sentence if this is not the model that `auto` stands for, else None.
    """

    dir: Path
    name: str
    note: str | None = None


def resolve_model(
    model: str | Path = "auto",
    *,
    report: Callable[[str], None] | None = None,
    progress: bool = True,
    probe_seconds: float = PROBE_SECONDS,
) -> ModelSource:
    """Finds the files of `model`, downloading them if they are on the hub and not in the cache.

    Args:
        model: `auto` (Qwen/Qwen3-0.6B; the tiny model if that is not in the cache and no hub answers), `tiny`, a
            directory, or a hub id `owner/name`. A directory of that name goes before the hub.
        report: is called with one sentence before a download begins.
        progress: shows a bar on a terminal's stderr while weights come in.
        probe_seconds: how long the hub has to answer the first request.
    Raises:
        HubError: there is no such model, or it could not be fetched.
        ConfigError: the hub's model is not one that this package computes; no weights were fetched.
    """
    if isinstance(model, str) and model in ("auto", "tiny"):
        return _auto(report, progress, probe_seconds) if model == "auto" else _tiny()
    name = str(model)
    directory = _directory(name)
    if directory is not None:
        return ModelSource(directory, name)
    return ModelSource(_cached(name) or _download(name, report, progress, probe_seconds), name)


def _tiny(note: str | None = None) -> ModelSource:
    if not (TINY_DIR / "config.json").exists():
        raise HubError(
            f"{TINY_DIR} holds no model; the tiny checkpoint belongs to the repository, so check it out again."
        )
    return ModelSource(TINY_DIR, "tiny", note)


def _auto(report: Callable[[str], None] | None, progress: bool, probe_seconds: float) -> ModelSource:
    directory = _cached(DEFAULT_REPO)
    if directory is not None:
        return ModelSource(directory, DEFAULT_REPO)
    try:
        return ModelSource(_download(DEFAULT_REPO, report, progress, probe_seconds), DEFAULT_REPO)
    except _HubUnreachableError as error:
        return _tiny(f"{error} The tiny model runs instead.")


def _directory(name: str) -> Path | None:
    """The directory that `name` means, or None if `name` is a hub id."""
    if not name:
        raise HubError("the model is an empty string; it must be auto, tiny, a directory, or a hub id owner/name.")
    path = Path(name)
    try:
        path = path.expanduser()
        if path.is_dir():
            next(path.iterdir(), None)  # a directory that cannot be listed fails here and not halfway
            return path
        if path.exists():
            raise HubError(f"{name} is a file; the model must be a directory that holds config.json and the weights.")
    except HubError:
        raise
    except PermissionError:
        raise HubError(f"{name} cannot be read: permission denied.") from None
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, an unknown ~user, a NUL byte
        raise HubError(f"the model {name!r} is no path that can be looked up: {error}.") from None
    if _REPO_ID.fullmatch(name) is None:
        raise HubError(f"{name} does not exist; the model must be auto, tiny, a directory, or a hub id owner/name.")
    return None


def _cached(repo: str) -> Path | None:
    """The snapshot of `main` in the local cache if everything that a model needs is there."""
    from huggingface_hub import try_to_load_from_cache

    def path(name: str) -> Path | None:
        found = try_to_load_from_cache(repo, name)
        return Path(found) if isinstance(found, str) else None

    config = path("config.json")
    if config is None or any(path(name) is None for name in _NEEDED):
        return None
    if path(WEIGHTS_FILE) is None:
        index = path(INDEX_FILE)
        try:
            shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values()) if index else set()
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None
        if not shards or any(path(str(shard)) is None for shard in shards):
            return None
    return config.parent


def _download(repo: str, report: Callable[[str], None] | None, progress: bool, probe_seconds: float) -> Path:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise _HubUnreachableError(
            f"{repo} is not in {constants.HF_HUB_CACHE}, or only in part, and HF_HUB_OFFLINE forbids to fetch it."
        )
    sizes = _wanted_files(repo, _probe(repo, probe_seconds))
    return _fetch(repo, sizes, report, progress)


def _probe(repo: str, seconds: float) -> ModelInfo:
    """Asks the hub what `repo` holds. Answers, or raises, within `seconds`."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    outcome: list[ModelInfo | Exception] = []

    def ask() -> None:
        try:
            outcome.append(HfApi().model_info(repo, revision="main", files_metadata=True, timeout=seconds))
        except Exception as error:
            outcome.append(error)

    # A thread, because no timeout of the HTTP client covers a name look-up or a server that trickles.
    thread = threading.Thread(target=ask, daemon=True, name="hub-probe")
    thread.start()
    thread.join(seconds)
    hub = constants.ENDPOINT
    if not outcome:
        raise _HubUnreachableError(
            f"{repo} is not in the local cache, and {hub} did not answer within {seconds:.0f} s."
        )
    answer = outcome[0]
    if not isinstance(answer, Exception):
        return answer
    if isinstance(answer, GatedRepoError):
        raise HubError(f"{repo} is gated: accept its terms on {hub}/{repo} and set HF_TOKEN, or choose another model.")
    if isinstance(answer, RepositoryNotFoundError | RevisionNotFoundError):
        raise HubError(f"{hub} has no public model {repo}; check the spelling, or set HF_TOKEN if it is private.")
    if isinstance(answer, HfHubHTTPError):
        status = answer.response.status_code
        if status == 401:
            raise HubError(f"{hub} refuses the access token (status 401); mend or unset HF_TOKEN.")
        raise _HubUnreachableError(f"{repo} is not in the local cache, and {hub} answered with status {status}.")
    raise _HubUnreachableError(f"{repo} is not in the local cache, and no hub answers at {hub} ({_reason(answer)}).")


def _wanted_files(repo: str, info: ModelInfo) -> dict[str, int]:
    """The files to fetch, weights last, with their sizes in bytes."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    missing = [name for name in _NEEDED if name not in sizes]
    weights = [WEIGHTS_FILE]
    if WEIGHTS_FILE not in sizes:
        weights = [INDEX_FILE, *sorted(name for name in sizes if _SHARD.fullmatch(name))]
        if INDEX_FILE not in sizes or len(weights) == 1:
            missing.append(WEIGHTS_FILE)
    if missing:
        raise HubError(
            f"{repo} holds no {' and no '.join(missing)}; choose a model in safetensors format with a tokenizer."
        )
    side = [name for name in _SIDE_FILES if name in sizes]
    return {name: sizes[name] for name in ("config.json", *side, *weights)}


def _fetch(repo: str, sizes: dict[str, int], report: Callable[[str], None] | None, progress: bool) -> Path:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, logging

    logging.set_verbosity_error()  # its warnings would stand between our sentences
    cache = Path(constants.HF_HUB_CACHE)
    absent = {name: size for name, size in sizes.items() if not isinstance(try_to_load_from_cache(repo, name), str)}
    needed, free = sum(absent.values()), _free_bytes(cache)
    if free is not None and free < needed:
        raise HubError(
            f"{repo} needs {_gb(needed)} in {cache}, which has {_gb(free)} free; "
            "make room, or set HF_HOME to another disk."
        )
    if report is not None:
        report(f"Downloading {repo} ({_gb(needed)}) from {constants.ENDPOINT} to {cache}.")
    snapshot = cache
    try:
        # One after the other and in this thread, so that Ctrl-C stops the download at once.
        for name in sizes:
            (enable_progress_bars if progress and name.endswith(".safetensors") else disable_progress_bars)()
            before, snapshot = snapshot, Path(hf_hub_download(repo, name, revision="main")).parent
            if name == "config.json":
                Qwen3Config.from_pretrained(snapshot)  # refuse a foreign architecture before gigabytes come in
            elif snapshot != before:  # each commit has its own directory
                raise HubError(f"{repo} was changed on the hub while it came in; run again.")
    except HubError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{repo}: {error}") from None
    except Exception as error:
        raise HubError(_broken_off(repo, cache, error)) from error
    return snapshot


def _broken_off(repo: str, cache: Path, error: Exception) -> str:
    causes = _causes(error)
    numbers = {getattr(cause, "errno", None) for cause in causes}
    # The Rust downloader of the hub's library reports a full disk in words only.
    if numbers & {errno.ENOSPC, errno.EDQUOT} or any("No space left on device" in str(cause) for cause in causes):
        return f"the disk of {cache} filled up while {repo} came in; make room, or set HF_HOME to another disk."
    if numbers & {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{cache} cannot be written ({_reason(error)}); set HF_HOME to a directory of yours."
    return (
        f"the download of {repo} broke off ({_reason(error)}). Nothing half-written is kept; "
        "run again to fetch what is missing, or choose the model tiny."
    )


def _free_bytes(path: Path) -> int | None:
    """Free bytes of the disk on which `path` lies or would be made."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and what led to it, the innermost last."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return seen


def _reason(error: BaseException) -> str:
    """The innermost cause, on one line: wrappers of wrappers hide what happened."""
    innermost = _causes(error)[-1]
    text = " ".join(str(innermost).split()) or type(innermost).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
