"""The parts of native/ that stand alone, built once a test run and loaded by ctypes."""

import ctypes

import pytest
from compiling import compile_c


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
