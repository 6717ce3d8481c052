"""What crosses the border of the HTTP layer: requests, responses, limits, and the two protocols an
application fulfils.

Owns the records and nothing that acts on them; knows no sockets and no meaning of any path. Names
of header fields are lower case and values are latin-1 text, so that every byte has its character.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from caldrix.errors import RefusedError

if TYPE_CHECKING:
    import asyncio


class RequestError(RefusedError):
    """Bytes that are no request this server reads: the status to answer with, then close.

    `kind` is a short label for counters. `is_answered` is False for a peer that speaks another
    protocol and would not understand an answer.
    """

    def __init__(self, status: int, kind: str, message: str, *, is_answered: bool = True) -> None:
        super().__init__(message)
        self.http_status = status
        self.kind = kind
        self.is_answered = is_answered


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the HTTP layer; the defaults are those of the documentation."""

    request_line_bytes: int = 8192
    header_line_bytes: int = 16 * 1024
    header_block_bytes: int = 64 * 1024
    n_headers: int = 128
    chunk_extension_bytes: int = 256
    pipelined_bytes: int = 64 * 1024  # read ahead while a request is being answered
    kept_body_bytes: int = 256 * 1024  # a refused request's body read to keep the connection
    drained_bytes: int = 64 * 1024 * 1024  # discarded before a close, so that the answer arrives
    n_connections: int = 1024

    head_s: float = 10.0  # first byte of a request to its last header
    body_gap_s: float = 30.0
    body_s: float = 300.0
    idle_s: float = 75.0  # above the 60 s of common proxies, so that the proxy closes first
    stalled_s: float = 60.0  # a reader that takes nothing
    drained_s: float = 5.0


class Headers:
    """The fields of one message in order; a name may occur more than once."""

    __slots__ = ("_fields",)

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str | None:
        """The value, or all values of a repeated field joined by a comma; None when absent."""
        values = self.all(name)
        return ", ".join(values) if values else None

    def all(self, name: str) -> list[str]:
        return [value for field_name, value in self._fields if field_name == name]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Headers({self._fields!r})"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request before its body.

    `target` is as sent; `path` is its raw path part: not percent-decoded, runs of `/` collapsed,
    one trailing `/` dropped, `*` for `OPTIONS *`. An absolute target's authority has replaced
    `host` in `headers`. `version` is (1, 0) or (1, 1). `peer` is an address without its port.
    """

    method: str
    target: str
    path: str
    query: str
    version: tuple[int, int]
    headers: Headers
    peer: str


@dataclass(frozen=True, slots=True)
class Request:
    head: RequestHead
    body: bytes


@dataclass(slots=True)
class Response:
    """A whole answer. Framing, `Date`, `Server` and `Connection` are added when it is written."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


@dataclass(slots=True)
class StreamResponse:
    """An answer in pieces, each written as soon as it is there and the reader takes it.

    `chunks` is closed (`aclose`) when the client goes away. When nothing was written for
    `heartbeat_s` seconds, the bytes `heartbeat()` gives are; 0 or None sends none.
    """

    status: int
    headers: list[tuple[str, str]]
    chunks: AsyncIterator[bytes]
    heartbeat_s: float = 15.0
    heartbeat: Callable[[], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What happened to one request, told to the observer once it is over.

    `status` is the one sent, 499 when the client left before the answer was complete, 0 when
    nothing was sent because there was nobody to tell. `error` is the kind of a RequestError, or
    `client_closed` for a request that ended within; of an answer `left`, `stalled` or `broken`.
    `head` is None when it could not be read; `headers` are the answer's, none if there was none.
    Seconds count from the first byte of the head; `stalled_s` of them the answer waited for its
    reader.
    """

    head: RequestHead | None
    status: int
    error: str | None
    bytes_in: int
    bytes_out: int
    seconds: float
    stalled_s: float = 0.0
    headers: list[tuple[str, str]] = field(default_factory=list)


class Endpoint(Protocol):
    """What answers an admitted request."""

    @property
    def max_body_bytes(self) -> int: ...

    async def __call__(self, request: Request, gone: asyncio.Event) -> Response | StreamResponse:
        """The answer; `gone` is set when the client's connection closes while this runs."""


class Application(Protocol):
    """Everything above HTTP. None of the plain functions may block or raise."""

    def admit(self, head: RequestHead) -> Endpoint | Response:
        """Who answers, or the refusal; called before the body is read."""

    def failure(self, status: int, message: str, head: RequestHead | None) -> Response:
        """The body of an error found here: framing, limits, time, a handler that raised."""

    def decorate(self, head: RequestHead | None, response: Response | StreamResponse) -> None:
        """Adds to `response.headers` what every answer carries; called once for each."""
