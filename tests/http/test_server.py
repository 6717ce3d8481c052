"""Listening, accepting under limits, and the stages of a shutdown."""

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator

import pytest
from serving import PATIENCE_S, App, Client, Served, run, serving, until

from caldrix.errors import RefusedError
from caldrix.http.messages import Limits, Request, Response, StreamResponse
from caldrix.http.server import HttpServer, make_room, open_listeners


class Held:
    """A handler that answers when released, and knows when it runs and how it ends."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.release = asyncio.Event()
        self.is_cancelled = False

    async def __call__(self, request: Request, gone: asyncio.Event) -> Response:
        self.running.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return Response(200, [], b"late")


async def hold(served: Served, held: Held) -> Client:
    """A client whose request is running."""
    client = await served.connect()
    await client.send(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n")
    await held.running.wait()
    return client


# Listening


def test_port_0_takes_a_free_port_and_a_taken_one_is_refused() -> None:
    (listener,) = open_listeners("127.0.0.1", 0)
    port = listener.getsockname()[1]
    assert port
    with pytest.raises(RefusedError, match=f"cannot listen on 127.0.0.1 port {port}: in use"):
        open_listeners("127.0.0.1", port)
    listener.close()
    open_listeners("127.0.0.1", port)[0].close()


@pytest.mark.parametrize(
    ("host", "reason"),
    [("no.such.host.invalid", "no.such.host.invalid"), ("x" * 70, "xxx"), ("192.0.2.1", "assign")],
)
def test_an_address_that_is_not_here_is_refused(host: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        open_listeners(host, 0)


def test_a_name_with_several_addresses_listens_on_one_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def two(*args: object, **more: object) -> list[tuple[object, ...]]:
        kinds = (socket.SOCK_STREAM, 0, "")
        first = (socket.AF_INET, *kinds, ("127.0.0.1", 0))
        return [first, first, (socket.AF_INET, *kinds, ("127.0.0.2", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    listeners = open_listeners("both", 0)
    names = [listener.getsockname() for listener in listeners]
    assert [name[0] for name in names] == ["127.0.0.1", "127.0.0.2"]
    assert names[0][1] == names[1][1]
    for listener in listeners:
        listener.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_it_serves_over_ipv6() -> None:
    async def test() -> None:
        app = App()
        server = HttpServer(app)
        try:
            host, port = await server.start("::1", 0)
        except RefusedError:
            pytest.skip("no IPv6 loopback here")
        client = Client(*await asyncio.open_connection(host, port))
        assert (await client.get("/six")).body == b"GET /six "
        await client.close()
        await server.shutdown(0)

    run(test())


# Accepting


def test_a_connection_beyond_the_limit_is_told_so() -> None:
    async def test() -> None:
        async with serving(App(), Limits(n_connections=2)) as served:
            first, second = await served.connect(), await served.connect()
            assert (await first.get()).status == (await second.get()).status == 200
            surplus = await served.connect()
            got = await surplus.response()
            assert (got.status, got.headers["connection"]) == (503, "close")
            assert b"2 connections are open already" in got.body
            assert await surplus.rest() == b""
            assert [e.error for e in served.app.exchanges] == [None, None, "surplus"]
            await surplus.close()
            await first.close()
            await served.until_connections(1)
            assert (await (await served.connect()).get()).status == 200
            assert (await second.get()).status == 200

    run(test())


def test_descriptors_are_there_for_all_connections() -> None:
    """And for those beyond that are told so: 1024 is what most systems give a program."""

    async def test() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_open = len(os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 60, hard))
        try:
            async with serving(App(), Limits(n_connections=50)) as served:
                kept = [await served.connect() for _ in range(50)]
                assert (await kept[-1].get()).status == 200
                assert (await (await served.connect()).response()).status == 503
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run(test())


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 1048576), (1216, 1048576)),
        ((256, resource.RLIM_INFINITY), (1216, resource.RLIM_INFINITY)),
        ((512, 600), (600, 600)),
        ((1216, 4096), None),
        ((600, 600), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    found: list[object] = []
    monkeypatch.setattr("resource.getrlimit", lambda kind: limits)
    monkeypatch.setattr("resource.setrlimit", lambda kind, value: found.append(value))
    make_room(1024)
    assert found == ([] if raised is None else [raised])


def test_far_beyond_the_limit_connections_are_closed_unheard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("caldrix.http.server._N_SURPLUS", 1)

    async def test() -> None:
        async with serving(App(), Limits(n_connections=1)) as served:
            assert (await (await served.connect()).get()).status == 200
            assert (await (await served.connect()).response()).status == 503
            assert await (await served.connect()).rest() == b""
            assert served.server.n_accepted == 3

    run(test())


@pytest.mark.parametrize("frees", [True, False])
def test_want_of_descriptors_does_not_end_accepting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], frees: bool
) -> None:
    monkeypatch.setattr("caldrix.http.server._SCARCE_RETRY_S", PATIENCE_S if frees else 0.02)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept
        failures = [OSError(errno.ECONNABORTED, "aborted"), OSError(errno.EMFILE, "too many")]

        async def failing(listener: socket.socket) -> object:
            if failures and served_once:
                raise failures.pop(0)
            return await accept(listener)

        served_once: list[bool] = []
        monkeypatch.setattr(loop, "sock_accept", failing)
        async with serving(App()) as served:
            first = await served.connect()
            served_once.append(True)
            assert (await first.get()).status == 200
            second = await served.connect()  # accepted by the call that already waits
            assert (await second.get()).status == 200
            third = await served.connect()
            if frees:
                await first.close()
            assert (await third.get()).status == 200

    run(test())
    assert capsys.readouterr().err.count("cannot accept a connection: too many") == 1


def test_a_socket_that_breaks_while_it_is_set_up_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()

        async def broken(factory: object, accepted: socket.socket) -> None:
            raise OSError("gone")

        async with serving(App()) as served:
            with monkeypatch.context() as patch:
                patch.setattr(loop, "connect_accepted_socket", broken)
                assert await (await served.connect()).rest() == b""
            assert (await (await served.connect()).get()).status == 200

    run(test())


# Shutdown


def test_idle_connections_close_at_once() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            silent, used = await served.connect(), await served.connect()
            assert (await used.get()).status == 200
            await served.until_connections(2)
            async with asyncio.timeout(PATIENCE_S):
                await served.server.shutdown(1000)
            assert served.server.n_connections == 0
            assert await silent.rest() == await used.rest() == b""
            with pytest.raises(OSError):  # noqa: PT011 - refused or reset
                await served.connect()

    run(test())


def test_a_running_request_is_finished_and_its_connection_closed() -> None:
    async def test() -> None:
        held = Held()
        async with serving(App(held=held)) as served:
            client = await hold(served, held)
            half = await served.connect()
            await half.send(b"GET /half HTTP/1.1\r\n")
            await (await served.connect()).get()  # by now the half request is here
            down = asyncio.create_task(served.server.shutdown(1000))
            await until(lambda: served.server._shared.is_stopping)
            await half.send(b"Host: a\r\n\r\n")
            got = await half.response()
            assert (got.body, got.headers["connection"]) == (b"GET /half ", "close")
            held.release.set()
            got = await client.response()
            assert (got.body, got.headers["connection"]) == (b"late", "close")
            assert await client.rest() == await half.rest() == b""
            async with asyncio.timeout(PATIENCE_S):
                await down

    run(test())


def test_a_request_behind_a_running_one_is_answered_before_the_end() -> None:
    async def test() -> None:
        held = Held()
        async with serving(App(held=held)) as served:
            client = await hold(served, held)
            await client.send(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
            await (await served.connect()).get()  # by now it is here
            down = asyncio.create_task(served.server.shutdown(1000))
            await until(lambda: served.server._shared.is_stopping)
            held.release.set()
            for body, ending in ((b"late", "keep-alive"), (b"GET /next ", "close")):
                got = await client.response()
                assert (got.body, got.headers["connection"]) == (body, ending)
            assert await client.rest() == b""
            async with asyncio.timeout(PATIENCE_S):
                await down

    run(test())


def test_what_outlasts_the_grace_is_cancelled() -> None:
    async def test() -> None:
        held = Held()
        is_closed = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.Event().wait()
            finally:
                is_closed.set()

        async def stream(request: Request, gone: asyncio.Event) -> StreamResponse:
            return StreamResponse(200, [], chunks())

        async with serving(App(held=held, stream=stream)) as served:
            client = await hold(served, held)
            listener = await served.connect()
            await listener.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            await listener.head()
            await listener.reader.readexactly(10)
            await served.server.shutdown(0.02)
            assert held.is_cancelled
            assert is_closed.is_set()
            assert await client.rest() == await listener.rest() == b""
            assert served.server.n_connections == 0

    run(test())


@pytest.mark.parametrize(
    "part", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"]
)
def test_a_request_that_does_not_come_whole_in_time_is_told_why(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caldrix.http.server._UNREAD_S", 0.02)

    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await client.send(part)
            await (await served.connect()).get()  # by now the part is here
            await served.server.shutdown(1000)
            got = await client.response()
            assert got.status == 408
            assert b"the server is shutting down" in got.body
            assert await client.rest() == b""

    run(test())


def test_a_second_shutdown_overtakes_the_first() -> None:
    async def test() -> None:
        held = Held()
        async with serving(App(held=held)) as served:
            client = await hold(served, held)
            first = asyncio.create_task(served.server.shutdown(1000))
            await asyncio.sleep(0)
            await served.server.shutdown(0)
            async with asyncio.timeout(PATIENCE_S):
                await first
            assert held.is_cancelled
            assert await client.rest() == b""

    run(test())


def test_a_lingering_connection_does_not_hold_up_the_end() -> None:
    async def test() -> None:
        async with serving(App(), Limits(drained_s=1000)) as served:
            client = await served.connect()
            await client.get("/", "Connection: close")
            async with asyncio.timeout(PATIENCE_S):
                await served.server.shutdown(1000)

    run(test())
