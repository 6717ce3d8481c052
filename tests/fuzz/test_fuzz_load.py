"""Whole models, damaged: each is refused in one line or loads and steps soundly, in bounded time
and memory; on a sanitized build too. Cases run in processes of their own (load_worker.py), so that
a crash is caught and named.

The fast test draws 250 cases of either format, the slow ones other seeds and thousands more. To see
one case again: its name ends in seed and number, the arguments of load_worker.py.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sanitized import environment

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
WORKER = HERE / "load_worker.py"
PATHS = [str(HERE), str(TESTS / "formats"), str(TESTS)]


def run_worker(folder: Path, *arguments: object, variables: dict[str, str] | None = None) -> str:
    """What it printed; fails with the case that crashed, hung or came out wrong."""
    variables = dict(os.environ if variables is None else variables)
    path = [*filter(None, [variables.get("PYTHONPATH")]), *PATHS, str(TESTS.parent)]
    variables |= {"PYTHONPATH": os.pathsep.join(path), "RUST_BACKTRACE": "0"}
    command = [sys.executable, "-P", WORKER, folder, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output:
        pipes = {"stdout": output, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, env=variables, timeout=900, **pipes)  # type: ignore[call-overload]
        output.seek(0)
        lines = output.read().splitlines()
    if done.returncode:
        failed = [line for line in lines if line.startswith("FAILED")]
        last = max((i for i, line in enumerate(lines) if line.startswith("case ")), default=0)
        tail = lines[last:][:60]
        pytest.fail("\n".join([f"status {done.returncode}", *failed[:20], *tail]))
    return lines[-1]


def check_counts(printed: str, n_cases: int) -> None:
    """All came to an end, in every way there is."""
    counts = json.loads(printed)
    assert sum(counts.values()) == n_cases
    assert counts["refused"] > n_cases / 2
    assert counts["same"] > n_cases / 20
    assert counts["other"] > n_cases / 50


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_damaged_models_are_refused_or_sound(kind: str, tmp_path: Path) -> None:
    check_counts(run_worker(tmp_path, kind, 1, 0, 250), 250)


def test_models_made_to_cost_are_refused_cheaply(tmp_path: Path) -> None:
    counts = json.loads(run_worker(tmp_path, "attacks"))
    assert counts["refused"] > 10


# Seeds pick the row of instructions: four in turn are all of them.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_many_damaged_models_are_refused_or_sound(kind: str, seed: int, tmp_path: Path) -> None:
    check_counts(run_worker(tmp_path, kind, seed, 0, 600), 600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 7, 8, 9])
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_damaged_models_are_clean_under_sanitizers(kind: str, seed: int, tmp_path: Path) -> None:
    variables = environment("address,undefined")
    check_counts(run_worker(tmp_path, kind, seed, 0, 150, variables=variables), 150)
