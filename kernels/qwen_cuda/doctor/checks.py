"""Judgements, one function per row of the report. They touch nothing: what they need is handed to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qwen_cuda.building.toolchain import best_architecture
from qwen_cuda.doctor.finding import Finding, Job, note, ok, problem
from qwen_cuda.doctor.probes import Compiler, Driver, Torch

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 7)
OLDEST_CAPABILITY = (7, 5)
MODEL = "Qwen/Qwen3-0.6B"
MODEL_BYTES = 1_600_000_000  # weights, tokenizer and configuration
ROOM_BYTES = 1_000_000_000  # builds, the site and the caches of the tests
EVERYTHING: tuple[Job, ...] = ("generate", "test", "gpu")
INSTALL = "Run `make setup`, or install them into the PYTHON you gave."
REMAKE = "run `rm -r .venv && make setup`"


def release(version: str) -> tuple[int, int]:
    """Major and minor of a version such as "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_python(version: tuple[int, int, int], system: str) -> Finding:
    """Every command needs Python 3.11."""
    said = f"{'.'.join(map(str, version))} on {system}"
    if version[:2] < OLDEST_PYTHON:
        return problem("Python", said, "Install Python 3.11 or newer; make finds it by itself.", *EVERYTHING)
    return ok("Python", said)


def check_packages(missing_base: Sequence[str], missing_test: Sequence[str]) -> Finding:
    """`generate` needs the dependencies of the project, `test` its test extra as well."""
    said = "missing: " + ", ".join([*missing_base, *missing_test])
    if missing_base:
        return problem("packages", said, INSTALL, "generate", "test")
    if missing_test:
        return problem("packages", said, INSTALL, "test")
    return ok("packages", "all there")


def check_torch(torch: Torch | None) -> Finding:
    """PyTorch is there, loads, and is new enough."""
    if torch is None:
        return problem("PyTorch", "not installed", "Run `make setup`.", *EVERYTHING)
    if torch.error:
        return problem("PyTorch", f"does not load: {torch.error}", f"To reinstall, {REMAKE}.", *EVERYTHING)
    said = f"{torch.version}, " + (f"built for CUDA {torch.cuda}" if torch.cuda else "built without CUDA")
    if release(torch.version) < OLDEST_TORCH:
        mend = f"PyTorch {'.'.join(map(str, OLDEST_TORCH))} or newer is needed: {REMAKE}."
        return problem("PyTorch", said, mend, *EVERYTHING)
    return ok("PyTorch", said)


def check_gpu(driver: Driver | None, torch: Torch | None) -> Finding:
    """No GPU is no problem; one that the driver, PyTorch or the kernels cannot use is."""
    devices = torch.devices if torch else ()
    if devices:
        said = "; ".join(f"{name} (sm_{major}{minor})" for name, major, minor in devices)
        if driver and driver.version:
            said += f", driver {driver.version}"
        if all((major, minor) < OLDEST_CAPABILITY for _, major, minor in devices):
            mend = "The kernels need compute capability 7.5 (Turing) or newer; use the CPU with ARGS='--device cpu'."
            return problem("GPU", said, mend, "gpu")
        return ok("GPU", said)
    if driver is None:
        return ok("GPU", "none; everything runs on the CPU")
    if driver.error:
        mend = "Mend NVIDIA's driver until `nvidia-smi` lists the card (a reboot after an update often does)."
        return problem("GPU", f"the driver does not answer: {driver.error}", mend, "gpu")
    said = f"{'; '.join(driver.gpus)}, driver {driver.version}"
    if torch is None or torch.error:
        return problem("GPU", f"{said}; no PyTorch to use it", "Mend PyTorch first (see above).", "gpu")
    if not torch.cuda:
        return problem("GPU", f"{said}; this PyTorch was built without CUDA", f"For the CUDA build, {REMAKE}.", "gpu")
    mend = f"Update the driver to one for CUDA {torch.cuda}, and look at CUDA_VISIBLE_DEVICES."
    return problem("GPU", f"{said}; PyTorch for CUDA {torch.cuda} cannot open it", mend, "gpu")


def check_nvcc(nvcc: Compiler | None, torch: Torch | None, has_gpu: bool) -> Finding:
    """Builds for the GPU need an nvcc of the same CUDA major version as PyTorch's."""
    if not has_gpu:
        return ok("nvcc", f"{nvcc.version} ({nvcc.path})" if nvcc else "not needed without a GPU")
    wanted = torch.cuda if torch and torch.cuda else None
    if nvcc is None:
        which = f" {wanted}" if wanted else ""
        mend = f"Install the CUDA toolkit{which} (its nvcc), or set CUDA_HOME to where it is."
        return problem("nvcc", "not found", mend, "gpu")
    said = f"{nvcc.version} ({nvcc.path})"
    if wanted and release(nvcc.version)[0] != release(wanted)[0]:
        mend = f"Install the CUDA toolkit {wanted} and set CUDA_HOME to it: PyTorch was built for CUDA {wanted}."
        return problem("nvcc", said, mend, "gpu")
    if nvcc.error:
        mend = "Install a host compiler that this nvcc accepts, and name it in NVCC_CCBIN."
        return problem("nvcc", f"{said} does not compile a kernel: {nvcc.error}", mend, "gpu")
    return ok("nvcc", said + (f", matches PyTorch's CUDA {wanted}" if wanted else ""))


