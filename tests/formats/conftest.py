"""Where the format tests find the demo model and the golden set; without them tests skip."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def demo_gguf() -> Path:
    path = os.environ.get("CALDRIX_TEST_GGUF")
    if not path:
        pytest.skip("CALDRIX_TEST_GGUF names no model file")
    return Path(path)


@pytest.fixture
def golden() -> Path:
    path = Path(os.environ.get("CALDRIX_GOLDEN", ROOT.parent / "shared" / "golden"))
    if not path.is_dir():
        pytest.skip(f"no golden set at {path}")
    return path
