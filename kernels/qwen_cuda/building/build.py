"""From libraries to files: what exists is used, what does not is built, all of it in one run of ninja."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qwen_cuda.building import ninja_run, store, toolchain
from qwen_cuda.building.library import ROOT, BuildError, Library
from qwen_cuda.building.recipes import Object, Recipe, recipe
from qwen_cuda.building.sources import Reader, gather

_FORMAT = "2"  # of the key and of what lies under it
_SUFFIX = "dylib" if sys.platform == "darwin" else "so"


@dataclass(frozen=True)
class _Unit:
    """An object with what it is compiled from, and the key that both give. What is `kept` serves later builds too."""

    object: Object
    files: dict[Path, bytes]
    edited: bool
    kept: bool
    key: str


@dataclass(frozen=True)
class _Order:
    """A library with its recipe, its units and its key."""

    library: Library
    recipe: Recipe
    units: tuple[_Unit, ...]
    key: str

    @property
    def file_name(self) -> str:
        return f"lib{self.library.name}.{_SUFFIX}"

    @property
    def place(self) -> Path:
        """The library's own folder, within a folder of builds."""
        return Path(self.library.kind) / "-".join([self.library.name, self.library.variant, self.key])


def build(*libraries: Library) -> list[Path]:
    """The path of each library's file. Those that no folder of builds has yet are built, together and in parallel.

    Raises:
        BuildError: something is missing, or a source does not compile.
    """
    orders = [_order(library) for library in libraries]
    paths = [_found(order) for order in orders]
    if None in paths:
        folder = store.writable_folder()
        try:
            with store.alone(folder, _say) as locked:
                if locked:
                    store.sweep(folder)
                # The process that we waited for may have built what we need.
                missing = {order.place: order for order in orders if _found(order) is None}
                if missing:
                    _make(list(missing.values()), folder)
        except OSError as error:
            raise BuildError(
                f"Kernels could not be built in {folder}: {error}; make room, or set QWEN_BUILD_DIR to another folder."
            ) from error
        paths = [_found(order) for order in orders]
    built = [path for path in paths if path is not None]
    for path in built:
        store.mark_used(path.parent)
    return built


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _digest(parts: Iterable[bytes | str]) -> str:
    """A key of 16 characters. Each part is preceded by its length, so that no two lists of parts give one text."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:16]


def _order(library: Library) -> _Order:
    how, reader = recipe(library), Reader(library.edits)

    def unit(item: Object, kept: bool) -> _Unit:
        files = gather(item.source, item.folders, reader)
        contents = [part for path, content in files.items() for part in (path.name, content)]
        words = [*item.compiler.words, item.compiler.version, *item.flags, *how.identity]
        edited = not reader.edited.isdisjoint(files)
        return _Unit(item, files, edited, kept, _digest([_FORMAT, *words, *contents]))

    # Of many sources most stay the same from one build to the next.
    units = [unit(item, len(how.objects) > 1) for item in how.objects]
    if how.runtime and any(how.runtime[0] in unit.files for unit in units):
        units.append(unit(how.runtime[1], True))
    reader.check_all_planted()
    words = [*how.linker.words, how.linker.version, *how.link_flags, *how.identity]
    return _Order(library, how, tuple(units), _digest([_FORMAT, *words, *(unit.key for unit in units)]))


def _found(order: _Order) -> Path | None:
    files = (folder / order.place / order.file_name for folder in store.folders())
    return next((file for file in files if file.exists()), None)


def _make(orders: list[_Order], folder: Path) -> None:
    """Builds `orders` in a folder of their own and moves each result into its place in one step."""
    ninja = toolchain.ninja()
    count = "1 kernel library" if len(orders) == 1 else f"{len(orders)} kernel libraries"
    with tempfile.TemporaryDirectory(prefix=store.UNFINISHED, dir=folder) as name:
        work = Path(name)
        (work / "objects").mkdir()
        all_edges = (edge for index, order in enumerate(orders) for edge in _edges(order, work / str(index), folder))
        edges = list({edge.output: edge for edge in all_edges}.values())  # several libraries may need one object
        try:
            ninja_run.run(ninja.words, edges, work, f"building {count} (once)")
        except BuildError as error:
            raise _readable(error, work) from None
        for made in (work / "objects").iterdir():
            store.move(made, folder / "objects" / made.name)
        for index, order in enumerate(orders):
            store.move(work / str(index) / "result", folder / order.place)


def _edges(order: _Order, work: Path, folder: Path) -> list[ninja_run.Edge]:
    """The commands for one library. They write into `work`, whose result is what is kept, and to objects/ beside it."""
    (work / "result").mkdir(parents=True)
    edges, objects = [], []
    for number, unit in enumerate(order.units):
        kept = folder / "objects" / f"{unit.key}.o"
        if unit.kept and kept.exists():
            store.mark_used(kept)
            objects.append(str(kept))
            continue
        item = unit.object
        source, folders, more = item.source.resolve(), list(item.folders), list(item.more())
        # Debug information names the real files: `work` is gone by the time somebody reads it.
        maps = [f"-ffile-prefix-map={work.parent}=."]
        if unit.edited:
            tree = work / "edited"
            source, folders = _planted(unit, tree), [*(_inside(tree, place) for place in folders), *folders]
            maps.append(f"-ffile-prefix-map={tree}=")
        more += [f"-Xcompiler={flag}" for flag in maps] if order.library.kind == "cuda" else maps
        output = f"objects/{kept.name}" if unit.kept else f"{work.name}/{number}.o"
        includes = [f"-I{place}" for place in folders]
        command = [*item.compiler.words, *item.flags, *more, *includes, "-c", str(source), "-o", output]
        edges.append(ninja_run.Edge(output, command, f"compiling {item.source.name}"))
        objects.append(output)
    output = f"{work.name}/result/{order.file_name}"
    how = order.recipe
    command = [*how.linker.words, *how.link_flags, *objects, *how.more(), "-o", output]
    inputs = tuple(name for name in objects if not os.path.isabs(name))
    return [*edges, ninja_run.Edge(output, command, f"linking {order.file_name}", inputs)]


def _inside(tree: Path, path: Path) -> Path:
    return tree / path.resolve().relative_to("/")


def _planted(unit: _Unit, tree: Path) -> Path:
    """Writes the files of a unit, edits applied, to the same places below `tree`; returns the source's path there."""
    for path, content in unit.files.items():
        copy = _inside(tree, path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    return _inside(tree, unit.object.source)


def _readable(error: BuildError, work: Path) -> BuildError:
    """The same error with paths that the reader knows: of the files themselves, short within the checkout."""
    shorten = [(str(work / str(index) / "edited"), "") for index in range(len(list(work.iterdir())))]
    if Path.cwd() == ROOT:
        shorten.append((f"{ROOT}/", ""))
    sentence, output = error.sentence, error.output
    for long, short in shorten:
        sentence, output = sentence.replace(long, short), output.replace(long, short)
    return BuildError(sentence, output)
