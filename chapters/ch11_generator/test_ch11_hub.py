"""Where models come from: directories, the cache, a hub that works, breaks off, is silent, or is not there."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, file_download

from chapters.ch11_generator.fake_hub import COMMIT, FakeHub
from qwen3_ref import hub as hub_module
from qwen3_ref.config import ConfigError
from qwen3_ref.hub import DEFAULT_REPO, TINY_DIR, HubError, resolve_model

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no hub, and no pauses between the attempts of a download."""
    directory = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    _set_endpoint(monkeypatch, "http://127.0.0.1:9")
    return directory


def _set_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def repo(hub: FakeHub, endless_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model on a hub that works."""
    hub.repos["some/model"] = {name: (endless_dir / name).read_bytes() for name in FILES}
    hub.repos["some/model"] |= {"README.md": b"no", "pytorch_model.bin": b"no", "onnx/model.safetensors": b"no"}
    _set_endpoint(monkeypatch, hub.url)
    return "some/model"


def _files(directory: Path) -> list[str]:
    """Every file under `directory` that is neither a lock nor bookkeeping of the hub's library."""
    paths = (path for path in directory.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return sorted(path.name for path in paths if path.parent.name not in ("refs", "blobs"))


def test_tiny_and_directories_need_no_hub(endless_dir: Path) -> None:
    assert resolve_model("tiny").dir == TINY_DIR
    source = resolve_model(str(endless_dir))
    assert (source.dir, source.name, source.note) == (endless_dir, str(endless_dir), None)


@pytest.mark.parametrize(
    "name", ["", "/no/such/model", "./here/nothing", "~nobody-of-that-name/x", "a/b/c", "nul\0byte"]
)
def test_a_name_that_is_no_model_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(HubError, match=r"^[^\n]+\.$"):
        resolve_model(name)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    with pytest.raises(HubError, match="is a file; the model must be a directory"):
        resolve_model(tmp_path / "model")


def test_a_directory_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: Path) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", deny)  # root, who runs many test machines, may read everything
    with pytest.raises(HubError, match="permission denied"):
        resolve_model(tmp_path)


def test_a_download_fetches_what_is_needed_and_the_cache_serves_it_next_time(
    repo: str, hub: FakeHub, endless_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    source = resolve_model(repo, report=said.append)
    assert _files(source.dir) == sorted(FILES)
    assert all((source.dir / name).read_bytes() == (endless_dir / name).read_bytes() for name in FILES)
    assert len(said) == 1
    assert "Downloading some/model" in said[0]

    _set_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert resolve_model(repo, report=said.append) == source
    assert len(said) == 1


def test_a_transfer_that_breaks_once_is_taken_up_where_it_broke(repo: str, hub: FakeHub, endless_dir: Path) -> None:
    hub.break_at["model.safetensors"] = 1, 1000
    source = resolve_model(repo)
    assert hub.gets["model.safetensors"] == 2
    assert (source.dir / "model.safetensors").read_bytes() == (endless_dir / "model.safetensors").read_bytes()


def test_a_download_that_breaks_off_leaves_nothing_half_written_and_can_be_repeated(
    repo: str, hub: FakeHub, cache: Path, endless_dir: Path
) -> None:
    hub.break_at["model.safetensors"] = 50, 1000
    with pytest.raises(HubError, match="the download of some/model broke off"):
        resolve_model(repo)
    assert "model.safetensors" not in _files(cache)
    assert not list(cache.rglob("*.incomplete"))
    assert hub_module._cached(repo) is None  # and so it is not taken for a model

    hub.break_at.clear()
    config_gets = hub.gets["config.json"]
    source = resolve_model(repo)
    assert (source.dir / "model.safetensors").read_bytes() == (endless_dir / "model.safetensors").read_bytes()
    assert hub.gets["config.json"] == config_gets  # finished files are kept


def test_shards_are_all_fetched_and_a_missing_one_makes_the_cache_incomplete(repo: str, hub: FakeHub) -> None:
    files = hub.repos[repo]
    whole = files.pop("model.safetensors")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    files |= dict.fromkeys(shards, whole)
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "%s", "b": "%s"}}' % tuple(
        s.encode() for s in shards
    )
    source = resolve_model(repo)
    assert set(shards) < set(_files(source.dir))
    (source.dir / shards[1]).unlink()
    assert hub_module._cached(repo) is None


