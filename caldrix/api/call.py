"""One request on its way through a handler: what came in, and the few things every handler does.

Owns reading the body into fields, the check of `model`, and taking a place in the queue. Knows no
route. A handler leaves here what the reply's headers and the record of the request say.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from caldrix.api import generation
from caldrix.api.choices import Draft, Job
from caldrix.api.fields import Fields
from caldrix.api.json_body import read_object
from caldrix.api.records import Record, Records
from caldrix.api.refusals import called_off, model_not_found
from caldrix.api.service import Service
from caldrix.http.messages import Request

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all calls of a server have in common.

    `metrics` gives the text of /metrics, `index` the methods of each path.
    """

    service: Service
    records: Records
    metrics: Callable[[str], str]
    index: Mapping[str, list[str]]


def check_model(fields: Fields, served: str, *, is_required: bool = True) -> None:
    """Refuses a request that is meant for another model."""
    if is_required or fields.get("model") is not None:
        generation.model_name(fields, served, model_not_found)


class Call:
    def __init__(
        self, shared: Shared, request: Request, gone: asyncio.Event, tail: str, record: Record
    ) -> None:
        # The server's
        self.service = shared.service
        self.records = shared.records
        self.metrics = shared.metrics
        self.index = shared.index

        # The request's
        self.request = request
        self.gone = gone
        self.tail = tail  # what the path has after the route's own
        self.record = record

        # What the handler leaves behind
        self.ignored: list[str] = []

    async def fields(self) -> Fields:
        """The body."""
        started = time.monotonic()
        values = await read_object(self.request, self.off_loop)
        self.record.parse_s = time.monotonic() - started
        return Fields(values)

    async def body(self) -> Fields:
        """The body of a generation request, which names the model."""
        fields = await self.fields()
        check_model(fields, self.service.name)
        return fields

    async def tool_body(self) -> Fields:
        """The body of a utility request, which may name the model."""
        fields = await self.fields()
        check_model(fields, self.service.name, is_required=False)
        return fields

    async def off_loop(self, work: Callable[[], Value]) -> Value:
        """Runs `work` on a thread, unless the client has left before its turn comes."""

        def work_for_someone() -> Value:
            if self.gone.is_set():
                raise called_off()
            return work()

        return await self.service.off_loop(work_for_someone)

    async def prepare(self, work: Callable[[], Value]) -> Value:
        """Fields, template, tokenizer and the choices to come, on a thread: each may be long."""
        started = time.monotonic()
        value = await self.off_loop(work)
        self.record.tokenize_s = time.monotonic() - started
        return value

    def admit(self, draft: Draft) -> Job:
        """Takes a place in the queue, or refuses."""
        self.record.queue_position = self.service.engine.n_waiting
        job = Job(self.service, draft)
        self.record.job = job
        return job
