"""A model on a port: engine, application and HTTP server started and stopped in the right order.

The one place where the three meet; `caldrix serve` and programs that embed Inferno both use it.
A `Front` may listen before there is a model. Owns no signals, prints nothing and leaves the model
open: it belongs to the caller.
"""

import asyncio
import socket
from types import TracebackType
from typing import Self

from caldrix.api.answers import ModelAnswers
from caldrix.api.application import Application
from caldrix.api.http_counts import HttpCounts
from caldrix.api.loading import LoadingAnswers
from caldrix.api.service import Service, Settings
from caldrix.engine.engine import Engine
from caldrix.engine.load import LoadedModel
from caldrix.http.messages import Limits
from caldrix.http.server import HttpServer, open_listeners

GRACE_S = 5.0  # for running replies when a server is closed
WRITTEN_S = 1.0  # for the ends of those that were cut to be read


class Front:
    """An address that is answered from `start` on: that the model called `name` is loading, until a
    `Server` that was given this front starts and answers instead, on the same connections."""

    def __init__(self, name: str, host: str, port: int, settings: Settings) -> None:
        self.counts = HttpCounts(lambda: (self.http.n_connections, self.http.n_accepted))
        self.application = Application(
            settings.access, LoadingAnswers(name), self.counts, settings.access_log
        )
        self.http = HttpServer(self.application, Limits(), self.application.observe)
        self._host = host
        self.port = port  # after `start` the one in use
        self.is_listening = False

    async def start(self, listeners: list[socket.socket]) -> None:
        """Listens on sockets from `http.server.open_listeners`."""
        _, self.port = self.http.start_on(listeners)
        self.is_listening = True

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8425`; an IPv6 address in brackets."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def close(self, grace_s: float) -> None:
        await self.http.shutdown(grace_s)


class Server:
    """Listens from `start` to `close`, or inside `async with`."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Settings | None = None,
        engine: Engine | None = None,
        front: Front | None = None,
    ) -> None:
        """`engine` is one that the caller has started and will close; None: one of its own.
        `front` listens already; host and port are then its own."""
        settings = settings or Settings()
        self._owns_engine = engine is None
        self._engine = engine or Engine(
            model.program, settings.queue_depth, settings.admission, settings.telemetry
        )
        self._service = Service(model, self._engine, settings)
        self._host = host
        self._front = front or Front(model.name, host, port, settings)
        self._answers = ModelAnswers(self._service, self._front.counts)

    async def start(self, listeners: list[socket.socket] | None = None) -> None:
        """Listens on sockets from `http.server.open_listeners`, else on host and port, which may
        be refused; not where its front listens already."""
        if listeners is None and not self._front.is_listening:
            listeners = await asyncio.to_thread(open_listeners, self._host, self._front.port)
        if self._owns_engine:
            await self._engine.start()
        self._front.application.answers = self._answers
        if listeners is not None:
            await self._front.start(listeners)

    @property
    def port(self) -> int:
        return self._front.port

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8425`; an IPv6 address in brackets."""
        return self._front.url

    async def close(self, grace_s: float = GRACE_S) -> None:
        """No new requests; waiting ones are refused, running ones get `grace_s` to finish.

        A second call may cut short the grace of the first.
        """
        self._service.is_draining = True
        if self._owns_engine:
            # Together: no more connections from now on, and answers are written to their end.
            await asyncio.gather(
                self._front.close(grace_s + WRITTEN_S), self._engine.close(grace_s)
            )
        else:
            await self._front.close(grace_s)
        self._service.close()

    async def failed(self) -> str:
        """Waits until the engine cannot go on, or is closed; why, empty when it was closed."""
        await self._engine.ended()
        return self._engine.failed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
