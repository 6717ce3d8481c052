"""What the download tests share: caches of their own, no settings of the person who runs them."""

import time
from pathlib import Path

import own_caches as own
import pytest


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own.use(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that would have been, in seconds: nobody waits in these tests."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds
