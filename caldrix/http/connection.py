"""One client's connection, first byte to last: read a request, have it answered, again.

Owns the order of the checks of a request, the times a client is given, and how a connection ends;
knows nothing of what a path means. The transport's callbacks only move bytes and set flags; one
task runs straight through the requests. Every wait has a deadline or says who wakes it.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import cast

from caldrix import log
from caldrix.http.coding import accepted, content_coding, decode
from caldrix.http.flow import FlowControl
from caldrix.http.grammar import is_persistent
from caldrix.http.messages import (
    Application,
    Endpoint,
    Exchange,
    Limits,
    Request,
    RequestError,
    RequestHead,
    Response,
    StreamResponse,
)
from caldrix.http.protocol import BodyPart, EndOfRequest, RequestReader
from caldrix.http.reply import CLIENT_LEFT, AnswerBroken, ClientGone, Reply, report

# What one read from a socket may bring; one buffer serves all connections, since its bytes are
# taken before the loop goes on.
SCRATCH_BYTES = 64 * 1024

# A body whose pieces are all there already, of a byte each perhaps, lets others run after so many.
_PIECES_A_TURN = 64


@dataclass(slots=True)
class Shared:
    """What all connections of a server have in common."""

    application: Application
    limits: Limits
    observe: Callable[[Exchange], None]
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(SCRATCH_BYTES)))
    is_stopping: bool = False
    # The loop time up to which anything is read: one still on its way when the server stops.
    reads_until: float = math.inf
    connections: set["Connection"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # Set whenever a connection has ended: a descriptor is free.
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class _Next(Enum):
    """How a connection goes on after an exchange."""

    REQUEST = auto()
    LINGER = auto()  # close so that the answer surely arrives
    DROP = auto()  # close at once: nobody is there, or nothing was said


class Connection(asyncio.BufferedProtocol):
    def __init__(self, shared: Shared, *, is_surplus: bool) -> None:
        # server
        self._shared = shared
        self._limits = shared.limits
        # connection; transport, flow, reader, reply and task come with connection_made
        self._is_surplus = is_surplus
        self._arrived = asyncio.Event()  # bytes, the end of the stream, or the connection's loss
        self._is_eof = False
        self._n_discarded: int | None = None  # not None: bytes are no longer read but counted
        # request
        self._gone = asyncio.Event()
        self._is_between = False  # waits for a request's first byte
        self._begun_at = 0.0

    # The transport's callbacks: bytes and flags only.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(self._limits, peer[0] if isinstance(peer, tuple) else "")
        self._flow = FlowControl(self._transport, self._limits.stalled_s)
        self._reply = Reply(self._transport, self._flow, self._shared.application)
        self._shared.connections.add(self)
        task = self._loop.create_task(self._run())
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._n_discarded is not None:
            self._n_discarded += nbytes
        else:
            self._reader.feed(self._shared.scratch[:nbytes])
            if self._reader.n_buffered > self._limits.pipelined_bytes:
                # While a request is answered. Leaving is then seen at the next write only.
                self._transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool:
        """True: what is already here is still answered. A client that shut down its writing side
        and one that closed look the same, so a long answer is not worth going on with."""
        self._leave()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.freed.set()
        self._leave()
        self._flow.resume()

    def pause_writing(self) -> None:
        self._flow.pause()

    def resume_writing(self) -> None:
        self._flow.resume()

    def _leave(self) -> None:
        self._is_eof = True
        self._arrived.set()
        self._gone.set()
        self._reply.leave()

    def stop(self) -> None:
        """The server is stopping: wakes the task, which ends if no request has begun."""
        self._arrived.set()

    # The connection's task.

    async def _run(self) -> None:
        try:
            if self._is_surplus:
                after = await self._refuse_surplus()
            else:
                after = _Next.REQUEST
            while after is _Next.REQUEST:
                after = await self._exchange()
                await asyncio.sleep(0)  # a client with a thousand requests holds up nobody
            if after is _Next.LINGER:
                await self._linger()
        except ConnectionError:
            pass  # gone, or it stopped reading; the exchange has been observed
        except Exception as error:
            report(error, self._reply.head)
        finally:
            self._transport.abort()

    async def _exchange(self) -> _Next:
        """Reads one request and has it answered."""
        self._gone = asyncio.Event()
        self._reply = Reply(self._transport, self._flow, self._shared.application)
        if self._is_eof:
            self._leave()
        n_read = self._reader.n_read
        self._begun_at = self._loop.time()
        error_kind: str | None = None
        try:
            head = await self._read_head()
            if head is None:
                return _Next.LINGER
            self._reply.head = head
            after = await self._answer(head)
        except RequestError as error:
            error_kind = error.kind
            after = await self._refuse(error)
        except ClientGone:
            error_kind = "left" if self._reply.status else "client_closed"
            self._reply.status = CLIENT_LEFT
            raise
        except ConnectionError:
            error_kind = "stalled"
            self._reply.status = CLIENT_LEFT
            raise
        except AnswerBroken:
            error_kind = "broken"
            after = _Next.DROP
        finally:
            self._observe(error_kind, self._reader.n_read - n_read)
        return after

    def _observe(self, error: str | None, n_bytes_in: int) -> None:
        reply = self._reply
        if error is None and not reply.status:
            return  # no request came, or the server ended the connection first
        was_left = reply.status and reply.is_gone and not reply.is_delivered
        status = CLIENT_LEFT if was_left else reply.status
        seconds = self._loop.time() - self._begun_at
        self._shared.observe(
            Exchange(
                reply.head,
                status,
                error,
                n_bytes_in,
                reply.n_bytes,
                seconds,
                reply.waited_s,
                reply.headers,
            )
        )

    async def _read_head(self) -> RequestHead | None:
        """The next head; None when the client left or sent nothing for long."""
        deadline = self._loop.time() + self._limits.idle_s
        self._is_between = True
        while (event := self._reader.next_event()) is None:
            if self._is_between and not self._reader.is_idle:
                self._is_between = False
                self._begun_at = self._loop.time()
                deadline = self._begun_at + self._limits.head_s
            if self._is_between and (self._is_eof or self._shared.is_stopping):
                return None
            if self._is_eof:
                raise ClientGone("the client closed inside a request head")
            if not await self._more(deadline):
                if self._is_between:
                    return None
                seconds = f"{self._limits.head_s:g} s"
                raise self._too_slow(f"request head not complete within {seconds}")
        self._is_between = False
        return cast(RequestHead, event)

    async def _more(self, deadline: float) -> bool:
        """Waits for bytes, the end of the stream or the loss of the connection, each of which sets
        `_arrived`; False at the deadline, where a timer does."""
        self._arrived.clear()
        self._transport.resume_reading()
        deadline = min(deadline, self._shared.reads_until)
        timer = self._loop.call_at(deadline, self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()
        return self._loop.time() < deadline

    async def _answer(self, head: RequestHead) -> _Next:
        """From the head on, in the order of the checks."""
        reply = self._reply
        is_kept = is_persistent(head.version, head.headers) and not self._shared.is_stopping
        reply.idle_s = self._limits.idle_s if is_kept else None
        endpoint = self._admit(head)
        if isinstance(endpoint, Response):
            return await self._turn_away(head, endpoint)
        self._check_length(endpoint.max_body_bytes)
        expects = _expects_continue(head)
        has_body = self._reader.declared_length != 0
        try:
            coding = content_coding(head.headers) if has_body else None
        except RequestError as error:
            return await self._turn_away(head, self._refusal(error))
        if expects and has_body and not self._reader.n_buffered:
            reply.allow_body()
        body = await self._read_body(endpoint.max_body_bytes)
        self._listen()
        if coding is not None:
            body = await asyncio.to_thread(decode, coding, body, endpoint.max_body_bytes)
        await self._send(await self._call(endpoint, Request(head, body)))
        return self._after()

    async def _send(self, response: Response | StreamResponse) -> None:
        """A server that is stopping says that the connection ends, unless the next request is here
        already."""
        if self._shared.is_stopping and not self._reader.n_buffered:
            self._reply.idle_s = None
        await self._reply.send(response)

    def _listen(self) -> None:
        """Goes on reading while the request is answered, to learn that the client left: it may
        have stopped when this request itself was all that it had read ahead."""
        if self._reader.n_buffered <= self._limits.pipelined_bytes:
            self._transport.resume_reading()

    def _after(self) -> _Next:
        self._reader.next_request()
        return _Next.REQUEST if self._reply.idle_s is not None else _Next.LINGER

    def _admit(self, head: RequestHead) -> Endpoint | Response:
        try:
            return self._shared.application.admit(head)
        except Exception as error:
            report(error, head)
            return self._shared.application.failure(500, "internal error", head)

    async def _call(self, endpoint: Endpoint, request: Request) -> Response | StreamResponse:
        try:
            return await endpoint(request, self._gone)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the server ends this connection; any other cancellation is the handler's
            report(error, request.head)
            return self._shared.application.failure(500, "internal error", request.head)

    def _check_length(self, max_bytes: int) -> None:
        declared = self._reader.declared_length
        if declared is not None and declared > max_bytes:
            raise RequestError(413, "limit", f"request body is over {max_bytes} bytes")

    async def _read_body(self, max_bytes: int) -> bytes:
        """The whole body; RequestError 408 when it comes too slowly."""
        self._reader.max_body_bytes = max_bytes
        latest = self._loop.time() + self._limits.body_s
        body = bytearray()
        n_pieces = 0
        while not isinstance(event := self._reader.next_event(), EndOfRequest):
            if isinstance(event, BodyPart):
                body += event.data
                n_pieces += 1
                if n_pieces % _PIECES_A_TURN == 0:
                    await asyncio.sleep(0)
                continue
            if self._is_eof:
                raise ClientGone("the client closed inside a request body")
            gap = self._loop.time() + self._limits.body_gap_s
            if not await self._more(min(latest, gap)):
                raise self._too_slow("request body came too slowly")
        return bytes(body)

    def _too_slow(self, message: str) -> RequestError:
        if self._shared.is_stopping:
            message = "the server is shutting down; the request was not complete"
        return RequestError(408, "timeout", message)

    async def _turn_away(self, head: RequestHead, refusal: Response) -> _Next:
        """Answers without reading the body. A small body is then read past, so that the connection
        stays; one of which nobody knows whether it comes is not waited for."""
        declared = self._reader.declared_length
        is_small = declared is not None and declared <= self._limits.kept_body_bytes
        if not is_small or (declared and "expect" in dict(head.headers)):
            self._reply.idle_s = None
        await self._send(refusal)
        if self._reply.idle_s is None:
            return _Next.LINGER
        try:
            await self._read_body(self._limits.kept_body_bytes)
        except (RequestError, ClientGone):  # too slow, or not coming; it has its answer
            return _Next.DROP
        return self._after()

    async def _refuse(self, error: RequestError) -> _Next:
        """Answers bytes that are no request; what follows them is not looked at."""
        if not error.is_answered:
            log.status(str(error))
            return _Next.DROP
        self._reply.idle_s = None
        await self._reply.send(self._refusal(error))
        return _Next.LINGER

    def _refusal(self, error: RequestError) -> Response:
        response = self._shared.application.failure(error.http_status, str(error), self._reply.head)
        if error.http_status == 405:  # CONNECT, which no path has
            response.headers.append(("Allow", "GET, HEAD, OPTIONS, POST"))
        if error.http_status == 415:
            response.headers.append(("Accept-Encoding", accepted()))
        return response

    async def _refuse_surplus(self) -> _Next:
        n_open = self._limits.n_connections
        error = RequestError(503, "surplus", f"{n_open} connections are open already")
        self._begun_at = self._loop.time()
        after = await self._refuse(error)
        self._observe(error.kind, 0)
        return after

    async def _linger(self) -> None:
        """Closes the writing side, then reads and forgets until the client closes its own: bytes
        that arrive at a closed socket would reset the connection and the answer with it."""
        await self._flow.flush()
        deadline = self._loop.time() + self._limits.drained_s
        self._n_discarded = 0
        if not self._is_eof:
            self._transport.write_eof()
        while not self._is_eof and self._n_discarded <= self._limits.drained_bytes:
            if self._shared.is_stopping and self._reader.is_idle:
                return  # nothing is on its way that anyone knows of
            if not await self._more(deadline):
                return


def _expects_continue(head: RequestHead) -> bool:
    """Whether the client waits for `100 Continue`; an HTTP/1.0 client cannot."""
    expectation = head.headers.get("expect")
    if expectation is None or head.version == (1, 0):
        return False
    if expectation.lower() != "100-continue":
        raise RequestError(417, "expect", "no expectation but 100-continue can be met")
    return True
