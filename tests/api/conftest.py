"""Servers that the tests of one file share; what a test changes it serves itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from known_reply import write_model
from served import Served, serving

REPLY = "The quick!"


@pytest.fixture(scope="session")
def quick_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers everything with REPLY."""
    return write_model(tmp_path_factory.mktemp("models") / "quick", REPLY)


@pytest.fixture(scope="session")
def endless_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says ABC until it is stopped."""
    return write_model(tmp_path_factory.mktemp("models") / "endless", "ABC", repeats=True)


@pytest.fixture(scope="module")
def quick(quick_path: Path) -> Iterator[Served]:
    with serving(quick_path) as served:
        yield served


@pytest.fixture(scope="module")
def endless(endless_path: Path) -> Iterator[Served]:
    with serving(endless_path, context=4096) as served:
        yield served
