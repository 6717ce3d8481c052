"""What a model answers: the handler of an admitted request, with its record and its errors.

Owns the catch of everything a handler raises, and what is told when an exchange is over. The checks
before a body is read are application.py's. Knows no field.
"""

import asyncio
from dataclasses import dataclass

from caldrix import log
from caldrix.api.call import Call, Shared
from caldrix.api.http_counts import HttpCounts
from caldrix.api.records import Record, Records
from caldrix.api.refusals import ApiError, from_library, internal_error
from caldrix.api.reply import error_response
from caldrix.api.routes import TABLE, Route
from caldrix.api.service import Service
from caldrix.api.telemetry import Telemetry
from caldrix.errors import CaldrixError
from caldrix.http.messages import Exchange, Request, Response, StreamResponse

MAX_BODY_BYTES = 4 << 20


class ModelAnswers:
    def __init__(self, service: Service, counts: HttpCounts) -> None:
        self._telemetry = Telemetry(service)
        settings = service.settings
        self._records = Records(
            settings.telemetry, settings.telemetry_log, self._telemetry.record_ended
        )
        self._shared = Shared(
            service,
            self._records,
            lambda compat: self._telemetry.render(counts.lines(), compat),
            TABLE.index,
        )

    def endpoint(self, route: Route, tail: str, request_id: str) -> "Answerer":
        return Answerer(self._shared, route, tail, request_id)

    def observe(self, exchange: Exchange) -> None:
        """Closes the record of an exchange that is over."""
        self._records.observe(exchange)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers one admitted request; everything that goes wrong becomes an error body here."""

    shared: Shared
    route: Route
    tail: str
    request_id: str
    max_body_bytes: int = MAX_BODY_BYTES

    async def __call__(self, request: Request, gone: asyncio.Event) -> Response | StreamResponse:
        record = Record(request.head, self.request_id, self.route.name, self.shared.service.name)
        if self.route.is_recorded:
            self.shared.records.begin(record)
        call = Call(self.shared, request, gone, self.tail, record)
        response = await self._answer(call)
        response.headers.append(("x-request-id", self.request_id))
        if call.ignored:
            response.headers.append(("x-caldrix-ignored", ", ".join(call.ignored)))
        return response

    async def _answer(self, call: Call) -> Response | StreamResponse:
        try:
            return await self.route.handler(call)
        except ApiError as caught:
            error = caught
        except CaldrixError as caught:
            error = from_library(caught)
        except Exception as caught:
            what = f"{type(caught).__name__}: {caught}".splitlines()[0]
            log.status(f"internal error: {what} (request {self.request_id}; a bug in caldrix)")
            error = internal_error(self.request_id)
        call.record.error_code = error.code
        return error_response(error)
