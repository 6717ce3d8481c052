"""The thread pool: check_pool.c, plain and under sanitizers, on few threads and on many."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["tests/native/check_pool.c", "native/base/threads.c", "native/base/error.c"]


def build(directory: Path, *flags: str) -> Path:
    program = directory / "check_pool"
    includes = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'native/include'}"]
    sources = [str(ROOT / source) for source in SOURCES]
    command = ["cc", "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    subprocess.run([*command, *includes, *sources, "-o", str(program)], check=True)
    return program


def run(program: Path, n_threads: int, n_runs: int) -> None:
    command = [str(program), str(n_threads), str(n_runs)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"check_pool: {n_threads} threads: ok\n"


def test_pool_runs_every_thread_and_sleeps_when_idle(tmp_path: Path) -> None:
    program = build(tmp_path)
    for n_threads in (1, 2, 5):
        run(program, n_threads, 20)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_pool_is_clean_under_sanitizers(tmp_path: Path, sanitizer: str) -> None:
    program = build(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    for n_threads in (1, 2, 3, 8):
        run(program, n_threads, 200)
