"""The thread pool and the executor in C programs of their own, plain and under sanitizers."""

import subprocess
from pathlib import Path

import pytest
from compiling import compile_c

BASE = ["native/base/threads.c", "native/base/error.c"]
SOURCES = {
    "check_pool": ["tests/native/check_pool.c", *BASE],
    "check_execute": [
        "tests/native/check_execute.c",
        *BASE,
        "native/plan/plan.c",
        "native/plan/execute.c",
        "native/quant/quants.c",
        "native/sample/sample.c",
    ],
}


def build(directory: Path, name: str, *flags: str) -> Path:
    return compile_c(directory / name, SOURCES[name], ["-O2", "-g", *flags])


def run(program: Path, n_threads: int, *arguments: str) -> None:
    command = [str(program), str(n_threads), *arguments]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{program.name}: {n_threads} threads: ok\n"


def test_pool_runs_every_thread_and_sleeps_when_idle(tmp_path: Path) -> None:
    program = build(tmp_path, "check_pool")
    for n_threads in (1, 2, 5):  # fewer and more than processors
        run(program, n_threads, "20")


def test_executor_runs_each_item_once_and_cancels_between_ops(tmp_path: Path) -> None:
    program = build(tmp_path, "check_execute")
    for n_threads in (1, 2, 5):
        run(program, n_threads)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_pool_and_executor_are_clean_under_sanitizers(tmp_path: Path, sanitizer: str) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    pool, execute = (build(tmp_path, name, *flags) for name in SOURCES)
    for n_threads in (1, 2, 3, 8):
        run(pool, n_threads, "200")
        run(execute, n_threads)
