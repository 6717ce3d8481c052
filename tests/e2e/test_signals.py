"""Ctrl-C and SIGTERM in every state: gone soon, clean ends for clients, the port free at once."""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import ServerProcess, wait_until, whole_answer

pytestmark = pytest.mark.slow

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 0}
FAULTS = {"decode_s": 0.01, "prefill_s": 0.2}
LONG = "word " * 380  # 1,900 tokens


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def idle(server: ServerProcess) -> list[socket.socket]:
    return []


def kept_alive(server: ServerProcess) -> list[socket.socket]:
    client = server.connect()
    client.sendall(server.body(3))
    assert whole_answer(client)[0] == 200
    return [client]


def head_begun(server: ServerProcess) -> list[socket.socket]:
    client = server.connect()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    time.sleep(0.1)
    return [client]


def prefill(server: ServerProcess) -> list[socket.socket]:
    client = server.connect()
    client.sendall(server.body(100, prompt=LONG, stream=True))
    wait_until(lambda: server.gauge("caldrix_requests_running"))
    return [client]


def streaming(server: ServerProcess) -> list[socket.socket]:
    return [server.opened(100)]


def queued(server: ServerProcess) -> list[socket.socket]:
    clients = streaming(server)
    for _ in range(8):
        clients.append(server.connect())
        clients[-1].sendall(server.body(5))
    wait_until(lambda: server.gauge("caldrix_requests_waiting") == 8)
    return clients


@pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)
@pytest.mark.parametrize("state", [idle, kept_alive, head_begun, prefill, streaming, queued])
def test_a_signal_ends_the_server_and_the_port_is_free_at_once(
    abc: Path, number: signal.Signals, state: Callable[[ServerProcess], list[socket.socket]]
) -> None:
    with ServerProcess(abc, faults=FAULTS) as server:
        clients = state(server)
        server.process.send_signal(number)
        assert server.ends(5) == STATUS[number], server.stderr()
        assert "Traceback" not in server.stderr()
        assert "bug" not in server.stderr()
        for client in clients:  # nobody is left without an end
            while client.recv(1 << 16):
                pass
        with ServerProcess(abc, "--port", str(server.port)) as again:
            assert again.ask(again.body(3))[0] == 200


def test_a_running_reply_is_finished_and_those_that_wait_are_told(abc: Path) -> None:
    with ServerProcess(abc, faults=FAULTS) as server:
        running = server.connect()
        running.sendall(server.body(100, stream=True))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        waiting = server.connect()
        waiting.sendall(server.body(5))
        wait_until(lambda: server.gauge("caldrix_requests_waiting"))
        server.process.send_signal(signal.SIGTERM)
        status, answer = whole_answer(waiting)
        assert (status, answer["error"]["code"]) == (503, "shutting_down")
        wait_until(lambda: not accepts(server.port), 1)
        status, text = whole_answer(running)
        assert text.count('"text":') == 101  # with the one that says how it ended
        assert '"finish_reason":"length"' in text
        assert server.ends(5) == 0


@pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)
def test_a_second_signal_cuts_what_still_runs(abc: Path, number: signal.Signals) -> None:
    with ServerProcess(abc, "--ctx", "4096", faults=FAULTS) as server:
        running = server.connect()
        running.sendall(server.body(3000, stream=True))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        server.process.send_signal(number)
        with pytest.raises(AssertionError):
            wait_until(lambda: server.process.poll() is not None, 0.5)
        server.process.send_signal(number)
        assert server.ends(3) == STATUS[number]
        *_, last, done = whole_answer(running)[1].rstrip().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"


def test_ctrl_c_gives_a_running_reply_a_few_seconds(abc: Path) -> None:
    with ServerProcess(abc, "--ctx", "4096", faults=FAULTS) as server:
        running = server.connect()
        running.sendall(server.body(3000, stream=True))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        server.process.send_signal(signal.SIGINT)
        assert server.ends(9) == 130
        assert '"shutting_down"' in whole_answer(running)[1]


def test_a_terminal_that_closes_does_not_end_the_server(abc: Path) -> None:
    with ServerProcess(abc) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.ask(server.body(3))[0] == 200
        server.stops()
