"""What turns the repository into a site: notebooks are executed, Markdown is staged, a generator renders it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
