"""Answers on their way out: framing, streams, slow readers, heartbeats, clients that leave."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from serving import PATIENCE_S, App, Client, Handler, run, serving, until

from caldrix.http import sse
from caldrix.http.messages import Limits, Request, Response, StreamResponse

THREE = b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


class Endless:
    """A stream that has always more: what it made and how it ended are on record."""

    def __init__(self, size: int = 10_000, pause: bool = False) -> None:
        self.n_made = 0
        self.closed = asyncio.Event()
        self.size = size
        self.pause = pause

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.n_made += 1
                yield b"x" * self.size
                if self.pause:
                    await asyncio.Event().wait()  # until closed
        finally:
            self.closed.set()

    async def __call__(self, request: Request, gone: asyncio.Event) -> StreamResponse:
        return StreamResponse(200, [], self.chunks())

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.closed.wait()


def streaming(chunks: object, **more: object) -> Handler:
    async def handler(request: Request, gone: asyncio.Event) -> StreamResponse:
        return StreamResponse(200, [], chunks, **more)  # type: ignore[arg-type]

    return handler


def small_reader(client: Client) -> None:
    """Makes the kernel hold little for a client that does not read."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


# Framing


def test_head_has_the_length_of_the_body_and_no_body() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await client.get("/a", method="HEAD")
            assert got.headers["content-length"] == str(len("HEAD /a "))
            got = await client.get("/three", method="HEAD")
            assert got.headers["transfer-encoding"] == "chunked"
            assert (await client.get("/refused", method="HEAD")).status == 404
            assert (await client.get("/b")).body == b"GET /b "

    run(test())


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_neither_body_nor_length(status: int) -> None:
    async def empty(request: Request, gone: asyncio.Event) -> Response:
        return Response(status, [("Allow", "GET")], b"never sent")

    async def test() -> None:
        async with serving(App(x=empty)) as served:
            client = await served.connect()
            got = await client.get("/x")
            assert (got.status, got.headers["allow"]) == (status, "GET")
            assert not {"content-length", "transfer-encoding"} & set(got.headers)
            assert (await client.get("/b")).body == b"GET /b "

    run(test())


def test_the_framing_is_ours_alone() -> None:
    async def own(request: Request, gone: asyncio.Event) -> Response:
        names = ["content-length", "Transfer-Encoding", "CONNECTION", "Date", "Server"]
        return Response(200, [(name, "99") for name in names], b"body")

    async def test() -> None:
        async with serving(App(x=own)) as served:
            got = await (await served.connect()).get("/x")
            assert got.body == b"body"
            assert "99" not in got.headers.values()

    run(test())


