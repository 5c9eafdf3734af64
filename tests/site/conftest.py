"""The built site, served on loopback and opened in a real browser that can reach nothing else."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qwen_cuda.doctor.probes import chromium
from tests.site.invented import tree_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = (
    "playwright",
    "mkdocs",
    "material",
    "mkdocstrings",
    "jupytext",
    "nbclient",
    "nbconvert",
    "ipykernel",
    "matplotlib",
)
_FLAGS = [
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-software-rasterizer",  # of WebGL, which no page has
    "--in-process-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_MOST_SECONDS = 1800  # that a build of the site may take on a busy machine
NO_BROWSER = (
    "the tests of the site need Chromium and found none: run `sudo apt-get install chromium`, or install Google Chrome."
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of a test here does not count its fixtures: the first one of a process builds the site, or waits."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A repository with the lesson alone that the module's CHAPTER names."""
    return tree_of(tmp_path, request.module.CHAPTER)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


def _ready() -> str | None:
    """Builds build/site unless it is current. Returns what went wrong.

    Of the processes of one run the first one decides: the others may serve the site while somebody edits a source.
    """
    from docs.hooks import BUILD, freshness, stage

    run, note = os.environ.get("PYTEST_XDIST_TESTRUNUID", ""), BUILD / ".site.run"
    with stage.locked("site"):
        if run and note.exists() and note.read_text(encoding="utf-8") == run:
            return None
        problem = None if freshness.is_current() else _build()
        if problem is None:
            note.write_text(run, encoding="utf-8")
        return problem


def _build() -> str | None:
    """Builds build/site. Returns what went wrong."""
    from docs.hooks import freshness, notebooks, stage

    notebooks.sync()
    sources = freshness.digest()
    stage.STAGED.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
    )
    if done.returncode != 0:
        return f"`make docs` fails:\n{done.stdout}\n{done.stderr}"
    freshness.stamp(freshness.SITE, sources)
    return None


@pytest.fixture(scope="session")
def site() -> Path:
    """build/site, made from the sources as they are."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the site cannot be built here: this Python has no {', '.join(missing)}")
    problem = _ready()
    if problem:
        pytest.fail(problem, pytrace=False)
    return ROOT / "build" / "site"


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the site is served, without a slash at the end."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(site: Path) -> Iterator[Browser]:
    """A headless Chromium of the system."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        pytest.fail(NO_BROWSER, pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


class Visit:
    """One page in a fresh profile, and everything that went wrong while it was open."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.address = address
        self.problems: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", lambda m: self.problems.append(f"console: {m.text}") if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("response", lambda r: self.problems.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        self.page.on("request", self._watch)

    def _watch(self, request: Any) -> None:
        # The flags of the browser let no other name resolve; here we learn of the attempt.
        if not request.url.startswith((self.address + "/", "data:", "blob:")):
            self.problems.append(f"a request for another host: {request.url}")

    def open(self, path: str) -> Page:
        """Loads a page of the site, and returns when its mathematics and diagrams are drawn."""
        self.page.goto(self.address + path)
        self.page.wait_for_selector("html[data-math=ready]", state="attached")
        self.page.wait_for_function("!document.querySelector('.diagram:not(.ready)')")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        return self.page


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Callable[..., Visit]]:
    """`visit(width=1280, scheme="light", javascript=True)` → `Visit`; at the end nothing may have gone wrong."""
    visits: list[Visit] = []

    def start(width: int = 1280, scheme: Any = "light", javascript: bool = True) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=javascript
        )
        visits.append(Visit(context, address))
        return visits[-1]

    yield start
    for one in visits:
        one.page.context.close()
    assert not [problem for one in visits for problem in one.problems]
