"""Engine events to reply objects and chunks: what chat and completions have in common.

Owns the envelope (id, created, model, usage), the sequence of a stream and how it ends, and the
wait for a whole reply. What one choice looks like is the route's: a `Shape`. Knows no field of a
request.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from caldrix.api.choices import Delta, Ended, Event, Job, Opened
from caldrix.api.refusals import ApiError, dumps, dumps_in_pieces, internal_error
from caldrix.api.timings import reply_timings
from caldrix.http import sse
from caldrix.http.messages import Response, StreamResponse

Choice = dict[str, object]
JSON_HEADERS = ("Content-Type", "application/json")
_NO_CHOICES = b'{"choices":[]'  # what the JSON of an envelope begins with


class Shape(Protocol):
    """How one route shows its choices."""

    @property
    def object_name(self) -> str: ...

    @property
    def chunk_name(self) -> str: ...

    @property
    def n_reasoning(self) -> int:
        """Tokens of thinking that was shown apart, so far."""

    def opening(self, event: Opened) -> list[Choice]:
        """Chunks that begin a choice."""

    def piece(self, event: Delta) -> list[Choice]:
        """Chunks of more text."""

    def closing(self, event: Ended) -> list[Choice]:
        """Chunks that end a choice, the one with its finish_reason last."""

    def whole(self, events: Sequence[Event], reason: str) -> Choice:
        """A choice of a reply that is not streamed, from all its events but the end."""


def json_response(
    value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Response:
    return Response(status, [JSON_HEADERS, *headers], dumps(value))


def error_response(error: ApiError) -> Response:
    return json_response(error.body, error.status, error.headers)


async def answer(job: Job, shape: Shape, gone: asyncio.Event) -> Response:
    """The whole reply; called off when the client leaves before it is there."""
    watcher = asyncio.ensure_future(gone.wait())  # woken by the connection or cancelled below
    watcher.add_done_callback(lambda _: job.cancel())
    try:
        choices = await _collect(job, shape)
    finally:
        watcher.cancel()
    body = _envelope(job, shape.object_name, [])
    body["usage"] = _usage(job, shape)
    if job.plan.options.timings:
        body["timings"] = reply_timings(job)
    rest = dumps(body).removeprefix(_NO_CHOICES)
    data = b'{"choices":[' + b",".join(choices) + b"]" + rest
    return Response(200, [JSON_HEADERS, *job.plan.notes], data)


async def _collect(job: Job, shape: Shape) -> list[bytes]:
    """Each choice as JSON. Scores of a long reply take long to write: that is a thread's work."""
    choices: list[bytes] = []
    waiting: list[Event] = []
    async with aclosing(job.events()) as events:
        async for event in events:
            if isinstance(event, Ended):
                write = partial(_written, shape, waiting, event.reason)
                has_scores = job.plan.options.n_logprobs is not None
                choices.append(await job.service.off_loop(write) if has_scores else write())
                waiting = []
            else:
                waiting.append(event)
    return choices


def _written(shape: Shape, events: Sequence[Event], reason: str) -> bytes:
    return dumps_in_pieces(shape.whole(events, reason))


def stream(job: Job, shape: Shape, ping_interval_s: float) -> StreamResponse:
    """The reply as server-sent events, each as soon as it is there; comments tell of progress."""
    headers = [*sse.HEADERS, *job.plan.notes]
    chunks = _Chunks(job, shape)
    return StreamResponse(200, headers, chunks, ping_interval_s, lambda: sse.comment(job.progress))


class _Chunks:
    """The events as bytes. Closing them calls the job off, also when none was ever asked for."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self._job = job
        self._generator = _chunks(job, shape)

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> bytes:
        return await self._generator.__anext__()

    async def aclose(self) -> None:
        self._job.cancel()
        await self._generator.aclose()


async def _chunks(job: Job, shape: Shape) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(job.events()) as events:
            async for event in events:
                for choice in _choices(shape, event):
                    yield _chunk(job, shape, [choice])
    except ApiError as error:  # the status is sent: the error is an event
        yield sse.event(dumps(error.body))
    except Exception:  # a bug in caldrix: told before the connection is cut
        told = internal_error(job.id)
        job.error_code = told.code
        yield sse.event(dumps(told.body))
        raise
    else:
        if job.plan.options.streaming.include_usage:
            yield _chunk(job, shape, [])
    yield sse.DONE


def _choices(shape: Shape, event: Event) -> list[Choice]:
    if isinstance(event, Opened):
        return shape.opening(event)
    return shape.piece(event) if isinstance(event, Delta) else shape.closing(event)


def _chunk(job: Job, shape: Shape, choices: list[Choice]) -> bytes:
    body = _envelope(job, shape.chunk_name, choices)
    streaming = job.plan.options.streaming
    if not choices or streaming.continuous_usage:
        body["usage"] = _usage(job, shape)
    elif streaming.include_usage:
        body["usage"] = None
    if job.plan.options.timings and choices and choices[0]["finish_reason"]:
        body["timings"] = reply_timings(job)
    return sse.event(dumps(body))


def _usage(job: Job, shape: Shape) -> dict[str, object]:
    body = job.usage.body
    if shape.n_reasoning:
        body["completion_tokens_details"] = {"reasoning_tokens": shape.n_reasoning}
    return body


def _envelope(job: Job, name: str, choices: list[Choice]) -> dict[str, object]:
    return {
        "choices": choices,
        "created": job.created,
        "id": job.id,
        "model": job.model_name,
        "object": name,
    }
