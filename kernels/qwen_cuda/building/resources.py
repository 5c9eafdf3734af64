"""What each kernel takes of a GPU: registers, shared memory, stack and spills, as the assembler counts them.

    python -m qwen_cuda.building.resources           compile every .cu file, and fail if docs/ says something else
    python -m qwen_cuda.building.resources --write   write the table and the page that shows it, below docs/

No GPU is needed. Each file is compiled for each of ARCHS, warnings being errors; what was compiled once is remembered.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qwen_cuda.building import ninja_run, store, toolchain
from qwen_cuda.building.library import ROOT, BuildError
from qwen_cuda.building.ptxas import Usage, usages
from qwen_cuda.building.recipes import CUDA_HEADERS, NVCC_FLAGS, nvcc_host
from qwen_cuda.building.sources import Reader, gather

ARCHS = (75, 80, 86, 90, 120)
TABLE = ROOT / "docs" / "results" / "compiler" / "resources.json"
PAGE = ROOT / "docs" / "kernel_resources.md"

_PASSAGE = re.compile(r"(?P<head><!-- resources -->\n).*?(?P<tail><!-- end of resources -->)", re.DOTALL)

# Kernel → architecture → what it takes there.
Usages = dict[str, dict[str, Usage]]


def sources(root: Path = ROOT) -> list[Path]:
    """The kernels and the steps that lead to them. Exercises have holes and are left out."""
    patterns = ("kernels/cuda/*.cu", "kernels/qwen_cuda/**/*.cu", "chapters/*/steps/*.cu")
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def text_key(file: Path, flags: Sequence[str] = NVCC_FLAGS) -> str:
    """A digest of `flags`, and of `file` with the project's headers that it includes."""
    contents = gather(file, (CUDA_HEADERS,), Reader()).values()
    return hashlib.sha256("\0".join(flags).encode() + b"\0".join(contents)).hexdigest()[:16]


def compile_all(files: Sequence[Path], archs: Sequence[int] = ARCHS) -> dict[Path, Usages]:
    """Compiles `files` for `archs` and returns what their kernels take.

    Raises:
        BuildError: nvcc is missing, or has an error or a warning to report.
    """
    compiler, host = toolchain.nvcc(), toolchain.cxx()
    flags = (*NVCC_FLAGS, *nvcc_host(host), "-Werror=all-warnings", "-Xcompiler=-Werror", f"-I{CUDA_HEADERS}")
    folder = store.writable_folder() / "compiled"  # with a lock of its own: this takes longer than most builds
    folder.mkdir(exist_ok=True)
    places: dict[Path, dict[int, Path]] = {}
    for file in files:
        key = text_key(file, (*flags, nvcc_release(), host.version))
        places[file] = {arch: folder / f"{file.stem}-sm_{arch}-{key}" for arch in archs}
    with store.alone(folder, lambda text: print(text, file=sys.stderr)):
        missing = {place: (file, arch) for file, each in places.items() for arch, place in each.items()}
        missing = {place: work for place, work in missing.items() if not place.exists()}
        if missing:
            edges = [_edge(compiler, flags, *work, place, archs[-1]) for place, work in missing.items()]
            count = len({file for file, _ in missing.values()})
            title = f"compiling {count} kernel {'file' if count == 1 else 'files'} for {len(archs)} architectures"
            with tempfile.TemporaryDirectory(prefix=store.UNFINISHED) as name:
                ninja_run.run(toolchain.ninja().words, edges, Path(name), title)
    result: dict[Path, Usages] = {file: {} for file in files}
    for file in files:
        for arch, place in places[file].items():
            for kernel, usage in usages(place.read_text(encoding="utf-8")).items():
                result[file].setdefault(kernel, {})[str(arch)] = usage
    return result