def test_a_stream_is_chunked_or_ends_with_the_connection() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await client.get("/three")
            assert (got.body, got.headers["transfer-encoding"]) == (THREE, "chunked")
            assert (await client.get("/b")).status == 200
            client = await served.connect()
            await client.send(b"GET /three HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            got = await client.response()
            assert (got.body, got.headers["connection"]) == (THREE, "close")
            assert "transfer-encoding" not in got.headers

    run(test())


def test_pieces_are_written_one_by_one_as_they_come() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            yield b""  # would end the answer
            await go.wait()
            yield b"second"

        async with serving(App(x=streaming(chunks()))) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.head()
            assert await client.reader.readexactly(10) == b"5\r\nfirst\r\n"
            go.set()
            assert await client.chunks() == b"second"

    run(test())


# Clients that leave, and streams that fail


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
@pytest.mark.parametrize("behind", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
@pytest.mark.parametrize("pause", [False, True])
def test_a_stream_is_closed_when_the_client_leaves(way: str, behind: bytes, pause: bool) -> None:
    async def test() -> None:
        endless = Endless(100, pause)
        async with serving(App(x=endless)) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" + behind)
            await client.head()
            await client.reader.readexactly(104)
            if way == "half_close":
                client.half_close()
            else:
                await getattr(client, way)()
            await endless.until_closed()
            exchange = await served.app.next_exchange()
            assert (exchange.status, exchange.error) == (499, "left")
            await served.until_connections(0)

    run(test())


def test_a_stream_for_a_client_that_has_left_never_starts() -> None:
    async def test() -> None:
        async def left(request: Request, gone: asyncio.Event) -> StreamResponse:
            await gone.wait()
            return await Endless.__call__(endless, request, gone)

        endless = Endless()
        async with serving(App(x=left)) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            client.half_close()
            assert (await client.head())[0] == 200
            assert await client.rest() == b""
            assert endless.n_made == 0

    run(test())


def test_a_stream_that_holds_on_is_left_behind() -> None:
    """Its iterator is no generator: it has no `aclose` and swallows the cancellation."""

    class Stubborn:
        n_cancelled = 0

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.n_cancelled += 1
            return b"more"

    async def test() -> None:
        stubborn = Stubborn()
        async with serving(App(x=streaming(stubborn))) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.head()
            await client.close()
            assert (await served.app.next_exchange()).error == "left"
            assert stubborn.n_cancelled == 1

    run(test())


def test_a_stream_that_fails_is_cut_without_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        raise KeyError("oops")

    async def test() -> None:
        async with serving(App(x=streaming(chunks()))) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.head()
            assert await client.rest() == b"5\r\nfirst\r\n"
            exchange = await served.app.next_exchange()
            assert (exchange.status, exchange.error) == (200, "broken")

    run(test())
    assert "this is a bug: GET /x failed: KeyError: 'oops'" in capsys.readouterr().err


def test_a_stream_that_fails_to_close_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Unclosable:
        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            raise KeyError("stuck")

    async def test() -> None:
        async with serving(App(x=streaming(Unclosable()))) as served:
            assert (await (await served.connect()).get("/x")).body == b""

    run(test())
    assert "KeyError: 'stuck'" in capsys.readouterr().err


# Slow readers


def test_a_client_that_does_not_read_stops_the_stream_and_nobody_else() -> None:
    async def test() -> None:
        endless = Endless()
        async with serving(App(x=endless)) as served:
            slow = await served.connect()
            small_reader(slow)
            slow.writer.transport.pause_reading()
            await slow.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            connection = next(iter(served.server._shared.connections))
            await until(lambda: connection._flow.is_paused)
            n_made = endless.n_made
            other = await served.connect()
            for _ in range(20):
                assert (await other.get()).status == 200
            if connection._flow.is_paused:
                assert endless.n_made == n_made
            assert connection._transport.get_write_buffer_size() < 64 * 1024
            await slow.reset()
            await endless.until_closed()

    run(test())


def test_a_client_that_never_reads_is_dropped() -> None:
    async def test() -> None:
        endless = Endless()
        big = 10_000_000

        async def whole(request: Request, gone: asyncio.Event) -> Response:
            return Response(200, [], b"x" * big)

        async with serving(App(x=endless, y=whole), Limits(stalled_s=0.05)) as served:
            for path in (b"x", b"y"):
                client = await served.connect()
                small_reader(client)
                client.writer.transport.pause_reading()
                await client.send(b"GET /" + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
                exchange = await served.app.next_exchange()
                assert (exchange.status, exchange.error) == (499, "stalled")
                await served.until_connections(0)
            await endless.until_closed()

    run(test())


def test_a_client_that_reads_late_gets_everything() -> None:
    async def whole(request: Request, gone: asyncio.Event) -> Response:
        return Response(200, [], bytes(range(256)) * 80_000)

    async def test() -> None:
        async with serving(App(x=whole)) as served:
            client = await served.connect()
            client.writer.transport.pause_reading()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            connection = next(iter(served.server._shared.connections))
            await until(lambda: connection._flow.is_paused)
            await asyncio.sleep(0.01)
            client.writer.transport.resume_reading()
            assert (await client.response()).body == bytes(range(256)) * 80_000
            assert (await served.app.next_exchange()).stalled_s >= 0.01
            assert (await client.get("/", "Connection: close")).status == 200
            assert (await served.app.next_exchange()).stalled_s == 0
            assert await client.rest() == b""

    run(test())


# Heartbeats


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_silent_stream_is_filled_with_heartbeats(version: bytes) -> None:
    async def test() -> None:
        go = asyncio.Event()
        n_beats = 0

        def beat() -> bytes:
            nonlocal n_beats
            n_beats += 1
            if n_beats == 3:
                go.set()
            return sse.comment(f"queued {n_beats}")

        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await go.wait()
            yield b"data: 2\n\n"

        handler = streaming(chunks(), heartbeat_s=0.01, heartbeat=beat)
        async with serving(App(x=handler)) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/" + version + b"\r\nHost: a\r\n\r\n")
            got = await client.response()
            beats = b": queued 1\n\n: queued 2\n\n: queued 3\n\n"
            assert got.body == b"data: 1\n\n" + beats + b"data: 2\n\n"

    run(test())


def test_a_stream_that_speaks_needs_no_heartbeat() -> None:
    async def test() -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(10):
                await asyncio.sleep(0.01)
                yield b"data: 1\n\n"

        handler = streaming(chunks(), heartbeat_s=0.08, heartbeat=sse.comment)
        async with serving(App(x=handler)) as served:
            got = await (await served.connect()).get("/x")
            assert got.body == b"data: 1\n\n" * 10

    run(test())


def test_no_heartbeat_is_heaped_up_for_a_client_that_does_not_read() -> None:
    async def test() -> None:
        n_asked = 0

        def beat() -> bytes:
            nonlocal n_asked
            n_asked += 1
            return b"x"

        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * 10_000_000
            raise AssertionError("the client has not read the first")

        handler = streaming(chunks(), heartbeat_s=0.005, heartbeat=beat)
        async with serving(App(x=handler), Limits(stalled_s=0.1)) as served:
            client = await served.connect()
            small_reader(client)
            client.writer.transport.pause_reading()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await served.app.next_exchange()).error == "stalled"
            assert n_asked == 0

    run(test())


def test_a_heartbeat_that_fails_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        go = asyncio.Event()

        def beat() -> bytes:
            go.set()
            raise KeyError("no pulse")

        async def chunks() -> AsyncIterator[bytes]:
            await go.wait()
            yield b"done"

        handler = streaming(chunks(), heartbeat_s=0.005, heartbeat=beat)
        async with serving(App(x=handler)) as served:
            assert (await (await served.connect()).get("/x")).body == b"done"

    run(test())
    assert capsys.readouterr().err.count("no pulse") == 1


def test_a_heartbeat_on_a_lost_connection_is_the_last() -> None:
    """The transport is closing and the loop has not told so yet."""

    async def test() -> None:
        n_asked = 0
        ended = asyncio.Event()

        def beat() -> bytes:
            nonlocal n_asked
            n_asked += 1
            next(iter(served.server._shared.connections))._transport.abort()
            return b"x"

        async def chunks() -> AsyncIterator[bytes]:
            try:
                await asyncio.Event().wait()
                yield b"never"
            finally:
                ended.set()

        handler = streaming(chunks(), heartbeat_s=0.005, heartbeat=beat)
        async with serving(App(x=handler)) as served:
            client = await served.connect()
            await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.head()
            assert await client.rest() == b""
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
            assert n_asked == 1

    run(test())
