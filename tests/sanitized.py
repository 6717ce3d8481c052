"""Sanitized builds of the native library, and the environment in which a plain Python loads one: a
finding ends the process that made it.

What test_sanitized.py and test_fuzz_load.py share.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"address,undefined": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}


def library(name: str) -> str | None:
    """The sanitizer's run-time library, which must come before all others in a plain Python."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], text=True, capture_output=True)
    path = Path(found.stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


def environment(sanitizer: str) -> dict[str, str]:
    """Builds it; skips the test where the compiler has no such sanitizer."""
    libraries = [library(name) for name in LIBRARIES[sanitizer]]
    if None in libraries:
        pytest.skip(f"the compiler has no {' '.join(LIBRARIES[sanitizer])}")
    build = [sys.executable, str(ROOT / "tools/build_native.py"), "--sanitize", sanitizer]
    subprocess.run(build, check=True, timeout=600)
    options = "halt_on_error=1:exitcode=66"
    return os.environ | {
        "LD_PRELOAD": " ".join(path for path in libraries if path),
        "PYTHONPATH": str(package_parent(sanitizer)),
        "ASAN_OPTIONS": f"detect_leaks=0:{options}",  # Python itself never frees everything
        "TSAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
    }


def package_parent(sanitizer: str) -> Path:
    return ROOT / "build" / sanitizer.replace(",", "-")
