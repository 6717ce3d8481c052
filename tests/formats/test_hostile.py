"""Spoilt files are refused in one line or opened right, in bounded time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from model_files import sample_gguf, sample_safetensors, with_header

SCRIPT = Path(hostile.__file__)
SEED, CASES = 20, 800


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_spoilt_files_are_refused_or_right(kind: str, tmp_path: Path) -> None:
    done = start(kind, SEED, CASES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["refused"] + outcome["opened"] >= 700  # the others came out unspoilt
    assert outcome["refused"] > 500
    assert outcome["opened"] > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "case"),
    [("gguf", case) for case in hostile.LARGE_GGUF]
    + [("safetensors", case) for case in hostile.LARGE_HEADERS],
)
def test_large_files_cost_no_more_than_their_size(kind: str, case: str, tmp_path: Path) -> None:
    good = bytes(sample_gguf().raw) if kind == "gguf" else sample_safetensors()
    (tmp_path / f"{kind}-good").write_bytes(good)
    path = tmp_path / "large"
    if kind == "gguf":
        with open(path, "wb") as file:
            hostile.large_gguf(case, file)
    else:
        path.write_bytes(with_header(hostile.LARGE_HEADERS[case]()))
    done = start(kind, "large", case, path)
    path.unlink()
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_judge_sees_a_wrong_tensor() -> None:
    good: hostile.Tensors = {"a": ("f32", (2,), bytes(8)), "b": ("q4_0", (64,), bytes(36))}
    assert hostile.differs(good, good) is None
    assert hostile.differs({}, good) is None
    assert hostile.differs({"a": ("f32", (2,), b"12345678")}, good)
    assert hostile.differs({"a": ("f16", (2,), bytes(4))}, good)
    assert hostile.differs({"a": ("f16", (4,), bytes(8))}, good)
    assert hostile.differs({"new": ("f32", (2,), b"12345678")}, good)
    assert hostile.differs({**good, "c": good["a"]}, good)