def check_architectures(known: Sequence[int], torch: Torch | None) -> Finding:
    """nvcc can compile for each GPU that the kernels support; those below 7.5 are `check_gpu`'s."""
    devices = [device for device in (torch.devices if torch else ()) if device[1:] >= OLDEST_CAPABILITY]
    if not devices or not known:
        return ok("GPU code", "nothing to compile for, or nothing to compile with")
    targets = []
    for name, major, minor in devices:
        best = best_architecture(10 * major + minor, known)
        if best is None:
            said = f"nvcc cannot compile for {name} (sm_{major}{minor}); the newest that it knows is sm_{max(known)}"
            return problem("GPU code", said, "Install a newer CUDA toolkit and set CUDA_HOME to it.", "gpu")
        targets.append(best)
    return ok("GPU code", "nvcc compiles for " + ", ".join(f"sm_{arch}" for arch in sorted(set(targets))))


def check_compiler(compiler: Compiler | None) -> Finding:
    """The operators and the simulator build with a C++20 compiler, and so do kernels for a GPU."""
    mend = "Install one: `sudo apt install g++` on Debian, Ubuntu or WSL2, `xcode-select --install` on macOS."
    if compiler is not None and compiler.error is None:
        return ok("C++ compiler", f"{compiler.version}, C++20 works")
    said = "not found" if compiler is None else f"{compiler.version} does not compile C++20: {compiler.error}"
    return problem("C++ compiler", said, mend, "test", "gpu")


def check_ninja(version: str | None) -> Finding:
    """ninja runs the compilers."""
    if version:
        return ok("ninja", version)
    mend = "Install it: `sudo apt install ninja-build`, `brew install ninja` or `pip install ninja`."
    return problem("ninja", "not found", mend, "test", "gpu")


def check_disk(free: int, place: Path) -> Finding:
    """The checkout's disk has room for what the tests and builds write."""
    said = f"{free / 1e9:.1f} GB free at {place}"
    if free < ROOM_BYTES:
        return problem("disk", said, f"Free at least {ROOM_BYTES / 1e9:.0f} GB there.", "test", "gpu")
    return ok("disk", said)


def check_model(snapshot: Path | None, hub: bool, free: int, cache: Path) -> Finding:
    """Which model `make generate` would take: the real one from the cache or the hub, or the tiny one."""
    if snapshot is not None:
        return ok("model", f"{MODEL} is in {cache}")
    if not hub:
        mend = f"`make generate` runs the tiny model; with the hub reachable once, it fetches {MODEL}."
        return note("model", f"{MODEL} is neither in {cache} nor to be had from the hub", mend)
    if free < MODEL_BYTES:
        mend = (
            f"Free {MODEL_BYTES / 1e9:.1f} GB, or set HF_HOME to a larger disk; `make generate MODEL=tiny` needs none."
        )
        return problem("model", f"{MODEL} does not fit: {free / 1e9:.1f} GB free at {cache}", mend, "generate")
    return ok("model", f"{MODEL} comes from the hub at the first run ({MODEL_BYTES / 1e9:.1f} GB)")


def check_hub(answers: bool | None, endpoint: str, seconds: float) -> Finding:
    """The model hub, which nothing but the download of a model needs. None: it was not asked, by HF_HUB_OFFLINE."""
    if answers is None:
        return ok("model hub", "not asked: HF_HUB_OFFLINE is set")
    if answers:
        return ok("model hub", f"{endpoint} answers")
    mend = (
        "Offline by intent? Nothing to do. Otherwise look at the network and the proxy, or set HF_ENDPOINT to a mirror."
    )
    return note("model hub", f"{endpoint} did not answer within {seconds:.0f} s", mend)


def check_tiny(folder: Path) -> Finding:
    """The checkpoint in the repository is whole: the weights file is as long as its own header says."""
    mend = "Fetch it again: `git checkout -- qwen3_ref/tiny`."
    try:
        for name in ("config.json", "tokenizer.json"):
            json.loads((folder / name).read_text(encoding="utf-8"))
        weights = folder / "model.safetensors"
        with weights.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes) if header_bytes < 10_000_000 else b"")
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected, size = 8 + header_bytes + max(ends), weights.stat().st_size
    except OSError as error:
        return problem("tiny model", f"{error.strerror}: {error.filename}", mend, "generate", "test")
    except (ValueError, KeyError, TypeError, AttributeError):
        return problem("tiny model", f"{folder} holds a damaged file", mend, "generate", "test")
    if size != expected:
        said = f"{weights} has {size} bytes, its header says {expected}"
        return problem("tiny model", said, mend, "generate", "test")
    return ok("tiny model", f"{len(ends)} tensors, {size / 1e6:.1f} MB")


def check_chromium(path: str | None, has_playwright: bool) -> Finding:
    """The tests of the site: without Playwright they skip, with Playwright but no browser they fail."""
    if path:
        return ok("Chromium", path)
    mend = "To test the site: `sudo apt install chromium`, or install Google Chrome."
    if has_playwright:
        return problem("Chromium", "not found; the tests of the site fail without it", mend, "test")
    return note("Chromium", "not found; the tests of the site are skipped", mend)
