"""Ctrl-C and SIGTERM in every state: gone soon, clean ends for clients, the port free at once."""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import ServerProcess, accepts, events, wait_until, whole_answer

pytestmark = pytest.mark.slow

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 0}
FAULTS = {"decode_s": 0.01, "prefill_s": 0.2}
LONG = "word " * 380  # 1,900 tokens


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
        with ServerProcess(abc, port=server.port) as again:
            again.wait_until_it_serves()
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


@pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)
def test_signals_up_to_the_last_moment_change_nothing(abc: Path, number: signal.Signals) -> None:
    for _ in range(3):
        with ServerProcess(abc) as server:
            while server.process.poll() is None:
                server.process.send_signal(number)
                time.sleep(0.0005)
            assert server.ends() == STATUS[number]
            assert server.stderr().endswith(f"on http://127.0.0.1:{server.port}\n")


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


def test_what_outlasts_the_drain_timeout_is_cut(abc: Path, tmp_path: Path) -> None:
    """Whole replies and streams are told why, and the telemetry log has them all."""
    log = tmp_path / "log"
    flags = ("--ctx", "4096", "--drain-timeout", "0.3", "--telemetry-log", str(log))
    for stream in (True, False):
        with ServerProcess(abc, *flags, faults=FAULTS) as server:
            running, waiting = server.connect(), server.connect()
            running.sendall(server.body(3000, stream=stream))
            wait_until(lambda: server.gauge("caldrix_requests_running"))
            waiting.sendall(server.body(5))
            wait_until(lambda: server.gauge("caldrix_requests_waiting"))
            server.process.send_signal(signal.SIGTERM)
            assert server.ends(4) == 0
            status, cut = whole_answer(running)
            if stream:
                assert status == 200
                cut = events(cut)[-1]
            else:
                assert status == 503
            assert cut["error"]["code"] == "shutting_down"
            status, refused = whole_answer(waiting)
            assert (status, refused["error"]["code"]) == (503, "shutting_down")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    ends = [(record["status"], record["error_code"]) for record in records]
    assert sorted(ends) == [(200, "shutting_down"), *[(503, "shutting_down")] * 3]


def test_a_request_on_an_open_connection_is_refused_while_others_finish(abc: Path) -> None:
    with ServerProcess(abc, faults=FAULTS) as server:
        running = server.connect()
        running.sendall(server.body(100, stream=True) + server.body(5))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        server.process.send_signal(signal.SIGTERM)
        first, second = running.makefile("rb").read().split(b"HTTP/1.1 503 ")
        assert first.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b"Connection: close" in second
        assert b'"code":"shutting_down"' in second
        assert server.ends(5) == 0
