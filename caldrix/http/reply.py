"""One answer on its way out: head, body or stream, heartbeats, what was sent.

Owns the framing an answer gets for its request; knows nothing of reading. A Reply lives as long as
one request. Every write awaits back-pressure, and a client that has gone away ends a stream within
one turn of the loop.
"""

import asyncio
import traceback
from collections.abc import AsyncIterator

from caldrix import log
from caldrix.http.flow import FlowControl
from caldrix.http.messages import Application, RequestHead, Response, StreamResponse
from caldrix.http.protocol import CONTINUE, LAST_CHUNK, chunk, has_body, response_head

# A stream whose chunks are all there already lets others run after this many.
_CHUNKS_A_TURN = 32

CLIENT_LEFT = 499


class ClientGone(ConnectionError):
    """The client closed its side before the answer was complete."""


class AnswerBroken(Exception):
    """A stream failed after its head was sent: only closing the connection can say so."""


def report(error: BaseException, head: RequestHead | None) -> None:
    """One line on stderr for an exception that nobody above expected: a bug."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    what = f"{head.method} {head.path}" if head else "a connection"
    message = f"{type(error).__name__}: {error}{where}"
    log.status(f"this is a bug: {what} failed: {message}")


class Reply:
    """Writes the answer to one request."""

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, application: Application
    ) -> None:
        # connection
        self._transport = transport
        self._flow = flow
        self._application = application
        self._loop = asyncio.get_running_loop()
        # request
        self.head: RequestHead | None = None
        self.idle_s: float | None = None  # how long the connection is kept; None: closed
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.n_bytes = 0
        self.is_delivered = False  # written whole while the client was there
        self._is_gone = False
        self._waited_before_s = flow.waited_s
        self._streaming: asyncio.Task[None] | None = None
        self._written_at = 0.0

    def leave(self) -> None:
        """The client has closed its side; called from the loop, never from the reply's task."""
        self._is_gone = True
        if self._streaming is not None:
            self._streaming.cancel()

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    @property
    def waited_s(self) -> float:
        """Seconds for which the client held up its answer."""
        return self._flow.waited_s - self._waited_before_s

    def allow_body(self) -> None:
        """Sends the interim answer that a client with `Expect: 100-continue` waits for."""
        self._write(CONTINUE)

    async def send(self, response: Response | StreamResponse) -> None:
        """Writes a whole answer. An answer that cannot be written becomes a 500."""
        try:
            self._application.decorate(self.head, response)
            head = self._head_bytes(response)
        except Exception as error:
            report(error, self.head)
            await self._close_chunks(response)
            response = self._application.failure(500, "internal error", self.head)
            head = self._head_bytes(response)  # if this fails too the connection ends
        self.status, self.headers = response.status, response.headers
        if isinstance(response, Response):
            await self._send_whole(head, response)
        else:
            try:
                await self._send_stream(head, response)
            finally:
                await self._close_chunks(response)
        self.is_delivered = not self._is_gone

    @property
    def _is_head_only(self) -> bool:
        return self.head is not None and self.head.method == "HEAD"

    @property
    def _is_chunked(self) -> bool:
        return self.head is None or self.head.version == (1, 1)

    def _head_bytes(self, response: Response | StreamResponse) -> bytes:
        framing = None
        if isinstance(response, Response):
            if has_body(response.status):
                framing = f"Content-Length: {len(response.body)}"
        elif self._is_chunked:
            framing = "Transfer-Encoding: chunked"
        else:
            self.idle_s = None  # HTTP/1.0 has no other end of a stream than closing
        return response_head(response.status, response.headers, framing, self.idle_s)

    async def _send_whole(self, head: bytes, response: Response) -> None:
        if self._is_head_only or not has_body(response.status):
            self._write(head)
        else:
            self._write(head + response.body)
        await self._flow.drain()

    async def _send_stream(self, head: bytes, response: StreamResponse) -> None:
        self._write(head)
        if self._is_head_only:
            return
        task = asyncio.current_task()
        assert task is not None
        self._streaming = task
        timer = _Heartbeat(self, response) if response.heartbeat and response.heartbeat_s else None
        try:
            await self._pump(response.chunks)
        except asyncio.CancelledError:
            # Ours, from `leave`, or the server's, which wants the whole connection to end.
            if not self._is_gone or task.uncancel() > 0:
                raise
            raise ClientGone("the client left during a stream") from None
        finally:
            self._streaming = None
            if timer is not None:
                timer.stop()
        if self._is_chunked:
            self._write(LAST_CHUNK)
        await self._flow.drain()

    async def _pump(self, chunks: AsyncIterator[bytes]) -> None:
        n_chunks = 0
        iterator = aiter(chunks)
        while not self._is_gone:
            try:
                data = await anext(iterator)
            except StopAsyncIteration:
                return
            except Exception as error:
                report(error, self.head)
                raise AnswerBroken from error
            if data:
                self.write_piece(data)
            await self._flow.drain()
            n_chunks += 1
            if n_chunks % _CHUNKS_A_TURN == 0:
                await asyncio.sleep(0)
        raise ClientGone("the client left during a stream")

    async def _close_chunks(self, response: Response | StreamResponse) -> None:
        if isinstance(response, Response):
            return
        close = getattr(response.chunks, "aclose", None)
        if close is not None:
            try:
                await close()  # ends as soon as the application's own clean-up has
            except Exception as error:
                report(error, self.head)

    def write_piece(self, data: bytes) -> None:
        """One piece of a stream, in one write."""
        self._write(chunk(data) if self._is_chunked else data)

    def write_filler(self, response: StreamResponse) -> float:
        """Writes a heartbeat when the stream was silent for long enough and the client reads;
        returns the loop time at which to look again."""
        now = self._loop.time()
        due = self._written_at + response.heartbeat_s
        if now < due:
            return due
        if response.heartbeat is not None and not (self._is_gone or self._flow.is_paused):
            self.write_piece(response.heartbeat())
        return now + response.heartbeat_s

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise ClientGone("the connection is closed")
        self._transport.write(data)
        self.n_bytes += len(data)
        self._written_at = self._loop.time()


class _Heartbeat:
    """The timer beside one stream."""

    def __init__(self, reply: Reply, response: StreamResponse) -> None:
        self._reply = reply
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(response.heartbeat_s, self._beat)

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        try:
            due = self._reply.write_filler(self._response)
        except ClientGone:
            return  # the stream is about to learn it too
        except Exception as error:
            report(error, self._reply.head)
            return
        self._timer = self._loop.call_at(due, self._beat)
