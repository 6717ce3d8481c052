"""One connection over a real socket: keep-alive, pipelining, the order of checks, times, ends."""

import asyncio
import socket

import pytest
from serving import PATIENCE_S, Answer, App, Client, Route, Served, echo, run, serving, until

from caldrix.http.messages import Limits, Request, RequestHead, Response, StreamResponse

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n"


async def answer_of(client: Client, data: bytes) -> Answer:
    await client.send(data)
    return await client.response()


# Keep-alive and pipelining


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            for path in ("/a", "//b/", "/c"):
                got = await client.get(path)
                assert (got.status, got.headers["connection"]) == (200, "keep-alive")
                assert got.headers["keep-alive"] == "timeout=75"
                assert got.headers["server"].startswith("caldrix/")
                assert got.headers["date"].endswith("GMT")
                assert got.headers["x-every"] == "1"
                assert got.body == f"GET {path.replace('//', '/').removesuffix('/')} ".encode()
            assert served.server.n_accepted == 1

    run(test())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: Close\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
    ],
)
def test_a_connection_closes_when_asked_to(request_bytes: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await answer_of(client, request_bytes + GET % b"never")
            assert (got.status, got.headers["connection"]) == (200, "close")
            assert "keep-alive" not in got.headers
            assert await client.rest() == b""

    run(test())


def test_http_1_0_may_keep_its_connection() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            for _ in range(2):
                got = await answer_of(client, b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                assert got.headers["connection"] == "keep-alive"

    run(test())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            body = POST % b"Content-Length: 2\r\n" + b"hi"
            await client.send(GET % b"1" + GET % b"three" + body + b"\r\n" + GET % b"refused")
            bodies = [(await client.response()).body for _ in range(3)]
            assert bodies == [b"GET /1 ", b"data: 0\n\ndata: 1\n\ndata: 2\n\n", b"POST / hi"]
            assert (await client.response()).status == 404
            assert (await client.get("/last")).body == b"GET /last "

    run(test())


def test_the_next_request_waits_for_the_answer_before_it() -> None:
    async def test() -> None:
        running, release = [], asyncio.Event()

        async def wait(request: Request, gone: asyncio.Event) -> Response:
            running.append(request.head.query)
            await release.wait()
            return Response(200, [], request.head.query.encode())

        async with serving(App(wait=wait)) as served:
            client = await served.connect()
            other = await served.connect()
            await client.send(GET % b"wait?1" + GET % b"wait?2")
            assert (await other.get()).status == 200
            assert running == ["1"]
            release.set()
            assert [(await client.response()).body for _ in range(2)] == [b"1", b"2"]

    run(test())


# Bodies


def test_bodies_come_whole_by_length_and_in_chunks() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            exact = POST % b"Content-Length: 1000\r\n" + b"x" * 1000
            assert (await answer_of(client, exact)).body == b"POST / " + b"x" * 1000
            chunked = POST % b"Transfer-Encoding: chunked\r\n" + b"3;a=b\r\nabc\r\n1\r\nd\r\n"
            for i in range(len(chunked)):
                await client.send(chunked[i : i + 1])
            got = await answer_of(client, b"0\r\nX-Trailer: 1\r\n\r\n")
            assert got.body == b"POST / abcd"

    run(test())


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST % b"Content-Length: 1001\r\n",
        POST % b"Content-Length: 1001\r\nExpect: 100-continue\r\n",
        POST % b"Content-Length: 99999999999999999999\r\n",
        POST % b"Transfer-Encoding: chunked\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n",
    ],
)
def test_a_body_over_the_limit_is_refused_before_it_is_read(request_bytes: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await answer_of(client, request_bytes)
            assert (got.status, got.headers["connection"]) == (413, "close")
            await client.send(b"x" * 100_000 + GET % b"smuggled")
            assert await client.rest() == b""
            assert (await served.app.next_exchange()).error in ("limit", "length")

    run(test())


def test_a_client_that_sends_everything_first_still_reads_the_413() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(POST % b"Content-Length: 6000000\r\n" + b"x" * 6_000_000)
            assert (await client.response()).status == 413
            assert await client.rest() == b""

    run(test())


def test_what_follows_a_refusal_is_discarded_up_to_a_bound() -> None:
    async def test() -> None:
        limits = Limits(drained_bytes=100_000, drained_s=PATIENCE_S)
        async with serving(App(), limits) as served:
            client = await served.connect()
            assert (await answer_of(client, POST % b"Content-Length: 60000000\r\n")).status == 413
            with pytest.raises(ConnectionError):  # the server has closed
                await client.send(b"x" * 50_000_000)

    run(test())


def test_a_client_that_never_closes_is_not_waited_for_long() -> None:
    async def test() -> None:
        async with serving(App(), Limits(drained_s=0.02)) as served:
            client = await served.connect()
            assert (await client.get("/", "Connection: close")).status == 200
            await served.until_connections(0)

    run(test())


# Expect


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
def test_continue_is_sent_once_the_request_is_admitted(value: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(POST % (b"Content-Length: 2\r\nExpect: " + value + b"\r\n"))
            assert (await client.head())[0] == 100
            assert (await answer_of(client, b"hi")).body == b"POST / hi"
            assert (await client.get()).status == 200

    run(test())


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST % b"Content-Length: 2\r\nExpect: 100-continue\r\n" + b"hi",  # has it already
        POST % b"Content-Length: 0\r\nExpect: 100-continue\r\n",
        b"POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi",
        b"POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: the worst\r\n\r\nhi",
    ],
)
def test_continue_is_not_sent_to_a_client_that_does_not_wait(request_bytes: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            assert (await answer_of(await served.connect(), request_bytes)).status == 200

    run(test())


@pytest.mark.parametrize("value", [b"200-ok", b"100-continue, x", b""])
def test_another_expectation_is_refused(value: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            expect = b"Content-Length: 2\r\nExpect: " + value + b"\r\n"
            got = await answer_of(client, POST % expect)
            assert (got.status, got.headers["connection"]) == (417, "close")

    run(test())


# Refusals before the body


def test_a_refused_request_with_a_small_body_keeps_its_connection() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            length = b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"
            got = await answer_of(client, length)
            assert (got.status, got.headers["connection"]) == (404, "keep-alive")
            await client.send(b"x" * 5000)
            assert (await client.get("/next")).body == b"GET /next "

    run(test())


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 300000\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nExpect: 100-continue\r\n",
    ],
)
def test_a_refused_request_with_another_body_closes(framing: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(b"POST /refused HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n")
            got = await client.response()
            assert (got.status, got.headers["connection"]) == (404, "close")
            assert await client.rest() == b""

    run(test())


def test_a_refused_body_that_does_not_come_ends_the_connection() -> None:
    async def test() -> None:
        async with serving(App(), Limits(body_gap_s=0.02)) as served:
            for leaves in (False, True):
                client = await served.connect()
                length = b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
                assert (await answer_of(client, length)).status == 404
                if leaves:
                    client.half_close()
                assert await client.rest() == b""
                exchange = await served.app.next_exchange()
                assert (exchange.status, exchange.error) == (404, None)

    run(test())


def test_an_error_closes_and_is_told_to_the_application() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await answer_of(client, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n" + GET % b"next")
            assert (got.status, got.headers["connection"]) == (400, "close")
            assert b"malformed header line" in got.body
            assert await client.rest() == b""
            exchange = await served.app.next_exchange()
            assert (exchange.status, exchange.error, exchange.head) == (400, "header", None)

    run(test())


def test_connect_is_no_method_here() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            got = await answer_of(client, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")
            assert (got.status, got.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")

    run(test())


def test_tls_is_closed_without_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(b"\x16")
            await client.send(b"\x03\x01\x02\x00\x01\x00")
            assert await client.rest() == b""
            assert (await served.app.next_exchange()).error == "tls"

    run(test())
    assert capsys.readouterr().err == "caldrix: TLS handshake on a plain HTTP port\n"


# Times


def test_a_head_that_never_ends_is_answered_with_408() -> None:
    async def test() -> None:
        async with serving(App(), Limits(head_s=0.03)) as served:
            client = await served.connect()
            got = await answer_of(client, b"GET / HTTP/1.1\r\n")
            assert (got.status, got.headers["connection"]) == (408, "close")

    run(test())


@pytest.mark.parametrize("before", [b"", b"\r\n", GET % b""])
def test_an_idle_connection_is_closed_without_an_answer(before: bytes) -> None:
    async def test() -> None:
        async with serving(App(), Limits(idle_s=0.03)) as served:
            client = await served.connect()
            await client.send(before)
            if before.startswith(b"GET"):
                await client.response()
            assert await client.rest() == b""

    run(test())


@pytest.mark.parametrize("limits", [Limits(body_gap_s=0.03), Limits(body_s=0.03)])
def test_a_body_that_comes_too_slowly_is_answered_with_408(limits: Limits) -> None:
    async def test() -> None:
        async with serving(App(), limits) as served:
            client = await served.connect()
            got = await answer_of(client, POST % b"Content-Length: 5\r\n" + b"hi")
            assert (got.status, got.headers["connection"]) == (408, "close")
            assert b'"path": "/"' in got.body

    run(test())


# Clients that leave


@pytest.mark.parametrize(
    "part", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n", POST % b"Content-Length: 5\r\n" + b"hi"]
)
def test_the_end_inside_a_request_is_not_answered(part: bytes) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(part)
            client.half_close()
            assert await client.rest() == b""
            exchange = await served.app.next_exchange()
            assert (exchange.status, exchange.error) == (499, "client_closed")

    run(test())


def test_requests_sent_before_half_closing_are_answered() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(GET % b"1" + GET % b"2")
            client.half_close()
            assert (await client.response()).body == b"GET /1 "
            assert (await client.response()).body == b"GET /2 "
            assert await client.rest() == b""

    run(test())


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
@pytest.mark.parametrize("behind", [b"", GET % b"next", b"x" * 40_000])
def test_a_handler_learns_that_the_client_is_gone(way: str, behind: bytes) -> None:
    async def test() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def wait(request: Request, gone: asyncio.Event) -> Response:
            started.set()
            async with asyncio.timeout(PATIENCE_S):
                await gone.wait()
            ended.set()
            return Response(200)

        async with serving(App(wait=wait)) as served:
            client = await served.connect()
            await client.send(GET % b"wait" + behind)
            await started.wait()
            if way == "half_close":
                client.half_close()
            else:
                await getattr(client, way)()
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
            exchange = await served.app.next_exchange()
            assert exchange.status == 499
            if way == "half_close":
                await client.close()
            await served.until_connections(0)

    run(test())


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
def test_a_request_that_was_read_ahead_whole_may_be_left_too(way: str) -> None:
    async def test() -> None:
        first, second, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hold(request: Request, gone: asyncio.Event) -> Response:
            first.set()
            await release.wait()
            return Response(200)

        async def wait(request: Request, gone: asyncio.Event) -> Response:
            second.set()
            async with asyncio.timeout(PATIENCE_S):
                await gone.wait()
            return Response(200)

        app = App(hold=hold, wait=wait)
        app.routes["wait"].max_body_bytes = 100_000
        async with serving(app) as served:
            client = await served.connect()
            await client.send(GET % b"hold")
            await first.wait()
            head = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n"
            await client.send(head + b"x" * 90_000)
            connection = next(iter(served.server._shared.connections))
            await until(lambda: connection._reader.n_buffered == len(head) + 90_000)
            release.set()
            await second.wait()
            if way == "half_close":
                client.half_close()
            else:
                await getattr(client, way)()
            await app.next_exchange()
            assert (await app.next_exchange()).status == 499

    run(test())


def test_reading_ahead_is_bounded_while_a_request_is_answered() -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def wait(request: Request, gone: asyncio.Event) -> Response:
            await release.wait()
            return Response(200)

        async with serving(App(wait=wait)) as served:
            client = await served.connect()
            many = GET % b"next" * 250_000  # 9 MB: more than the kernel's buffers hold
            client.writer.write(GET % b"wait" + many)
            connection = next(iter(served.server._shared.connections))
            await until(lambda: connection._transport._paused)  # type: ignore[attr-defined]
            assert connection._reader.n_buffered <= 64 * 1024 + 64 * 1024
            release.set()
            for _ in range(500):
                assert (await client.response()).status == 200
            await client.reset()

    run(test())


# One client's haste, others' time


HASTY = {
    "requests": GET % b"x" * 1500,
    "chunks": POST % b"Transfer-Encoding: chunked\r\n" + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n",
}


@pytest.mark.parametrize("name", HASTY)
def test_what_comes_at_once_is_read_in_turns_with_others(name: str) -> None:
    async def test() -> None:
        n_turns = 0

        async def count_turns() -> None:
            nonlocal n_turns
            while True:
                n_turns += 1
                await asyncio.sleep(0)

        app = App()
        app.routes[""] = Route(echo, max_body_bytes=20_000)
        async with serving(app) as served:
            client = await served.connect()
            assert (await client.get()).status == 200
            connection = next(iter(served.server._shared.connections))
            # All of it is here before the first byte is looked at.
            connection._reader.feed(HASTY[name])
            connection.stop()
            others = asyncio.create_task(count_turns())
            assert (await client.response()).status == 200
            for _ in range(1499 if name == "requests" else 0):
                await client.response()
            others.cancel()
            assert n_turns > (1000 if name == "requests" else 30)

    run(test())


# Applications that fail


async def fails(request: Request, gone: asyncio.Event) -> Response:
    raise KeyError("oops")


async def cancels_itself(request: Request, gone: asyncio.Event) -> Response:
    raise asyncio.CancelledError("oops")


async def bad_header(request: Request, gone: asyncio.Event) -> Response:
    return Response(200, [("X-Evil", "a\r\nX-Injected: 1")])


async def bad_stream_header(request: Request, gone: asyncio.Event) -> StreamResponse:
    async def chunks():  # type: ignore[no-untyped-def]
        yield b"never"

    return StreamResponse(200, [("X-Evil", "\u20ac")], chunks())


class AdmitFails(App):
    def admit(self, head: RequestHead) -> Route | Response:
        raise KeyError("oops")


@pytest.mark.parametrize(
    "app",
    [
        lambda: App(x=fails),
        lambda: App(x=cancels_itself),
        lambda: App(x=bad_header),
        lambda: App(x=bad_stream_header),
        lambda: AdmitFails(),
    ],
)
def test_an_exception_is_a_500_and_the_connection_goes_on(
    app: type[App], capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        async with serving(app()) as served:
            client = await served.connect()
            for _ in range(2):
                got = await client.get("/x")
                assert (got.status, got.headers["connection"]) == (500, "keep-alive")
                assert b"internal error" in got.body
                assert b"oops" not in got.body

    run(test())
    err = capsys.readouterr().err
    assert err.count("caldrix: this is a bug: GET /x failed: ") == 2
    assert "Traceback" not in err


def test_an_application_that_cannot_even_fail_closes(capsys: pytest.CaptureFixture[str]) -> None:
    class Hopeless(App):
        def failure(self, status: int, message: str, head: RequestHead | None) -> Response:
            raise ValueError("no words")

    async def test() -> None:
        async with serving(Hopeless(x=fails)) as served:
            for request_bytes in (GET % b"x", b"nonsense\r\n"):
                client = await served.connect()
                await client.send(request_bytes)
                assert await client.rest() == b""
            client = await served.connect()
            assert (await client.get()).status == 200

    run(test())
    err = capsys.readouterr().err
    assert "this is a bug: a connection failed: ValueError: no words" in err


# Many


def test_two_hundred_connections_at_once() -> None:
    async def one(served: Served, number: int) -> None:
        client = await served.connect()
        for turn in range(3):
            got = await client.get(f"/{number}/{turn}")
            assert got.body == f"GET /{number}/{turn} ".encode()
        if number % 4 == 0:
            await client.reset()

    async def test() -> None:
        async with serving(App()) as served:
            idle = [await served.connect() for _ in range(100)]
            await asyncio.gather(*(one(served, number) for number in range(100)))
            assert (await idle[50].get()).status == 200
            assert served.server.n_connections == 175

    run(test())


def test_a_peer_address_reaches_the_application() -> None:
    async def test() -> None:
        async def peer(request: Request, gone: asyncio.Event) -> Response:
            return Response(200, [], request.head.peer.encode())

        async with serving(App(peer=peer)) as served:
            assert (await (await served.connect()).get("/peer")).body == b"127.0.0.1"
            exchange = await served.app.next_exchange()
            assert (exchange.status, exchange.bytes_in) == (200, len(GET % b"peer"))
            assert exchange.bytes_out > 100
            assert socket.inet_aton(exchange.head.peer) if exchange.head else False

    run(test())
