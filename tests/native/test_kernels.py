"""Every kernel of every row of this processor: builds the check programs and runs them."""

import fcntl
import subprocess
from pathlib import Path

import build_native
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {
    "check_kernels": [
        "check.c",
        "check_attention.c",
        "check_int8.c",
        "check_kernels.c",
        "check_row_ops.c",
    ],
    "check_matmul": ["check_matmul.c"],
}


def build(directory: Path, name: str, sanitize: str = "") -> Path:
    """The library's own objects, reused from the last build where they are current."""
    program = directory / name
    how = build_native.setting(sanitize)
    how.objects.mkdir(parents=True, exist_ok=True)
    with open(how.objects / "lock", "w", encoding="utf8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        objects = [path for path in build_native.compile_all(how) if path.stem != "module"]
        flags = ["-std=c11", "-O1", "-ffp-contract=off", *build_native.WARNINGS, "-Werror"]
        sources = [str(ROOT / "tests/native" / source) for source in CHECKS[name]]
        command = [*how.cc, *flags, *how.extra, *build_native.INCLUDES, *sources]
        command += [*map(str, objects), "-pthread", "-lm", "-o", str(program)]
        subprocess.run(command, check=True)
    return program


def run(program: Path, *arguments: str) -> list[str]:
    done = subprocess.run([str(program), *arguments], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_kernel_of_every_usable_row_is_right(tmp_path: Path) -> None:
    program = build(tmp_path, "check_kernels")
    checks = run(program, "--list")
    lines = run(program)
    usable = {line.split()[0] for line in lines if line.endswith("cases ok")}
    assert usable
    for row in usable:
        for check in checks:
            assert any(
                line.startswith(f"{row} {check}: ") and line.endswith(" ok") for line in lines
            )


def test_linear_layers_have_the_defined_bits_on_every_usable_row(tmp_path: Path) -> None:
    lines = run(build(tmp_path, "check_matmul"), "--cases", "6")
    assert any(line.startswith("scalar: ") for line in lines)
    assert all(line.endswith("ok") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_kernels_are_clean_under_sanitizers(tmp_path: Path, name: str) -> None:
    run(build(tmp_path, name, "address,undefined"), "--seed", "2")
