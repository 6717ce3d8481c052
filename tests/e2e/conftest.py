"""The model that the servers of these tests serve."""

from pathlib import Path

import pytest
from known_reply import write_model


@pytest.fixture(scope="session")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says ABC until it is stopped."""
    return write_model(tmp_path_factory.mktemp("models") / "abc", "ABC", repeats=True)
