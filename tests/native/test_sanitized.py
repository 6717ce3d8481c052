"""The native tests again on sanitized builds: a finding ends the process that made it."""

import subprocess
import sys
from pathlib import Path

import pytest
from sanitized import ROOT, environment, package_parent

# What runs on each: everything that reaches the library, and for threads what starts them.
SUITES = {
    "address,undefined": [
        "tests/native/test_native.py",
        "tests/native/test_planes.py",
        "tests/native/test_native_files.py",
        "tests/models",
        "tests/compile",
        "tests/engine/test_odd_weights.py",
        "tests/engine/test_scored.py",
    ],
    "thread": ["tests/native/test_native.py"],
}


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
