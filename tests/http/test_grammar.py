"""What the pieces of a request are read as; refusals are in the tables of test_protocol.py."""

import time

import pytest
from reading import read_all

from caldrix.http.grammar import is_persistent, parse_field, parse_target, tidy_path
from caldrix.http.messages import Headers, RequestError
from caldrix.http.protocol import response_head


def test_a_head_is_read_field_by_field() -> None:
    (head,) = read_all(
        [b"GET //v1//models/?a=%20b&c?d HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nx-a:\t2 \r\nX-E:\r\n\r\n"]
    ).heads
    assert (head.method, head.version, head.peer) == ("GET", (1, 1), "peer")
    assert head.target == "//v1//models/?a=%20b&c?d"
    assert (head.path, head.query) == ("/v1/models", "a=%20b&c?d")
    assert list(head.headers) == [("host", "a"), ("x-a", "1"), ("x-a", "2"), ("x-e", "")]
    assert (head.headers.get("x-a"), head.headers.all("x-a")) == ("1, 2", ["1", "2"])
    assert (head.headers.get("x-e"), head.headers.get("x-b")) == ("", None)
    assert len(head.headers) == 4
    assert "x-e" in repr(head)


@pytest.mark.parametrize(
    ("path", "tidied"),
    [("", "/"), ("/", "/"), ("//", "/"), ("/a/", "/a"), ("///a//b//", "/a/b"), ("/%2F/", "/%2F")],
)
def test_slashes_are_tidied(path: str, tidied: str) -> None:
    assert tidy_path(path) == tidied


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("http://a", ("a", "/", "")),
        ("HTTPS://a:80?q", ("a:80", "/", "q")),
        ("http://[::1]:80//x/?q?r", ("[::1]:80", "/x", "q?r")),
        ("http://a.b-c_d~:", ("a.b-c_d~:", "/", "")),
    ],
)
def test_an_absolute_target_is_taken_apart(target: str, parts: tuple[str, str, str]) -> None:
    assert parse_target("GET", target) == parts


def test_the_authority_of_an_absolute_target_replaces_the_host() -> None:
    request = b"GET http://b:80/x HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\n"
    (head,) = read_all([request]).heads
    assert (head.headers.all("host"), head.headers.get("x")) == (["b:80"], "1")


@pytest.mark.parametrize(
    ("version", "connection", "is_kept"),
    [
        ((1, 1), None, True),
        ((1, 1), "keep-alive", True),
        ((1, 1), "x , CLOSE", False),
        ((1, 1), "closed", True),
        ((1, 0), None, False),
        ((1, 0), "x", False),
        ((1, 0), "Keep-Alive", True),
        ((1, 0), "close, keep-alive", False),
    ],
)
def test_who_keeps_the_connection(
    version: tuple[int, int], connection: str | None, is_kept: bool
) -> None:
    fields = [] if connection is None else [("connection", connection)]
    assert is_persistent(version, Headers(fields)) is is_kept


@pytest.mark.parametrize(
    "line",
    [
        b"X:" + b" " * 16_000 + b"\x00",
        b"X:" + b"\t " * 8_000 + b"\x00",
        b"X" * 16_000,
        b"X: " + b"a " * 8_000 + b"\x7f",
    ],
)
def test_long_lines_are_judged_in_linear_time(line: bytes) -> None:
    """A pattern that also strips white space took seconds for the first of these."""
    begun = time.process_time()
    with pytest.raises(RequestError, match="malformed header line"):
        parse_field(line)
    assert time.process_time() - begun < 0.5


def test_the_head_of_an_answer() -> None:
    head = response_head(429, [("Retry-After", "1")], "Content-Length: 3", None)
    first, *lines = head.decode().split("\r\n")
    assert first == "HTTP/1.1 429 Too Many Requests"
    assert lines[:2] == ["Retry-After: 1", "Content-Length: 3"]
    assert lines[-3:] == ["Connection: close", "", ""]


@pytest.mark.parametrize(
    "field", [("X", "a\r\nY: b"), ("X", "a\nb"), ("X Y", "a"), ("X", "\u20ac")]
)
def test_an_answer_with_a_broken_header_is_never_built(field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="response header"):
        response_head(200, [field], None, None)
