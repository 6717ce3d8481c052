"""Downloads in processes of their own: interrupted, killed, and two of them at once."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from download_process import start, wait_until
from fake_hub import FakeHub, commit_of

from caldrix.hub import hub_cache

REPO = "own/model"
WEIGHTS = bytes(range(256)) * 12000
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture
def hub(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub({REPO: FILES}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def wait_for_weights(hub: FakeHub, process: subprocess.Popen[str]) -> None:
    wait_until(lambda: bool(hub.gets("model.safetensors")), process)


def snapshot() -> Path:
    return hub_cache.snapshot_directory(REPO, commit_of(REPO))


@pytest.mark.slow
def test_ctrl_c_ends_a_slow_download_at_once(hub: FakeHub) -> None:
    hub.behaviour.chunk_wait = 0.5
    process = start(REPO)
    wait_for_weights(hub, process)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 2
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    assert not (snapshot() / "model.safetensors").exists()


@pytest.mark.slow
def test_a_killed_download_is_not_taken_for_complete(hub: FakeHub) -> None:
    hub.behaviour.chunk_wait = 0.1
    process = start(REPO)
    wait_for_weights(hub, process)
    process.kill()
    process.communicate(timeout=30)
    assert not (snapshot() / "model.safetensors").exists()
    assert list(snapshot().parent.parent.rglob("*.incomplete"))
    hub.behaviour.chunk_wait = 0
    again = start(REPO)
    out, err = again.communicate(timeout=30)
    assert (again.returncode, out) == (0, f"{snapshot()}\n"), err
    assert not list(snapshot().parent.parent.rglob("*.incomplete"))
    assert (snapshot() / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.slow
def test_two_at_once_end_with_one_download(hub: FakeHub) -> None:
    hub.behaviour.chunk_wait = 0.02
    both = [start(REPO), start(REPO)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert {out for out, _ in results} == {f"{snapshot()}\n"}
    assert len(hub.gets("model.safetensors")) == 1
    assert "waiting for another caldrix" in results[0][1] + results[1][1]
    assert (snapshot() / "model.safetensors").read_bytes() == WEIGHTS
