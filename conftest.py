"""For every test of the repository."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Lets `timeout` stand in pyproject.toml where pytest-timeout is not installed: tests then run without a limit."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "the longest that one test may take, in seconds; needs pytest-timeout")