def _edge(
    compiler: toolchain.Tool, flags: Sequence[str], file: Path, arch: int, place: Path, whole: int
) -> ninja_run.Edge:
    """Compiles for one architecture; the assembler's messages go to `place`, or to ninja when it fails.

    Only that for the architecture `whole` compiles the code of the host too, which is the same for all.
    """
    name, what = place.name, "-c" if arch == whole else "-cubin"
    command = [*compiler.words, *flags, *toolchain.gencode([arch]), "-Xptxas=-v", what, str(file), "-o", f"{name}.o"]
    script = 'place=$1; shift; if "$@" > "$0" 2>&1; then mv "$0" "$place"; else cat "$0"; exit 1; fi'
    shell = ["sh", "-c", script, f"{name}.txt", str(place)]
    return ninja_run.Edge(f"{name}.o", [*shell, *command], f"compiling {file.name} for sm_{arch}")


def nvcc_release() -> str:
    """The whole version of nvcc, such as "13.0.88"; register counts may change with each."""
    said = toolchain.ask(toolchain.nvcc().words, "--version") or ""
    release = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return release[1] if release else toolchain.nvcc().version


def as_json(table: dict[Path, Usages], root: Path = ROOT) -> str:
    """The text of TABLE: one line for each kernel, so that a change shows as one, and what was compiled, by its key."""
    blocks, keys = [], {file.relative_to(root).as_posix(): text_key(file) for file in table}
    for file, kernels in table.items():
        rows = []
        for name, usage in sorted(kernels.items()):
            numbers = {arch: list(one.values()) for arch, one in usage.items()}
            rows.append(f"   {json.dumps(name)}: {json.dumps(numbers)}")
        blocks.append(f"  {json.dumps(file.relative_to(root).as_posix())}: {{\n" + ",\n".join(rows) + "\n  }")
    names = json.dumps(list(Usage.__annotations__))
    head = f'{{\n "schema": 1,\n "nvcc": "{nvcc_release()}",\n "numbers": {names},\n'
    head += f' "archs": {json.dumps(ARCHS)},\n "compiled": {json.dumps(keys, indent=2)},\n "files": {{\n'
    return head + ",\n".join(blocks) + "\n }\n}\n"


def page(text: str, table: dict[str, Any]) -> str:
    """The page `text` with the figures of `table`, the content of TABLE, in their passage."""
    parts = [f"Compiled by nvcc {table['nvcc']}."]
    for file, listed in table["files"].items():
        kernels = {
            name: {arch: dict(zip(table["numbers"], numbers, strict=True)) for arch, numbers in usage.items()}
            for name, usage in listed.items()
        }
        archs = sorted({arch for usage in kernels.values() for arch in usage}, key=int)
        parts += [f"## {Path(file).stem} {{#{file.replace('/', '-').removesuffix('.cu')}}}", f"[`{file}`](../{file})"]
        rows = [["kernel", *(f"sm_{arch}" for arch in archs), "shared memory"], ["---", *["--:"] * (len(archs) + 1)]]
        notes = []
        for name, usage in kernels.items():
            registers = [str(usage[arch]["registers"]) if arch in usage else "" for arch in archs]
            shared = max(one["shared_bytes"] for one in usage.values())
            rows.append([f"`{name}`", *registers, f"{shared:,}" if shared else "–"])
            for arch, one in usage.items():
                if one["stack_bytes"] or one["spill_store_bytes"] or one["spill_load_bytes"]:
                    spilled = f"{one['spill_store_bytes']} bytes of spills stored and {one['spill_load_bytes']} loaded"
                    notes.append(f"- `{name}` on sm_{arch}: {one['stack_bytes']} bytes of stack, {spilled}.")
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
        parts.append("\n".join(notes) if notes else "No kernel of this file uses a stack or spills a register.")
    passage = "\n\n".join(parts)
    return _PASSAGE.sub(lambda match: f"{match['head']}\n{passage}\n\n{match['tail']}", text)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line above; 1 when docs are not current or a file does not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table and the page")
    options = parser.parse_args(arguments)
    try:
        table = as_json(compile_all(sources()))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    stale = False
    for path, text in ((TABLE, table), (PAGE, page(PAGE.read_text(encoding="utf-8"), json.loads(table)))):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale = True
            print(
                "wrote" if options.write else "not current, run with --write:", path.relative_to(ROOT), file=sys.stderr
            )
            if options.write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return int(stale and not options.write)


if __name__ == "__main__":
    sys.exit(main())
