"""Builds the parts of native/ that stand alone, once a test run, and loads them by ctypes.

The installed extension is not used here: these tests need a compiler and nothing else.
"""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wvla", "-Wmissing-prototypes", "-Werror"]
C_FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", *WARNINGS]


def compile_c(output: Path, sources: Sequence[str], flags: Sequence[str] = ()) -> Path:
    paths = [str(ROOT / source) for source in sources]
    command = ["cc", *C_FLAGS, f"-I{NATIVE / 'include'}", *flags, *paths, "-o", str(output), "-lm"]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """native/quant and native/sample as one shared library."""
    output = tmp_path_factory.mktemp("native") / "parts.so"
    sources = ["native/quant/quants.c", "native/sample/sample.c"]
    parts = ctypes.CDLL(str(compile_c(output, sources, ["-shared", "-fPIC"])))
    parts.cx_sample_scratch.restype = ctypes.c_uint64
    parts.cx_sample_scratch.argtypes = [ctypes.c_uint32]
    parts.cx_quant_find.restype = ctypes.c_void_p
    return parts
