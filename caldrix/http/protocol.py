"""HTTP/1.1 without a socket: bytes in, requests out; responses in, bytes out.

Owns the order in which the parts of a message come, the limits on their size, and the framing of
answers; knows nothing of time, connections or paths. The reader has exactly three outcomes: an
event, a RequestError that carries its HTTP status, or "need more". After an error nothing that
follows in the stream is looked at. Errors do not depend on how the bytes were cut into pieces.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum, auto
from http import HTTPStatus

from caldrix import __version__
from caldrix.http.grammar import (
    body_length,
    check_host,
    parse_chunk_line,
    parse_field,
    parse_request_line,
    parse_target,
)
from caldrix.http.messages import (
    Application,
    Endpoint,
    Exchange,
    Headers,
    Limits,
    Request,
    RequestError,
    RequestHead,
    Response,
    StreamResponse,
)

__all__ = [
    "Application",
    "BodyPart",
    "EndOfRequest",
    "Endpoint",
    "Exchange",
    "Headers",
    "Limits",
    "Request",
    "RequestError",
    "RequestHead",
    "RequestReader",
    "Response",
    "StreamResponse",
    "chunk",
    "response_head",
]

# RFC 9112 2.2: a server skips at least one empty line before a request line. Old clients send one
# after a body; no client sends five.
_MAX_EMPTY_LINES = 4


@dataclass(frozen=True, slots=True)
class BodyPart:
    data: bytes


@dataclass(frozen=True, slots=True)
class EndOfRequest:
    pass


Event = RequestHead | BodyPart | EndOfRequest


class _State(Enum):
    START = auto()  # before or in the request line
    HEADERS = auto()
    SIZED_BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()  # the line end after a chunk's data
    TRAILERS = auto()
    DONE = auto()  # until next_request
    FAILED = auto()


class RequestReader:
    """Reads the requests of one connection, one at a time."""

    def __init__(self, limits: Limits, peer: str) -> None:
        # connection
        self._limits = limits
        self._peer = peer
        self._buffer = bytearray()
        self._scanned = 0  # no line feed before this offset
        self.n_read = 0  # bytes of all requests so far
        self._reset()

    def _reset(self) -> None:
        # request
        self._state = _State.START
        self._error: RequestError | None = None
        self._n_empty_lines = 0
        self._line = ("", "", (1, 1))
        self._fields: list[tuple[str, str]] = []
        self._block_bytes = 0
        self._left = 0  # of the sized body, or of the chunk
        self._n_body = 0
        # Set by the caller once it knows who answers, before it asks for the body.
        self.max_body_bytes = 0
        # Of the head that was read: None when the body is chunked.
        self.declared_length: int | None = 0

    @property
    def n_buffered(self) -> int:
        """Bytes received and not yet read."""
        return len(self._buffer)

    @property
    def is_idle(self) -> bool:
        """Between requests with nothing of the next one here."""
        return self._state is _State.START and not self._buffer

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes bytes from the peer; after an error they are dropped."""
        if self._state is not _State.FAILED:
            self._buffer += data

    def next_event(self) -> Event | None:
        """A RequestHead, then BodyParts, then an EndOfRequest, each as soon as it is whole; None
        while more bytes are needed and, after the end, until `next_request`."""
        if self._error is not None:
            raise self._error
        try:
            return _READERS[self._state](self)
        except RequestError as error:
            self._state = _State.FAILED
            self._error = error
            self._buffer.clear()
            raise

    def next_request(self) -> None:
        """Goes on with the request after the one whose end was read."""
        assert self._state is _State.DONE
        self._reset()

    def _take(self, n_bytes: int) -> bytes:
        data = bytes(self._buffer[:n_bytes])
        del self._buffer[:n_bytes]
        self.n_read += len(data)
        self._scanned = 0
        return data

    def _take_line(self, max_bytes: int, status: int, what: str) -> bytes | None:
        """The next line without its end; None while it is incomplete."""
        end = self._buffer.find(b"\n", self._scanned)
        self._scanned = len(self._buffer)
        if (end if end >= 0 else len(self._buffer) - 1) > max_bytes + 1:
            raise RequestError(status, "limit", f"{what} is over {max_bytes} bytes")
        if end < 0:
            return None
        line = self._take(end + 1)
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise RequestError(400, "line_end", f"{what} does not end with CR LF alone")
        return line[:-2]

    def _read_start(self) -> Event | None:
        if self._buffer.startswith(b"\x16\x03"):
            message = "TLS handshake on a plain HTTP port"
            raise RequestError(400, "tls", message, is_answered=False)
        max_bytes = self._limits.request_line_bytes
        # A line that is too long by its method is no long target.
        status = 414 if b" " in self._buffer[:33] else 400
        while (line := self._take_line(max_bytes, status, "request line")) is not None:
            if line:
                self._line = parse_request_line(line)
                self._state = _State.HEADERS
                return self._read_headers()
            self._n_empty_lines += 1
            if self._n_empty_lines > _MAX_EMPTY_LINES:
                raise RequestError(400, "request_line", "empty lines in place of a request")
        return None

    def _read_headers(self) -> Event | None:
        if not self._read_fields(431):
            return None
        method, target, version = self._line
        headers = Headers(self._fields)
        check_host(version, headers)
        authority, path, query = parse_target(method, target)
        if authority is not None:  # RFC 9112 3.2.2: the target's authority wins
            others = [named for named in self._fields if named[0] != "host"]
            headers = Headers([*others, ("host", authority)])
        self.declared_length = body_length(version, headers)
        if self.declared_length is None:
            self._state = _State.CHUNK_SIZE
        else:
            self._left = self.declared_length
            self._state = _State.SIZED_BODY
        return RequestHead(method, target, path, query, version, headers, self._peer)

    def _read_fields(self, status: int) -> bool:
        """Reads header or trailer lines; True once the empty line after them was read."""
        limits = self._limits
        while True:
            line = self._take_line(limits.header_line_bytes, status, "header line")
            if line is None:
                return False
            if not line:
                return True
            self._block_bytes += len(line) + 2
            if self._block_bytes > limits.header_block_bytes:
                message = f"headers are over {limits.header_block_bytes} bytes"
                raise RequestError(status, "limit", message)
            if len(self._fields) == limits.n_headers:
                raise RequestError(status, "limit", f"more than {limits.n_headers} headers")
            self._fields.append(parse_field(line))

    def _read_sized_body(self) -> Event | None:
        if self._left > self.max_body_bytes:
            self._refuse_body()
        return self._read_data() if self._left else self._end()

    def _read_data(self) -> Event | None:
        data = self._take(min(self._left, len(self._buffer)))
        self._left -= len(data)
        return BodyPart(data) if data else None

    def _read_chunk_size(self) -> Event | None:
        limits = self._limits
        line = self._take_line(limits.chunk_extension_bytes + 16, 400, "chunk size line")
        if line is None:
            return None
        self._left = parse_chunk_line(line, limits.chunk_extension_bytes)
        self._n_body += self._left
        if self._n_body > self.max_body_bytes:
            self._refuse_body()
        if self._left:
            self._state = _State.CHUNK_DATA
            return self._read_chunk_data()
        self._state = _State.TRAILERS
        self._fields, self._block_bytes = [], 0
        return self._read_trailers()

    def _read_chunk_data(self) -> Event | None:
        if self._left:
            return self._read_data()
        self._state = _State.CHUNK_END
        return self._read_chunk_end()

    def _read_chunk_end(self) -> Event | None:
        if not b"\r\n".startswith(bytes(self._buffer[:2])):
            raise RequestError(400, "chunk", "chunk data is longer than its size")
        if len(self._buffer) < 2:
            return None
        self._take(2)
        self._state = _State.CHUNK_SIZE
        return self._read_chunk_size()

    def _read_trailers(self) -> Event | None:
        return self._end() if self._read_fields(400) else None

    def _end(self) -> EndOfRequest:
        self._state = _State.DONE
        return EndOfRequest()

    def _refuse_body(self) -> None:
        message = f"request body is over {self.max_body_bytes} bytes"
        raise RequestError(413, "limit", message)


