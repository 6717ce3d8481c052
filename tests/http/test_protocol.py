"""The reader over tables of bytes, whole and cut everywhere; the head of an answer."""

from collections.abc import Callable

import pytest
from reading import MAX_BODY, read_all, ways_to_cut

from caldrix.http.protocol import Limits, RequestError, RequestReader

HOST = b"Host: a\r\n"

# name -> bytes, requests as (method, target, body), whether the last one is whole
ACCEPTED: dict[str, tuple[bytes, list[tuple[str, str, bytes]], bool]] = {
    "get": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", [("GET", "/", b"")], True),
    "http/1.0": (b"GET /x HTTP/1.0\r\n\r\n", [("GET", "/x", b"")], True),
    "later 1.x": (b"GET /x HTTP/1.9\r\nHost: a\r\n\r\n", [("GET", "/x", b"")], True),
    "unknown method": (b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n", [("BREW", "/pot", b"")], True),
    "32 letters of method": (
        b"A" * 32 + b" / HTTP/1.1\r\nHost: a\r\n\r\n",
        [("A" * 32, "/", b"")],
        True,
    ),
    "length": (
        b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        [("POST", "/p", b"hello")],
        True,
    ),
    "length zero": (
        b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        [("POST", "/p", b"")],
        True,
    ),
    "length with leading zeros": (
        b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 0005\r\n\r\nhello",
        [("POST", "/p", b"hello")],
        True,
    ),
    "length with more zeros than a number has digits": (
        b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"0" * 30 + b"5\r\n\r\nhello",
        [("POST", "/p", b"hello")],
        True,
    ),
    "white space around a value": (
        b"POST /p HTTP/1.1\r\nHost:\t a \r\nContent-Length: \t3\t \r\n\r\nabc",
        [("POST", "/p", b"abc")],
        True,
    ),
    "post without length": (
        b"POST /p HTTP/1.1\r\nHost: a\r\n\r\n",
        [("POST", "/p", b"")],
        True,
    ),
    "chunked": (
        b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n006\r\n world\r\n0\r\n\r\n",
        [("POST", "/c", b"hello world")],
        True,
    ),
    "chunked, capitals, extensions, trailers": (
        b'POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:  Chunked\r\n\r\nA;a=b;c="d e"\r\n'
        b"0123456789\r\n0;last\r\nX-Sum: 1\r\nX-More:\r\n\r\n",
        [("POST", "/c", b"0123456789")],
        True,
    ),
    "chunk data that looks like framing": (
        b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"9\r\n\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n",
        [("POST", "/c", b"\r\n0\r\n\r\n\r\n")],
        True,
    ),
    "pipelined": (
        b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
        b"\r\nhi\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n",
        [("GET", "/1", b""), ("POST", "/2", b"hi"), ("GET", "/3", b"")],
        True,
    ),
    "four empty lines": (
        b"\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        [("GET", "/", b"")],
        True,
    ),
    "body not whole": (
        b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello",
        [("POST", "/p", b"hello")],
        False,
    ),
    "head not whole": (b"GET / HTTP/1.1\r\nHost: a\r\n", [], True),
    "obs-text and tabs in a value": (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: caf\xe9\tx\r\n\r\n",
        [("GET", "/", b"")],
        True,
    ),
    "any authority of an absolute target": (
        b"GET http://b.example:80/x?y HTTP/1.1\r\nHost: a\r\n\r\n",
        [("GET", "http://b.example:80/x?y", b"")],
        True,
    ),
    "host is an address": (
        b"GET / HTTP/1.1\r\nHost: [::1]:8425\r\n\r\n",
        [("GET", "/", b"")],
        True,
    ),
    "options *": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", [("OPTIONS", "*", b"")], True),
}

POST = b"POST /p HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# name -> bytes, status; what follows the bytes is never read
REFUSED: dict[str, tuple[bytes, int]] = {
    "both lengths": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
    "two equal lengths": (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400),
    "length list": (POST + b"Content-Length: 3, 3\r\n\r\n", 400),
    "length empty": (POST + b"Content-Length:\r\n\r\n", 400),
    "length signed": (POST + b"Content-Length: +3\r\n\r\n", 400),
    "length negative": (POST + b"Content-Length: -3\r\n\r\n", 400),
    "length hex": (POST + b"Content-Length: 0x3\r\n\r\n", 400),
    "length with a space": (POST + b"Content-Length: 1 0\r\n\r\n", 400),
    "length with an underscore": (POST + b"Content-Length: 1_0\r\n\r\n", 400),
    "length in other digits": (POST + b"Content-Length: \xb2\r\n\r\n", 400),
    "length with a vertical tab": (POST + b"Content-Length: \x0b3\r\n\r\n", 400),
    "length with a no-break space": (POST + b"Content-Length: \xa03\r\n\r\n", 400),
    "length beyond 2^63": (POST + b"Content-Length: 9223372036854775808\r\n\r\n", 413),
    "length of thousands of digits": (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    "length over the limit": (POST + b"Content-Length: 1001\r\n\r\n", 413),
    "chunked twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", 400),
    "chunked in two headers": (
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "chunked not last": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    "not chunked": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    "xchunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    "chunked with a parameter": (POST + b"Transfer-Encoding: chunked;a=b\r\n\r\n", 400),
    "coding empty": (POST + b"Transfer-Encoding:\r\n\r\n", 400),
    "coding list with a hole": (POST + b"Transfer-Encoding: , chunked\r\n\r\n", 400),
    "coding quoted": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n', 400),
    "coding before chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunked in http/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunk size not hex": (CHUNKED + b"zz\r\n", 400),
    "chunk size 0x": (CHUNKED + b"0x2\r\n", 400),
    "chunk size signed": (CHUNKED + b"+2\r\n", 400),
    "chunk size negative": (CHUNKED + b"-2\r\n", 400),
    "chunk size with an underscore": (CHUNKED + b"1_0\r\n", 400),
    "chunk size empty": (CHUNKED + b"\r\n", 400),
    "chunk size then a space": (CHUNKED + b"2 \r\nhi\r\n", 400),
    "chunk size after a space": (CHUNKED + b" 2\r\nhi\r\n", 400),
    "chunk size of 17 digits": (CHUNKED + b"00000000000000002\r\n", 400),
    "chunk size of 2^64 - 1": (CHUNKED + b"ffffffffffffffff\r\n", 413),
    "chunk size of 2^32 + 2": (CHUNKED + b"100000002\r\nhi\r\n0\r\n\r\n", 413),
    "chunks over the limit": (CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n", 413),
    "chunk longer than its size": (CHUNKED + b"2\r\nhix\r\n", 400),
    "chunk line ends with LF": (CHUNKED + b"2\nhi\r\n", 400),
    "chunk ends with LF": (CHUNKED + b"2\r\nhi\n", 400),
    "chunk ends with CR CR": (CHUNKED + b"2\r\nhi\r\r", 400),
    "chunk extension with a control": (CHUNKED + b"2;a=\x01\r\nhi\r\n", 400),
    "chunk extension with a bare CR": (CHUNKED + b"2;a\rb\r\nhi\r\n", 400),
    "chunk extension of 257 bytes": (CHUNKED + b"2;" + b"a" * 256 + b"\r\n", 400),
    "chunk line too long": (CHUNKED + b"2;" + b"a" * 400, 400),
    "trailer malformed": (CHUNKED + b"0\r\nX : 1\r\n", 400),
    "trailers too many": (CHUNKED + b"0\r\n" + b"X: 1\r\n" * 129, 400),
    "trailer folded": (CHUNKED + b"0\r\nX: 1\r\n 2\r\n", 400),
    "space before colon": (POST + b"Content-Length : 3\r\n", 400),
    "tab before colon": (POST + b"Content-Length\t: 3\r\n", 400),
    "folded header": (POST + b"X: 1\r\n Content-Length: 3\r\n", 400),
    "folded first header": (b"POST / HTTP/1.1\r\n Host: a\r\n", 400),
    "header without colon": (POST + b"nonsense\r\n", 400),
    "header without name": (POST + b": x\r\n", 400),
    "header name not a token": (POST + b"X@Y: 1\r\n", 400),
    "header name not ASCII": (POST + b"X\xe9: 1\r\n", 400),
    "NUL in a value": (POST + b"X: a\0b\r\n", 400),
    "DEL in a value": (POST + b"X: a\x7fb\r\n", 400),
    "escape in a value": (POST + b"X: a\x1bb\r\n", 400),
    "bare CR in a value": (POST + b"X: a\rb\r\n", 400),
    "bare CR at the end of a value": (POST + b"X: a\r\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF after a header": (POST + b"X: 1\n", 400),
    "bare LF ends the head": (POST + b"\n", 400),
    "five empty lines": (b"\r\n" * 5, 400),
    "empty line of LF": (b"\nGET / HTTP/1.1\r\n", 400),
    "no version": (b"GET /\r\n", 400),
    "bad version": (b"GET / HTTP/1.1x\r\n", 400),
    "version of two digits": (b"GET / HTTP/1.10\r\n", 400),
    "lower-case version": (b"GET / http/1.1\r\n", 400),
    "version 0.9": (b"GET / HTTP/0.9\r\n", 505),
    "version 2": (b"PRI * HTTP/2.0\r\n", 505),
    "two spaces": (b"GET  / HTTP/1.1\r\n", 400),
    "space at the end": (b"GET / HTTP/1.1 \r\n", 400),
    "space at the start": (b" GET / HTTP/1.1\r\n", 400),
    "tab for space": (b"GET\t/ HTTP/1.1\r\n", 400),
    "space in the target": (b"GET /a b HTTP/1.1\r\n", 400),
    "33 letters of method": (b"A" * 33 + b" / HTTP/1.1\r\n", 400),
    "method not a token": (b"G(T / HTTP/1.1\r\n", 400),
    "fragment": (b"GET /a#b HTTP/1.1\r\n", 400),
    "bad escape": (b"GET /a%2 HTTP/1.1\r\n", 400),
    "bad escape, letters": (b"GET /a%zz HTTP/1.1\r\n", 400),
    "target not ASCII": (b"GET /\xe9 HTTP/1.1\r\n", 400),
    "control in the target": (b"GET /\x01 HTTP/1.1\r\n", 400),
    "target without slash": (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "authority as target": (b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "star without options": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "connect": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    "absolute target of another scheme": (b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "absolute target without host": (b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "absolute target with a user": (b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "two hosts in http/1.0": (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "host empty": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    "host list": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "host with a path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "host with a bad port": (b"GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", 400),
    "host not ASCII": (b"GET / HTTP/1.1\r\nHost: \xe9\r\n\r\n", 400),
    "target too long": (b"GET /" + b"a" * 8300 + b" HTTP/1.1\r\n", 414),
    "target without end": (b"GET /" + b"a" * 9000, 414),
    "method without end": (b"A" * 9000, 400),
    "header too long": (POST + b"X: " + b"b" * 17000 + b"\r\n", 431),
    "header without end": (POST + b"X: " + b"b" * 17000, 431),
    "headers too many": (POST + b"X: 1\r\n" * 200, 431),
    "headers too large": (POST + (b"X: " + b"b" * 9000 + b"\r\n") * 8, 431),
    "tls": (b"\x16\x03\x01\x02\x00\x01", 400),
}


def line_of(n: int) -> bytes:
    """A request whose first line has `n` bytes."""
    return b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * (n - 14))


def block_of(n: int) -> bytes:
    """A request whose header lines have `n` bytes together."""
    lines, n_left = HOST, n - len(HOST)
    while n_left > 16_000:
        lines, n_left = lines + header_of(8000), n_left - 8002
    return b"GET / HTTP/1.1\r\n" + lines + header_of(n_left - 2) + b"\r\n"


def header_of(n: int) -> bytes:
    return b"X: %b\r\n" % (b"y" * (n - 3))


# name -> a request of a size, the largest size, the status of one more
EDGES: dict[str, tuple[Callable[[int], bytes], int, int]] = {
    "request line": (line_of, 8192, 414),
    "method": (lambda n: b"A" * n + b" / HTTP/1.1\r\nHost: a\r\n\r\n", 32, 400),
    "header line": (lambda n: POST + header_of(n) + b"\r\n", 16_384, 431),
    "header block": (block_of, 65_536, 431),
    "headers": (lambda n: POST + b"a: b\r\n" * (n - 1) + b"\r\n", 128, 431),
    "empty lines": (lambda n: b"\r\n" * n + POST + b"\r\n", 4, 400),
    "body": (lambda n: POST + b"Content-Length: %d\r\n\r\n" % n + b"x" * n, MAX_BODY, 413),
    "chunk": (lambda n: CHUNKED + b"%x\r\n" % n + b"x" * n + b"\r\n0\r\n\r\n", MAX_BODY, 413),
    "chunks": (lambda n: CHUNKED + b"1\r\nx\r\n" * n + b"0\r\n\r\n", MAX_BODY, 413),
    "digits": (lambda n: CHUNKED + b"2".zfill(n) + b"\r\nhi\r\n0\r\n\r\n", 16, 400),
    "extension": (lambda n: CHUNKED + b"2;" + b"a" * (n - 1) + b"\r\nhi\r\n0\r\n\r\n", 256, 400),
    # Of their own, whatever the headers had.
    "trailer line": (lambda n: full_head() + b"0\r\n" + header_of(n) + b"\r\n", 16_384, 400),
    "trailers": (lambda n: full_head() + b"0\r\n" + b"a: b\r\n" * n + b"\r\n", 128, 400),
}


def full_head() -> bytes:
    """The head of a chunked request with as many header lines as there may be."""
    return POST + b"a: b\r\n" * 126 + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("name", EDGES)
def test_exactly_the_limit_is_read_and_one_more_refused(name: str) -> None:
    make, limit, status = EDGES[name]
    for data in (make(limit), make(limit + 1)):
        for pieces in ([data], [data[i : i + 1000] for i in range(0, len(data), 1000)]):
            read = read_all(pieces)
            if data == make(limit):
                assert (read.n_whole, read.error) == (1, None)
            else:
                assert read.error is not None
                assert read.error.http_status == status


def pieces_of(data: bytes) -> list[list[bytes]]:
    """Every cut of a short text; of a long one a few dozen, a byte at a time still among them."""
    return list(ways_to_cut(data, every=1 if len(data) < 400 else len(data) // 7))


@pytest.mark.parametrize("name", ACCEPTED)
def test_requests_are_read_however_they_are_cut(name: str) -> None:
    data, requests, is_whole = ACCEPTED[name]
    for pieces in pieces_of(data):
        assert read_all(pieces).summary() == (requests, is_whole, None)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_do_not_depend_on_the_cut(name: str) -> None:
    data, status = REFUSED[name]
    whole = read_all([data])
    assert whole.error is not None
    assert whole.error.http_status == status
    for pieces in pieces_of(data):
        assert read_all(pieces).summary() == whole.summary()


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_behind_an_error_is_read(name: str) -> None:
    data, status = REFUSED[name]
    reader = RequestReader(Limits(), "peer")
    reader.feed(data + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    errors = []
    for _ in range(3):
        try:
            while True:
                event = reader.next_event()
                reader.max_body_bytes = 1000
                assert "smuggled" not in repr(event)
        except RequestError as error:
            errors.append(error)
        reader.feed(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert {error.http_status for error in errors} == {status}
    assert reader.n_buffered == 0
