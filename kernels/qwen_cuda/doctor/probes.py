"""Questions to the machine. Each returns a value or None and never raises: a missing thing is an answer."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCH_QUESTION = """
import json, torch
cuda = torch.cuda.is_available()
devices = [[torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i)]
           for i in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": devices}))
"""

CXX20 = """
#include <concepts>
#include <optional>
#include <string>
template <std::integral T> T twice(T x) { return 2 * x; }
extern "C" int answer() { std::optional<std::string> s = "x"; return twice(static_cast<int>(s->size())); }
"""

CXX20_FLAGS = ("-std=c++20", "-shared", "-fPIC")

KERNEL = "__global__ void nothing() {}\nint main() { nothing<<<1, 1>>>(); }\n"


@dataclass(frozen=True)
class Torch:
    """PyTorch as a fresh interpreter sees it; `error` is the last line of a failed import."""

    version: str = ""
    cuda: str | None = None
    devices: tuple[tuple[str, int, int], ...] = ()  # name, compute capability (major, minor)
    error: str | None = None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver as nvidia-smi sees it; `error` is what it said in place of a list."""

    version: str = ""
    gpus: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Compiler:
    """A compiler, and the error of a small trial (None when it compiled)."""

    path: str
    version: str
    error: str | None = None


def run(command: Sequence[str], timeout: float = 60) -> subprocess.CompletedProcess[str] | None:
    """The finished process with its output as text, or None when it cannot start or does not end in time."""
    try:
        return subprocess.run(list(command), capture_output=True, text=True, errors="replace", timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def missing_modules(names: Sequence[str]) -> list[str]:
    """Those of `names` that this interpreter cannot import; nothing is imported."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def torch_state(python: str = sys.executable) -> Torch | None:
    """None when torch is not installed. Asked in a process of its own: a broken build may crash it."""
    answer = run([python, "-c", TORCH_QUESTION], timeout=180)
    if answer is None:
        return Torch(error="the import did not end within three minutes")
    if answer.returncode != 0:
        if "No module named 'torch'" in answer.stderr:
            return None
        return Torch(error=last_line(answer.stderr))
    found = json.loads(last_line(answer.stdout))
    return Torch(found["version"], found["cuda"], tuple((name, a, b) for name, a, b in found["devices"]))


def nvidia_driver() -> Driver | None:
    """None when there is no nvidia-smi, or one that finds no card: no NVIDIA GPU here."""
    tool = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    answer = run([tool, "--query-gpu=driver_version,name", "--format=csv,noheader"])
    if answer is None or "No devices were found" in answer.stdout + answer.stderr:
        return None
    rows = [line.split(", ", 1) for line in answer.stdout.splitlines() if ", " in line]
    if answer.returncode != 0 or not rows:
        return Driver(error=last_line(answer.stdout + answer.stderr))
    return Driver(rows[0][0], tuple(name for _, name in rows))


def compiles(command: Sequence[str], source: str, suffix: str) -> str | None:
    """None when the command compiles the source, otherwise the last line of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"trial{suffix}"
        file.write_text(source)
        answer = run([*command, str(file), "-o", str(file.with_suffix(".out"))], timeout=120)
    if answer is None:
        return "it did not end within two minutes"
    return None if answer.returncode == 0 else last_line(answer.stderr)


def host_compiler(env: Mapping[str, str] = os.environ) -> Compiler | None:
    """The C++ compiler of the builds ($CXX, else c++, g++ or clang++), tried on a shared library in C++20."""
    for name in filter(None, (env.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path:
            version = run([path, "--version"])
            said = version.stdout.splitlines()[0] if version and version.stdout else name
            return Compiler(path, said, compiles([path, *CXX20_FLAGS], CXX20, ".cpp"))
    return None


def nvcc(trial: bool, env: Mapping[str, str] = os.environ) -> Compiler | None:
    """nvcc from CUDA_HOME, CUDA_PATH, the PATH or /usr/local/cuda, version as "13.0"; `trial` compiles a kernel."""
    homes = [Path(env[key]) / "bin" / "nvcc" for key in ("CUDA_HOME", "CUDA_PATH") if env.get(key)]
    for place in (*homes, shutil.which("nvcc"), Path("/usr/local/cuda/bin/nvcc")):
        answer = run([str(place), "--version"]) if place and Path(place).exists() else None
        release = re.search(r"release (\d+\.\d+)", answer.stdout) if answer else None
        if release:
            command = [str(place), "-std=c++17"]
            error = compiles(command, KERNEL, ".cu") if trial else None
            return Compiler(str(place), release[1], error)
    return None


def nvcc_architectures(path: str) -> tuple[int, ...]:
    """What that nvcc can compile for, such as (75, 80, 90)."""
    answer = run([path, "--list-gpu-arch"])
    return tuple(int(number) for number in re.findall(r"compute_(\d+)", answer.stdout)) if answer else ()


def ninja() -> str | None:
    """The version of ninja on the PATH or beside this interpreter."""
    beside = Path(sys.executable).with_name("ninja")
    answer = run([shutil.which("ninja") or str(beside), "--version"])
    return answer.stdout.strip() if answer and answer.returncode == 0 else None


def free_bytes(place: Path) -> int:
    """Free space on the disk of `place`, or of its nearest parent that exists."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def hub_answers(endpoint: str, seconds: float = 3.0) -> bool:
    """Whether anything at `endpoint` answers in time. The thread bounds the look-up of the name as well."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=seconds):
                answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)
        except (OSError, ValueError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    return bool(answers and answers[0])


def hub_cache(env: Mapping[str, str] = os.environ) -> Path:
    """The folder in which huggingface_hub keeps models."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"])
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]) / "hub"
    base = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    return base / "huggingface" / "hub"


def cached_model(cache: Path, model: str) -> Path | None:
    """The newest complete snapshot of `model` in the cache: configuration, tokenizer and weights are there."""
    snapshots = sorted((cache / ("models--" + model.replace("/", "--")) / "snapshots").glob("*"), reverse=True)
    for snapshot in snapshots:
        wanted = [snapshot / "config.json", snapshot / "tokenizer.json"]
        if all(file.exists() for file in wanted) and any(snapshot.glob("*.safetensors")):
            return snapshot
    return None


def chromium() -> str | None:
    """A browser for the tests of the site."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    apps = ("Google Chrome", "Chromium")
    places = [shutil.which(name) for name in names]
    places += [path for app in apps if Path(path := f"/Applications/{app}.app/Contents/MacOS/{app}").exists()]
    return next(filter(None, places), None)
