"""The access log: a line for each exchange, whole and true, and nothing in it that is a secret."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import CHAT, Served, serving

from caldrix.api.access import Access
from caldrix.api.access_log import access_line
from caldrix.api.service import Settings
from caldrix.http.messages import Exchange, Headers, RequestHead


class Lines:
    """What a server logs; a line comes when its exchange is over, after its client has read it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._came = threading.Semaphore(0)

    def take(self, line: str) -> None:
        self._lines.append(line)
        self._came.release()

    def next(self) -> list[str]:
        """The fields of the next line."""
        assert self._came.acquire(timeout=5)
        return self._lines.pop(0).split(" ")


@pytest.fixture(scope="module")
def lines() -> Lines:
    return Lines()


@pytest.fixture(scope="module")
def logged(quick_path: Path, lines: Lines) -> Iterator[Served]:
    access = Access(keys=("key",), origins=())
    with serving(quick_path, Settings(access=access, access_log=lines.take)) as served:
        yield served


KEY = {"x-api-key": "key"}
BODY = {"model": "quick", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/v1/models", None, KEY, 200),
        ("HEAD", "/health", None, {}, 200),
        ("POST", CHAT, BODY, KEY, 200),
        ("POST", CHAT, {**BODY, "stream": True}, KEY, 200),
        ("POST", CHAT, BODY, {"x-api-key": "a-secret"}, 401),
        ("POST", CHAT, {"model": "secret"}, KEY, 404),
        ("GET", "/v1/models/%22%1b%0a", None, KEY, 404),
        ("GET", "/nothing", None, {}, 404),
        ("PUT", "/health", None, {}, 405),
        ("PURGE", "/health", None, {}, 501),
        ("OPTIONS", CHAT, None, {}, 204),
    ],
)
def test_every_exchange_leaves_a_line(
    logged: Served, lines: Lines, method: str, path: str, body: Any, headers: Any, status: int
) -> None:
    answer = logged.ask(method, f"{path}?api_key=secret", body, {"Cookie": "secret", **headers})
    assert answer.status == status
    said = lines.next()
    assert said[:3] == [method, path, str(status)]
    assert int(said[3]) > len(answer.body)
    assert re.fullmatch(r"[0-9]+\.[0-9]{3}", said[4])
    assert said[5:] == [answer.headers["x-request-id"]]
    assert "secret" not in " ".join(said)


def test_the_callers_own_request_id_is_the_one_in_the_line(logged: Served, lines: Lines) -> None:
    logged.get("/health", **{"X-Request-Id": "mine:1"})
    assert lines.next()[5] == "mine:1"
    logged.get("/health", **{"X-Request-Id": "forged GET /x 200"})
    assert lines.next()[5].startswith("req-")


def raw(served: Served, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=5) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_what_is_no_request_leaves_a_line_without_its_bytes(logged: Served, lines: Lines) -> None:
    for target in (b"/\r\x1b[31m", b"/a b", b"/\xe2\x80\xae", b"/\n"):
        assert b" 400 " in raw(logged, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
        said = lines.next()
        assert said[:3] == ["-", "-", "400"]
        assert said[5].startswith("req-")


def test_what_is_not_answered_leaves_no_line(logged: Served, lines: Lines) -> None:
    assert raw(logged, b"\x16\x03\x01") == b""  # TLS, which has a line of its own
    logged.get("/health")
    assert lines.next()[1] == "/health"


def test_a_client_that_leaves_is_a_499(logged: Served, lines: Lines) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: key\r\nContent-Length: 9\r\n\r\n"
    )
    assert raw(logged, head) == b""
    said = lines.next()
    assert (said[:4], said[5]) == (["POST", "/v1/completions", "499", "0"], "-")


def test_the_query_of_a_whole_address_is_left_out_too(logged: Served, lines: Lines) -> None:
    raw(logged, b"GET http://x/health?k=secret HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert lines.next()[:3] == ["GET", "/health", "200"]


def test_a_long_path_is_cut() -> None:
    path = "/" + "a" * 8000
    head = RequestHead("GET", path, path, "", (1, 1), Headers([]), "")
    line = access_line(Exchange(head, 404, None, 9, 99, 0.0123456))
    assert line == f"GET {path[:256]}... 404 99 0.012 -"


def test_there_is_none_unless_it_is_asked_for(
    quick: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    quick.get("/health")
    assert capfd.readouterr().err == ""
