"""A server in a thread of the test's process, and a client that keeps nothing between requests."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caldrix.api.service import Settings
from caldrix.api.serving import Server
from caldrix.engine.load import LoadedModel, LoadOptions, load_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert isinstance(error, dict)
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream, the last being the text `[DONE]`."""
        found = []
        for block in self.body.decode().split("\n\n"):
            if block.startswith("data: "):
                data = block.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
        return found


class Served:
    """What tests ask a server."""

    def __init__(self, server: Server, model: LoadedModel, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.model = model
        self.loop = loop

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def chat(self, content: Any = "hi", **fields: Any) -> Answer:
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        body = {"model": self.model.name, "messages": messages, **fields}
        return self.ask("POST", CHAT, body)

    def complete(self, prompt: Any, **fields: Any) -> Answer:
        return self.ask("POST", COMPLETIONS, {"model": self.model.name, "prompt": prompt, **fields})

    def opened_stream(self, **fields: Any) -> socket.socket:
        """A connection on which the reply of a chat has begun."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": self.model.name, "messages": messages, "stream": True, **fields}
        data = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        assert client.recv(12) == b"HTTP/1.1 200"
        return client

    def on_loop(self, work: Any) -> Any:
        """Runs a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@contextmanager
def serving(
    path: Path, settings: Settings | None = None, *, context: int = 512, name: str | None = None
) -> Iterator[Served]:
    """The model at `path`, served until the block ends."""
    options = LoadOptions(max_context=context, threads=1, name=name)
    model = load_model(path, options, lambda line: None)
    started = threading.Event()
    found: list[Served] = []

    async def run() -> None:
        server = Server(model, settings=settings)
        await server.start()
        stop = asyncio.Event()
        found.append(Served(server, model, asyncio.get_running_loop()))
        stops.append(stop)
        started.set()
        await stop.wait()  # set by the test's thread when the block ends
        await server.close(0.0)

    stops: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(30)
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(stops[0].set)
        thread.join(30)
        model.program.close()
    assert not thread.is_alive()
