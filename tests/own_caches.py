"""Caches of a test's own, and no settings of the person who runs it."""

import os
from pathlib import Path

import pytest

SETTINGS = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_", "PIP_", "CALDRIX_")


def use(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and those it starts keep what they fetch in `directory`."""
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(directory / "home"))
    monkeypatch.setenv("HF_HOME", str(directory / "hf"))
    monkeypatch.setenv("CALDRIX_CACHE_DIR", str(directory / "caldrix"))
