"""The application that the HTTP layer serves: who answers a request, and what every answer carries.

Owns the order of the checks before a body is read (method known, route, method on the route), the
catch of everything a handler raises, and the headers of every response. Knows no field.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from caldrix import log
from caldrix.api.call import Call, Shared
from caldrix.api.records import Record, Records
from caldrix.api.refusals import ApiError, from_library, internal_error, shown
from caldrix.api.reply import error_response
from caldrix.api.routes import ROUTES, Route, Table
from caldrix.api.service import Service
from caldrix.api.telemetry import Telemetry
from caldrix.errors import CaldrixError
from caldrix.http.messages import Exchange, Request, RequestHead, Response, StreamResponse

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
MAX_BODY_BYTES = 4 << 20
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

# What the HTTP layer refuses by itself: (type, code) by status.
_FAILURES = {
    400: ("invalid_request_error", "bad_request"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    414: ("invalid_request_error", "uri_too_long"),
    415: ("invalid_request_error", "unsupported_content_encoding"),
    417: ("invalid_request_error", "expectation_failed"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("server_error", "internal_error"),
    501: ("not_supported_error", "not_implemented"),
    503: ("unavailable_error", "too_many_connections"),
    505: ("invalid_request_error", "http_version_not_supported"),
}
_NO_RETRY = (("x-should-retry", "false"),)
_RETRY_SOON = (("retry-after", "1"),)


class Application:
    def __init__(self, service: Service, connections: Callable[[], tuple[int, int]]) -> None:
        """`connections` tells how many are open and how many ever were."""
        self._telemetry = Telemetry(service)
        settings = service.settings
        self.records = Records(
            settings.telemetry, settings.telemetry_log, self._telemetry.record_ended
        )
        self._access = settings.access
        self._table = Table(ROUTES)
        self._shared = Shared(
            service,
            self.records,
            lambda compat: self._telemetry.render(*connections(), compat),
            self._table.index,
        )
        self._boot = secrets.token_hex(4)
        self._n_requests = 0

    # What the HTTP layer asks

    def admit(self, head: RequestHead) -> "Answerer | Response":
        try:
            return self._admit(head)
        except ApiError as error:
            return error_response(error)

    def failure(self, status: int, message: str, head: RequestHead | None) -> Response:
        kind, code = _FAILURES.get(status, ("invalid_request_error", "bad_request"))
        headers = {501: _NO_RETRY, 505: _NO_RETRY, 415: _NO_RETRY, 503: _RETRY_SOON}
        error = ApiError(status, code, message, None, kind, headers.get(status, ()))
        return error_response(error)

    def decorate(self, head: RequestHead | None, response: Response | StreamResponse) -> None:
        if not any(name == "x-request-id" for name, _ in response.headers):
            response.headers.append(("x-request-id", self.request_id(head)))
        response.headers += self._access.headers(head)

    def observe(self, exchange: Exchange) -> None:
        """Counts an exchange that is over and closes its record."""
        route = None
        if exchange.head is not None:
            routes, _ = self._table.find(exchange.head.path)
            method = "GET" if exchange.head.method == "HEAD" else exchange.head.method
            route = routes.get(method)
        self._telemetry.exchange_ended(exchange, "" if route is None else route.name)
        self.records.observe(exchange)

    # How

    def request_id(self, head: RequestHead | None) -> str:
        """The caller's own, if it may stand in a header, else one of ours."""
        given = head.headers.get("x-request-id") if head is not None else None
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        self._n_requests += 1
        return f"req-{self._boot}-{self._n_requests}"

    def _admit(self, head: RequestHead) -> "Answerer | Response":
        if head.method not in METHODS:
            message = f"method {shown(head.method)} is not known"
            raise ApiError(501, "not_implemented", message, None, "not_supported_error", _NO_RETRY)
        if head.method == "OPTIONS" and head.path == "*":
            return Response(204, [("Allow", ", ".join(METHODS[:-2]))])
        routes, tail = self._table.find(head.path)
        if not routes and head.method != "CONNECT":
            message = f"no route {head.method} {shown(head.path)[1:-1]}"
            raise ApiError(404, "unknown_url", message)
        allow = ("Allow", ", ".join(_allowed(routes)))
        if head.method == "OPTIONS":
            return Response(204, [allow, *(self._access.preflight(head) or [])])
        route = routes.get("GET" if head.method == "HEAD" else head.method)
        if route is None:
            message = f"{head.method} is not allowed here; use {allow[1]}"
            raise ApiError(405, "method_not_allowed", message, headers=[allow])
        self._access.check_site(head)
        if not route.is_open:
            self._access.check_key(head)
        return Answerer(self._shared, route, tail, self.request_id(head))


def _allowed(routes: dict[str, Route]) -> list[str]:
    heads = {"HEAD"} if "GET" in routes else set()
    return sorted({*routes, *heads, "OPTIONS"})


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
