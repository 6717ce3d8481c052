"""Which x86-64 level a processor's answers amount to: every feature a level needs is taken away."""

import ctypes
import platform
from pathlib import Path

import pytest
from compiling import compile_c

V2, V3, V4, VNNI = 1, 2, 4, 32
# Register and bit of what each level adds, from the manuals' tables of cpuid and xcr0.
NEEDS = {
    V2: [("leaf1", bit) for bit in (0, 9, 13, 19, 20, 23)] + [("extended", 0)],
    V3: [("leaf1", bit) for bit in (12, 22, 27, 28, 29)]
    + [("extended", 5), ("leaf7", 3), ("leaf7", 5), ("leaf7", 8), ("xcr0", 1), ("xcr0", 2)],
    V4: [("leaf7", bit) for bit in (16, 17, 28, 30, 31)] + [("xcr0", bit) for bit in (5, 6, 7)],
    VNNI: [("leaf7_ecx", 11)],
}
BELOW = {V2: 0, V3: V2, V4: V2 | V3, VNNI: V2 | V3 | V4}
CASES = [(level, register, bit) for level, needs in NEEDS.items() for register, bit in needs]


class Cpuid(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint32) for name in ("leaf1", "leaf7", "leaf7_ecx", "extended", "xcr0")
    )


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("features") / "features.so"
    return ctypes.CDLL(str(compile_c(output, ["native/cpu/features.c"], ["-shared", "-fPIC"])))


def full() -> Cpuid:
    cpuid = Cpuid()
    for _, register, bit in CASES:
        setattr(cpuid, register, getattr(cpuid, register) | 1 << bit)
    return cpuid


def test_a_processor_with_everything_runs_every_level(features: ctypes.CDLL) -> None:
    assert features.cx_features_of_cpuid(ctypes.byref(full())) == V2 | V3 | V4 | VNNI


def test_a_processor_that_reports_nothing_runs_no_level(features: ctypes.CDLL) -> None:
    assert features.cx_features_of_cpuid(ctypes.byref(Cpuid())) == 0


@pytest.mark.parametrize(("level", "register", "bit"), CASES)
def test_a_missing_feature_takes_its_level_and_those_above(
    features: ctypes.CDLL, level: int, register: str, bit: int
) -> None:
    cpuid = full()
    setattr(cpuid, register, getattr(cpuid, register) & ~(1 << bit))
    assert features.cx_features_of_cpuid(ctypes.byref(cpuid)) == BELOW[level]


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="flags are read from /proc/cpuinfo")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 levels")
def test_this_machine_has_what_its_kernel_lists(features: ctypes.CDLL) -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    found = features.cx_features()
    assert bool(found & V3) == ({"avx2", "fma", "f16c", "bmi2", "movbe"} <= flags)
    assert bool(found & VNNI) == (bool(found & V4) and "avx512_vnni" in flags)
    assert bool(found & V4) == ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags)
