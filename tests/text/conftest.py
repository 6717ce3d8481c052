"""What the text tests take of the demo model: its metadata, without the weights."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from caldrix.formats.gguf import open_gguf


@pytest.fixture(scope="session")
def demo_metadata(demo_gguf: Path) -> Mapping[str, object]:
    return open_gguf(demo_gguf).metadata
