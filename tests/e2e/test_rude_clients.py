"""Clients that stop, leave, reset, or hardly read: nothing is left of them, nobody else notices."""

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest
from server_process import (
    ServerProcess,
    events,
    post,
    reset,
    said,
    wait_until,
    whole_answer,
)

pytestmark = pytest.mark.slow

CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(bytes.fromhex(sys.argv[2]))
    while s.recv(100):
        print("read", flush=True)
"""


@pytest.fixture(scope="module")
def shared(abc: Path) -> Iterator[ServerProcess]:
    """A server whose steps take 3 ms; what the clients of one test leave, the next would find."""
    with ServerProcess(abc, "--ctx", "4096", faults={"decode_s": 0.003}) as server:
        yield server
        server.stops()


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    wait_until(shared.is_idle)
    before = shared.n_descriptors()
    yield shared
    shared.leave()
    wait_until(shared.is_idle, 5)
    wait_until(lambda: shared.n_descriptors() <= before, 8)


def test_a_stopped_client_holds_up_nobody(server: ServerProcess) -> None:
    request = server.body(1000, stream=True)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(server.port), request.hex()], stdout=subprocess.PIPE
    )
    assert client.stdout
    client.stdout.readline()
    client.send_signal(SIGSTOP)
    started = time.monotonic()
    assert server.get("/health")[0] == 200
    assert time.monotonic() - started < 1
    assert (
        said(server.ask(server.body(5, stream=True))[1]) == "ABCAB"
    )  # after the 1000 of the other
    client.send_signal(SIGKILL)
    client.wait()
    client.stdout.close()


def test_a_half_closed_client_is_gone(server: ServerProcess) -> None:
    """Whichever part it has sent; the slot is free at once."""
    for request in (server.body(3000), server.body(3000, stream=True)):
        for cut in (1, len(request) // 2, len(request) - 1, len(request)):
            with server.connect() as client:
                client.sendall(request[:cut])
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
    wait_until(server.is_idle, 2)


def test_a_reset_at_every_byte_of_a_request(server: ServerProcess) -> None:
    request = server.body(100, stream=True)
    for cut in range(len(request) + 1):
        client = server.connect()
        client.sendall(request[:cut])
        reset(client)
    assert server.ask(server.body(4))[1]["choices"][0]["text"] == "ABCA"


def test_a_reset_anywhere_in_an_answer(server: ServerProcess) -> None:
    for n_bytes in range(1, 6000, 200):
        reset(server.opened(1000, n_bytes))
    wait_until(server.is_idle, 2)
    assert said(server.ask(server.body(4, stream=True))[1]) == "ABCA"


def test_readers_of_a_byte_a_second_cost_little_and_nobody_elses_time(
    server: ServerProcess,
) -> None:
    before = server.rss_mb()
    slow = []
    for _ in range(4):
        client = server.connect(receive_bytes=1024)
        client.sendall(server.body(400, stream=True))
        slow.append(client)
    end = time.monotonic() + 6
    n_read = 0
    while time.monotonic() < end:
        for client in slow:
            n_read += len(client.recv(1))
        started = time.monotonic()
        assert server.get("/v1/models")[0] == 200
        assert time.monotonic() - started < 0.5
        time.sleep(1)
    wait_until(server.is_idle, 10)  # their replies are done and wait for them, not in the slot
    assert said(server.ask(server.body(4, stream=True))[1]) == "ABCA"
    assert server.rss_mb() - before < 20


def test_a_prompt_of_four_megabytes_beside_a_running_stream(server: ServerProcess) -> None:
    gaps: list[float] = []

    def read() -> None:
        with server.connect() as client:
            client.sendall(server.body(600, stream=True))
            latest = time.monotonic()
            while b"[DONE]" not in client.recv(4096):
                gaps.append(time.monotonic() - latest)
                latest += gaps[-1]

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: gaps)
    long = "A long prompt, too long by far. " * 125_000
    for path, fields in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long[:3_900_000]}]}),
        ("/v1/completions", {"prompt": long[:3_900_000]}),
    ):
        status, answer = server.ask(post(path, {"model": server.name, **fields}))
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
    reader.join()
    assert max(gaps) < 0.5, "the loop was held up"


def test_who_leaves_the_queue_takes_no_engine_time(server: ServerProcess) -> None:
    """B49: a reply runs, eight wait, seven of those leave; then a new one. Ten times."""
    for _ in range(10):
        first = server.connect()
        first.sendall(server.body(60, stream=True))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        waiting = [server.connect() for _ in range(8)]
        for client in waiting:
            client.sendall(server.body(300))
        wait_until(lambda: server.gauge("caldrix_requests_waiting") == 8)
        kept = waiting.pop(3)
        for index, client in enumerate(waiting):
            reset(client) if index % 2 else client.close()
        wait_until(lambda: server.gauge("caldrix_requests_waiting") == 1, 1)
        new = server.connect()
        new.sendall(server.body(5))
        started = time.monotonic()
        assert len(said(whole_answer(first)[1])) == 60
        assert whole_answer(kept)[0] == 200
        assert whole_answer(new)[0] == 200
        assert time.monotonic() - started < 3 * 365 * 0.0032  # 8 of 300 would take 8 s


@pytest.mark.parametrize("depth", [0, 2])
def test_the_queue_refuses_at_once_and_empties(abc: Path, depth: int) -> None:
    """B49: twenty at once, ten times."""
    flags = ("--queue-depth", str(depth))
    with ServerProcess(abc, *flags, faults={"decode_s": 0.002}) as server:
        for _ in range(10):
            clients = [server.connect() for _ in range(20)]
            for client in clients:
                client.sendall(server.body(20))
            answers = [whole_answer(client) for client in clients]
            for client in clients:
                client.close()
            assert sorted(status for status, _ in answers) == [200] * (1 + depth) + [429] * (
                19 - depth
            )
            refused = {a["error"]["code"] for status, a in answers if status == 429}
            assert refused == {"queue_full"}
            assert server.is_idle()
        server.stops()


def test_a_running_reply_is_nobody_elses_business(server: ServerProcess) -> None:
    """B50: others give up, time out, send nonsense, drop the socket. Ten times."""
    alone = events(server.ask(server.body(150, stream=True))[1])
    for turn in range(10):
        chance = random.Random(turn)
        running, given_up, timed_out, bad, dropped = (server.connect() for _ in range(5))
        running.sendall(server.body(150, stream=True))
        wait_until(lambda: server.gauge("caldrix_requests_running"))
        given_up.sendall(server.body(20, stream=True))
        timed_out.sendall(server.body(20))
        bad.sendall(post("/v1/completions", {"model": server.name, "prompt": 5}))
        dropped.sendall(b"GET /v1/models HTTP/1.1\r\nHo")
        time.sleep(chance.random() * 0.3)
        reset(given_up)
        timed_out.close()
        assert whole_answer(bad)[0] == 400
        reset(dropped)
        status, text = whole_answer(running)
        assert status == 200
        assert [e["choices"] for e in events(text)] == [e["choices"] for e in alone]
