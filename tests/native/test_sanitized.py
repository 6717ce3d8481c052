"""The native tests again on sanitized builds: a finding ends the process that made it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {"address,undefined": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
# What runs on each: everything that reaches the library, and for threads what starts them.
SUITES = {
    "address,undefined": ["tests/native/test_native.py", "tests/models", "tests/compile"],
    "thread": ["tests/native/test_native.py"],
}


def library(name: str) -> str | None:
    """The sanitizer's run-time library, which must come before all others in a plain Python."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], text=True, capture_output=True)
    path = Path(found.stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


def environment(sanitizer: str) -> dict[str, str]:
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


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", list(SUITES))
def test_native_suite_is_clean_under(sanitizer: str) -> None:
    variables, parent = environment(sanitizer), package_parent(sanitizer)
    where = "import caldrix._native as n; print(n.__file__)"
    isolated = [sys.executable, "-P"]
    done = subprocess.run([*isolated, "-c", where], env=variables, text=True, capture_output=True)
    assert Path(done.stdout.strip()).parent == parent / "caldrix", done.stdout + done.stderr
    suites = [path for path in SUITES[sanitizer] if (ROOT / path).exists()]
    path_option = f"pythonpath={parent} tests tools"
    quick = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not model", "-o", path_option]
    command = [*isolated, "-m", "pytest", *quick, *suites]
    done = subprocess.run(command, cwd=ROOT, env=variables, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


@pytest.mark.slow
def test_damaged_plans_are_clean_under_sanitizers() -> None:
    variables = environment("address,undefined")
    for seed in range(2, 8):
        command = [sys.executable, str(ROOT / "tests/native/fuzz_plan.py"), str(seed), "3000"]
        done = subprocess.run(command, env=variables, text=True, capture_output=True)
        assert done.returncode == 0, f"seed {seed}: {done.stderr[-6000:]}"
