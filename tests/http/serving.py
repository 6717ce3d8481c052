"""A small application on a real socket, and a client that speaks raw bytes, for the HTTP tests."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from caldrix.http import sse
from caldrix.http.messages import (
    Exchange,
    Limits,
    Request,
    RequestHead,
    Response,
    StreamResponse,
)
from caldrix.http.server import HttpServer

Answer = Response | StreamResponse
Handler = Callable[[Request, asyncio.Event], Awaitable[Answer]]

PATIENCE_S = 20  # for what must come; only a failing test waits so long


async def until(holds: Callable[[], bool]) -> None:
    """Waits for something that no event tells of."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@dataclass
class Route:
    handler: Handler
    max_body_bytes: int = 1000

    async def __call__(self, request: Request, gone: asyncio.Event) -> Answer:
        return await self.handler(request, gone)


async def echo(request: Request, gone: asyncio.Event) -> Response:
    what = f"{request.head.method} {request.head.path} ".encode() + request.body
    return Response(200, [("Content-Type", "text/plain")], what)


async def three(request: Request, gone: asyncio.Event) -> StreamResponse:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield sse.event(str(number))

    return StreamResponse(200, list(sse.HEADERS), chunks())


class App:
    """`/` echoes, `/three` streams, `/refused` is refused at once; tests add their own routes."""

    def __init__(self, **handlers: Handler) -> None:
        self.routes = {
            name: Route(handler) for name, handler in {"three": three, **handlers}.items()
        }
        self.exchanges: list[Exchange] = []
        self.observed = asyncio.Event()

    def admit(self, head: RequestHead) -> Route | Response:
        if head.path == "/refused":
            return self.failure(404, "refused", head)
        return self.routes.get(head.path[1:], Route(echo))

    def failure(self, status: int, message: str, head: RequestHead | None) -> Response:
        body = {"status": status, "message": message, "path": head.path if head else None}
        return Response(status, [("Content-Type", "application/json")], json.dumps(body).encode())

    def decorate(self, head: RequestHead | None, response: Answer) -> None:
        response.headers.append(("X-Every", "1"))

    def observe(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.observed.set()

    async def next_exchange(self) -> Exchange:
        async with asyncio.timeout(PATIENCE_S):
            while not self.exchanges:
                self.observed.clear()
                await self.observed.wait()
        return self.exchanges.pop(0)


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection, in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, path: str = "/", *headers: str, method: str = "GET") -> "Answered":
        lines = [f"{method} {path} HTTP/1.1", "Host: a", *headers, "", ""]
        await self.send("\r\n".join(lines).encode())
        return await self.response(is_head=method == "HEAD")

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        fields = [line.split(": ", 1) for line in lines]
        names = [name.lower() for name, _ in fields]
        assert len(set(names)) == len(names), "a header twice"
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), dict(zip(names, (value for _, value in fields), strict=True))

    async def response(self, is_head: bool = False) -> Answered:
        status, headers = await self.head()
        assert not {"content-length", "transfer-encoding"} <= set(headers)
        async with asyncio.timeout(PATIENCE_S):
            if is_head or status in (100, 204, 304):
                body = b""
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif "transfer-encoding" in headers:
                body = await self.chunks()
            else:
                body = await self.reader.read()
        return Answered(status, headers, body)

    async def chunks(self) -> bytes:
        body = b""
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            assert data.endswith(b"\r\n")
            if not size:
                return body
            body += data[:-2]

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def half_close(self) -> None:
        self.writer.write_eof()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()
        await asyncio.sleep(0)


class Served:
    """A running server and the connections made to it."""

    def __init__(self, server: HttpServer, app: App, address: tuple[str, int]) -> None:
        self.server = server
        self.app = app
        self.host, self.port = address
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(self.host, self.port))
        self.clients.append(client)
        return client

    async def until_connections(self, n_connections: int) -> None:
        """Waits until so many are open on the server's side."""
        await until(lambda: self.server.n_connections == n_connections)


@asynccontextmanager
async def serving(app: App, limits: Limits | None = None) -> AsyncIterator[Served]:
    server = HttpServer(app, limits, app.observe)
    served = Served(server, app, await server.start("127.0.0.1", 0))
    try:
        yield served
    finally:
        for client in served.clients:
            await client.close()
        await server.shutdown(0)
        assert server.n_connections == 0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs one test in its own loop; whatever the loop complains of fails it."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context))
        await test
        assert len(asyncio.all_tasks()) == 1, "tasks left behind"

    asyncio.run(watched())
    assert complaints == []