def test_a_foreign_architecture_is_refused_before_its_weights_come_in(repo: str, hub: FakeHub) -> None:
    hub.repos[repo]["config.json"] = b'{"model_type": "llama"}'
    with pytest.raises(ConfigError, match=r"some/model: .*model_type is 'llama'"):
        resolve_model(repo)
    assert hub.gets["model.safetensors"] == 0


def test_a_repository_without_safetensors_is_refused(repo: str, hub: FakeHub) -> None:
    del hub.repos[repo]["model.safetensors"]
    with pytest.raises(HubError, match=r"holds no model\.safetensors"):
        resolve_model(repo)


def test_a_disk_that_is_too_small_is_noticed_before_the_download(
    repo: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(HubError, match=r"needs 0\.00 GB in .*, which has 0\.00 GB free; make room"):
        resolve_model(repo)
    assert not hub.gets


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "filled up while"), (errno.EROFS, "cannot be written")],
    ids=["full", "read-only"],
)
def test_a_disk_that_fails_during_the_download_leaves_nothing_behind(
    repo: str, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    fetch = file_download.http_get

    def fail_on_weights(url: str, temp_file: object, **options: object) -> None:
        if url.endswith("model.safetensors"):
            raise OSError(number, os.strerror(number))
        fetch(url, temp_file, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(file_download, "http_get", fail_on_weights)
    with pytest.raises(HubError, match=sentence):
        resolve_model(repo)
    assert "model.safetensors" not in _files(cache)
    assert not list(cache.rglob("*.incomplete"))


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (404, "RepoNotFound", "has no public model some/model"),
        (403, "GatedRepo", "some/model is gated: accept its terms"),
        (401, "", "refuses the access token|has no public model"),
        (503, "", "answered with status 503"),
    ],
)
def test_what_a_hub_refuses_becomes_a_sentence(repo: str, hub: FakeHub, status: int, code: str, sentence: str) -> None:
    hub.refusals[repo] = status, code
    with pytest.raises(HubError, match=sentence):
        resolve_model(repo)


def test_offline_and_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids"):
        resolve_model("some/model")
    assert resolve_model("auto").name == "tiny"


def test_auto_takes_the_real_model_where_it_can(repo: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[DEFAULT_REPO] = hub.repos[repo]
    source = resolve_model("auto")
    assert (source.name, source.note, source.dir.name) == (DEFAULT_REPO, None, COMMIT)
    _set_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert resolve_model("auto") == source


def _no_hub_answers(make: Callable[[socket.socket], object], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        make(listener)
        _set_endpoint(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}")
        start = time.monotonic()
        source = resolve_model("auto", probe_seconds=0.5)
        assert time.monotonic() - start < 10
        assert source.name == "tiny"
        assert source.note is not None
        assert source.note.endswith("The tiny model runs instead.")
        assert "\n" not in source.note


def test_a_closed_port_gives_the_tiny_model_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_hub_answers(lambda listener: None, monkeypatch)


def test_a_server_that_never_answers_gives_the_tiny_model_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_hub_answers(lambda listener: listener.listen(), monkeypatch)


def test_a_server_that_is_no_hub_gives_the_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def portal(listener: socket.socket) -> None:
        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>")

        listener.listen()
        threading.Thread(target=answer, daemon=True).start()

    _no_hub_answers(portal, monkeypatch)


def test_a_name_look_up_that_hangs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(HfApi, "model_info", lambda *arguments, **options: released.wait(20))
    start = time.monotonic()
    assert resolve_model("auto", probe_seconds=0.2).name == "tiny"
    assert time.monotonic() - start < 10
    released.set()
