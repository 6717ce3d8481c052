"""Listening, accepting, and an orderly end.

Owns the listening sockets and the set of open connections; knows nothing of what is said on them.
Start, run and shut down are the three methods of HttpServer, in that order.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Callable

from caldrix import log
from caldrix.errors import RefusedError
from caldrix.http.connection import Connection, Shared
from caldrix.http.messages import Application, Exchange, Limits

BACKLOG = 512

# Beyond the limit of connections this many more are open to be told so; the rest is closed unheard.
_N_SURPLUS = 64

# Descriptors that are no connection: listeners, the model's files, logs, the loop's own.
_N_OTHER_FILES = 128

# accept() failed for want of descriptors or memory: that passes.
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_SCARCE_RETRY_S = 1.0

# How long a request that has begun to arrive is still read when the server stops.
_UNREAD_S = 1.0

# How long a cancelled connection may take to clean up before the shutdown goes on without it.
_CLEAN_UP_S = 5.0


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Bound sockets for every address of `host`, all on one port; port 0 takes a free one.

    Apart from `HttpServer.start`, so that a taken port is refused before anything slow.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RefusedError(f"cannot listen on {host!r}: {error}") from error
    listeners: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            # Port 0 was given a number by the first address.
            taken = listeners[0].getsockname()[1] if listeners else port
            listener = socket.socket(family, kind, proto)
            listeners.append(listener)
            _bind(listener, family, (address[0], taken, *address[2:]))
    except OSError as error:
        for listener in listeners:
            listener.close()
        reason = "in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise RefusedError(f"cannot listen on {host} port {port}: {reason}") from error
    return listeners


def _bind(listener: socket.socket, family: int, address: tuple[object, ...]) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(BACKLOG)


def make_room(n_connections: int) -> None:
    """Raises the soft limit of descriptors, as far as the hard one lets it, to what so many
    connections need: most systems start a program with 1024 or fewer, and one that has none left
    can no more refuse a client than serve it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n_connections + _N_SURPLUS + _N_OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpServer:
    """Serves one application on one port; lives in the loop that called `start`."""

    def __init__(
        self,
        application: Application,
        limits: Limits | None = None,
        observe: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self._shared = Shared(application, limits or Limits(), observe)
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self.n_accepted = 0  # since the start

    @property
    def n_connections(self) -> int:
        return len(self._shared.connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns the address and port in use."""
        return self.start_on(await asyncio.to_thread(open_listeners, host, port))

    def start_on(self, listeners: list[socket.socket]) -> tuple[str, int]:
        """Takes over sockets from `open_listeners`."""
        make_room(self._shared.limits.n_connections)
        self._listeners = listeners
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(listener)) for listener in listeners]
        host, port = listeners[0].getsockname()[:2]
        return host, port

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts until cancelled by `shutdown`."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)  # woken by a client
            except OSError as error:
                if error.errno in _SCARCE:
                    await self._wait_for_descriptors(error)
                continue  # the client left before it was accepted
            self.n_accepted += 1
            await self._connect(accepted)

    async def _wait_for_descriptors(self, error: OSError) -> None:
        log.status(f"cannot accept a connection: {error.strerror}; waiting for one to end")
        self._shared.freed.clear()
        try:
            async with asyncio.timeout(_SCARCE_RETRY_S):  # others of the process may free some too
                await self._shared.freed.wait()
        except TimeoutError:
            pass

    async def _connect(self, accepted: socket.socket) -> None:
        surplus = self.n_connections - self._shared.limits.n_connections
        if surplus >= _N_SURPLUS:
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        try:  # TCP_NODELAY is set by the transport
            await loop.connect_accepted_socket(
                lambda: Connection(self._shared, is_surplus=surplus >= 0), accepted
            )
        except OSError:
            accepted.close()

    async def shutdown(self, grace_s: float) -> None:
        """1. accepts no more and closes idle connections; 2. lets running requests finish for
        `grace_s` seconds; 3. cancels the rest. A second call with a shorter grace overtakes the
        first."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._shared.is_stopping = True
        self._shared.reads_until = asyncio.get_running_loop().time() + _UNREAD_S
        for connection in list(self._shared.connections):
            connection.stop()
        tasks = list(self._shared.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)
        # Every task has aborted its transport, whose loss the loop tells in its next turn.
        await asyncio.sleep(0)
