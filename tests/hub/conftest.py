"""What the download tests share: caches of their own, no settings of the person who runs them."""

import os
import time
from pathlib import Path

import pytest

SETTINGS = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_", "PIP_", "CALDRIX_")


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("CALDRIX_CACHE_DIR", str(tmp_path / "caldrix"))
    return tmp_path


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that would have been, in seconds: nobody waits in these tests."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds
