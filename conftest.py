"""For every test of the repository."""

from __future__ import annotations

import os

import pytest

# Before PyTorch is loaded, and for what tests start: OpenMP's threads sleep when they wait. As a rule they spin for a
# while first, and keep the cores from the other processes of the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Checks live beside the tests that call them; rewritten, their plain asserts say what differs.
pytest.register_assert_rewrite("qwen_cuda.testing")
pytest_plugins = ["qwen_cuda.testing.fixtures"]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Lets `timeout` stand in pyproject.toml where pytest-timeout is not installed: tests then run without a limit."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "the longest that one test may take, in seconds; needs pytest-timeout")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): another limit for this test; needs pytest-timeout")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    from qwen_cuda.testing import workers

    return workers.count(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    from qwen_cuda.testing import workers

    workers.share_cores(session.config)