# Of the class and not of each reader, which would then refer to itself and outlive its connection.
_READERS: dict[_State, Callable[[RequestReader], Event | None]] = {
    _State.START: RequestReader._read_start,
    _State.HEADERS: RequestReader._read_headers,
    _State.SIZED_BODY: RequestReader._read_sized_body,
    _State.CHUNK_SIZE: RequestReader._read_chunk_size,
    _State.CHUNK_DATA: RequestReader._read_chunk_data,
    _State.CHUNK_END: RequestReader._read_chunk_end,
    _State.TRAILERS: RequestReader._read_trailers,
    _State.DONE: lambda reader: None,
}


# Written by response_head alone, so that no answer carries two framings.
_OWN_FIELDS = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}

# A header that would break the framing of the answer is a bug, never sent.
_SAFE_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")


def has_body(status: int) -> bool:
    """RFC 9110 6.4.1: no content after 1xx, 204 and 304, and no length either."""
    return status >= 200 and status not in (204, 304)


def response_head(
    status: int, headers: list[tuple[str, str]], framing: str | None, idle_s: float | None
) -> bytes:
    """The head of an answer; `framing` is its whole header line, or None when it needs none.

    `idle_s` is how long the connection is kept for another request; None: it is closed.
    """
    lines = [f"{name}: {value}" for name, value in headers if name.lower() not in _OWN_FIELDS]
    for line in lines:
        if not _SAFE_FIELD.fullmatch(line):
            raise ValueError(f"response header {line!r}")
    if framing is not None:
        lines.append(framing)
    lines += [f"Date: {formatdate(usegmt=True)}", f"Server: caldrix/{__version__}"]
    if idle_s is None:
        lines.append("Connection: close")
    else:
        lines += ["Connection: keep-alive", f"Keep-Alive: timeout={idle_s:.0f}"]
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """RFC 9112 7.1: `data`, which is not empty, as one chunk; no data would end the answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
