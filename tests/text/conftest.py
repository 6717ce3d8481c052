"""Where the text tests find the golden set and the demo model; without them tests skip."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is slow at times; no test here is about speed.
settings.register_profile("text", deadline=None)
settings.load_profile("text")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def golden() -> Path:
    path = Path(os.environ.get("CALDRIX_GOLDEN", ROOT.parent / "shared" / "golden"))
    if not path.is_dir():
        pytest.skip(f"no golden set at {path}")
    return path


@pytest.fixture(scope="session")
def demo_metadata() -> Mapping[str, object]:
    path = os.environ.get("CALDRIX_TEST_GGUF")
    if not path:
        pytest.skip("CALDRIX_TEST_GGUF names no model file")
    from caldrix.formats.gguf import open_gguf

    return open_gguf(Path(path)).metadata
