"""The application that the HTTP layer serves: who answers a request, and what every answer carries.

Owns the order of the checks before a body is read (method known, route, method on the route, who
may ask) and the headers of every response. What answers an admitted request stands behind it and
may change while it runs: see `Answers`. Knows no field.
"""

import re
import secrets
from collections.abc import Callable
from typing import Protocol

from caldrix.api.access import Access
from caldrix.api.access_log import access_line
from caldrix.api.http_counts import HttpCounts
from caldrix.api.refusals import ApiError, shown
from caldrix.api.reply import error_response
from caldrix.api.routes import TABLE, Route
from caldrix.http.messages import Endpoint, Exchange, RequestHead, Response, StreamResponse

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
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


class Answers(Protocol):
    """What stands behind the checks: a model, or what is there before it."""

    def endpoint(self, route: Route, tail: str, request_id: str) -> Endpoint:
        """Who answers an admitted request; `tail` is what the path has after the route's own."""

    def observe(self, exchange: Exchange) -> None:
        """An exchange is over, whoever answered it."""


class Application:
    def __init__(
        self,
        access: Access,
        answers: Answers,
        counts: HttpCounts,
        log_line: Callable[[str], None] | None = None,
    ) -> None:
        """`log_line` gets a line for each exchange."""
        self.answers = answers
        self._counts = counts
        self._log_line = log_line
        self._access = access
        self._boot = secrets.token_hex(4)
        self._n_requests = 0

    # What the HTTP layer asks

    def admit(self, head: RequestHead) -> Endpoint | Response:
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
        """An exchange is over, whoever answered it."""
        route = None
        if exchange.head is not None:
            routes, _ = TABLE.find(exchange.head.path)
            method = "GET" if exchange.head.method == "HEAD" else exchange.head.method
            route = routes.get(method)
        self._counts.exchange_ended(exchange, "" if route is None else route.name)
        self.answers.observe(exchange)
        if self._log_line is not None and exchange.status:
            self._log_line(access_line(exchange))

    # How

    def request_id(self, head: RequestHead | None) -> str:
        """The caller's own, if it may stand in a header, else one of ours."""
        given = head.headers.get("x-request-id") if head is not None else None
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        self._n_requests += 1
        return f"req-{self._boot}-{self._n_requests}"

    def _admit(self, head: RequestHead) -> Endpoint | Response:
        if head.method not in METHODS:
            message = f"method {shown(head.method)} is not known"
            raise ApiError(501, "not_implemented", message, None, "not_supported_error", _NO_RETRY)
        if head.method == "OPTIONS" and head.path == "*":
            return Response(204, [("Allow", ", ".join(METHODS[:-2]))])
        routes, tail = TABLE.find(head.path)
        if not routes and head.method != "CONNECT":
            message = f"no route {head.method} {shown(head.path)[1:-1]}"
            raise ApiError(404, "unknown_url", message)
        allow = ("Allow", ", ".join(_allowed(routes)))
        if head.method == "OPTIONS":
            if not all(route.is_open for route in routes.values()):
                self._access.check_host(head)
            return Response(204, [allow, *(self._access.preflight(head) or [])])
        route = routes.get("GET" if head.method == "HEAD" else head.method)
        if route is None:
            message = f"{head.method} is not allowed here; use {allow[1]}"
            raise ApiError(405, "method_not_allowed", message, headers=[allow])
        self._access.check(head, is_open=route.is_open)
        return self.answers.endpoint(route, tail, self.request_id(head))


def _allowed(routes: dict[str, Route]) -> list[str]:
    heads = {"HEAD"} if "GET" in routes else set()
    return sorted({*routes, *heads, "OPTIONS"})
