"""Drives a RequestReader as a connection would, for tests without sockets."""

from collections.abc import Iterable, Iterator

from caldrix.http.protocol import (
    BodyPart,
    EndOfRequest,
    Limits,
    RequestError,
    RequestHead,
    RequestReader,
)

MAX_BODY = 1000


class Read:
    """What came out: whole requests, then perhaps an error or the start of another request."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []
        self.n_whole = 0
        self.error: RequestError | None = None

    def summary(self) -> tuple[list[tuple[str, str, bytes]], bool, tuple[int, str] | None]:
        """(requests, is the last one whole, error's status and text)."""
        requests = [
            (head.method, head.target, body)
            for head, body in zip(self.heads, self.bodies, strict=True)
        ]
        error = self.error and (self.error.http_status, str(self.error))
        return requests, self.n_whole == len(self.heads), error


def read_all(
    pieces: Iterable[bytes], limits: Limits | None = None, max_body: int = MAX_BODY
) -> Read:
    """Feeds `pieces` one by one and takes every event as soon as it is there."""
    reader = RequestReader(limits or Limits(), "peer")
    read = Read()
    for piece in pieces:
        reader.feed(piece)
        try:
            take_events(reader, read, max_body)
        except RequestError as error:
            read.error = error
            break
    return read


def take_events(reader: RequestReader, read: Read, max_body: int) -> None:
    while (event := reader.next_event()) is not None:
        if isinstance(event, RequestHead):
            read.heads.append(event)
            read.bodies.append(b"")
            reader.max_body_bytes = max_body
        elif isinstance(event, BodyPart):
            assert event.data
            read.bodies[-1] += event.data
        else:
            assert isinstance(event, EndOfRequest)
            read.n_whole += 1
            reader.next_request()


def ways_to_cut(data: bytes, every: int = 1) -> Iterator[list[bytes]]:
    """Whole, one byte at a time, and in two at every `every`-th point."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for i in range(1, len(data), every):
        yield [data[:i], data[i:]]
