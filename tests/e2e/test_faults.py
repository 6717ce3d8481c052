"""What breaks inside: steps, the engine's thread, the disk, descriptors. Clear errors, no hang."""

import signal
import time
from pathlib import Path

import pytest
from server_process import ServerProcess, events, said, wait_until, whole_answer

pytestmark = pytest.mark.slow


def test_an_exception_in_a_step_is_that_requests_error(abc: Path) -> None:
    with ServerProcess(abc, faults={"fails_at": 3}) as server:
        status, answer = server.ask(server.body(8))
        assert (status, answer["error"]["code"]) == (500, "engine_error")
        assert server.ask(server.body(4))[1]["choices"][0]["text"] == "ABCA"
        server.stops()


def test_an_exception_in_a_step_ends_a_stream_with_an_event(abc: Path) -> None:
    with ServerProcess(abc, faults={"fails_at": 3}) as server:
        status, text = server.ask(server.body(8, stream=True))
        assert status == 200
        *rest, last = events(text)
        assert "".join(e["choices"][0]["text"] for e in rest) == "AB"
        assert last["error"]["code"] == "engine_error"
        assert said(server.ask(server.body(4, stream=True))[1]) == "ABCA"
        server.stops()


def test_the_engines_thread_dies_and_nobody_is_left_waiting(abc: Path) -> None:
    with ServerProcess(abc, faults={"dies_at": 40, "decode_s": 0.02}) as server:
        stream = server.opened(1000)
        waiting = server.connect()
        waiting.sendall(server.body(5))
        text = stream.makefile("rb").read().decode()
        assert "engine_error" in text
        assert "data: [DONE]" in text
        status, answer = whole_answer(waiting)
        assert status in (500, 503)
        assert answer["error"]["code"] == "engine_error"
        assert server.ends() == 1
        assert "the engine's thread died" in server.stderr()
        assert "Traceback" not in server.stderr()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_full_disk_under_the_telemetry_log(abc: Path, number: int) -> None:
    with ServerProcess(abc, "--telemetry-log", "/dev/full") as server:
        for _ in range(3):
            assert server.ask(server.body(4))[0] == 200
        assert server.stderr().count("--telemetry-log") == 1
        server.process.send_signal(number)
        assert server.ends() == (0 if number == signal.SIGTERM else 130)
        assert "Traceback" not in server.stderr()
        assert "bug" not in server.stderr()
        assert server.stderr().count("no space left") == 1


def test_descriptors_run_out_and_come_back(abc: Path) -> None:
    with ServerProcess(abc, n_files=64) as server:
        kept = server.connect()
        kept.sendall(server.body(3))
        assert whole_answer(kept)[0] == 200
        clients = [server.connect() for _ in range(100)]
        wait_until(lambda: "cannot accept" in server.stderr())
        kept.sendall(server.body(3))  # those who are in are served
        assert whole_answer(kept)[0] == 200
        before = server.cpu_s()
        time.sleep(1.5)
        assert server.cpu_s() - before < 0.5, "it spins on accept"
        for client in clients[:90]:
            client.close()
        for client in clients[90:]:  # those who waited too
            client.sendall(server.body(3))
            assert whole_answer(client)[0] == 200
        assert server.ask(server.body(3))[0] == 200
        assert len(server.stderr().splitlines()) < 20, "a line for each failed accept"
        server.stops()
