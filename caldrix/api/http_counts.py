"""What the address has seen since it is answered: answers, bytes that were no request, connections.

Owns these families of /metrics, which count before there is a model too. Knows nothing of one.
"""

from collections.abc import Callable

from caldrix.api.metrics import Counter, family, gauge, sample
from caldrix.http.messages import Exchange

_OF_ANSWERS = ("left", "stalled", "broken")  # the request itself was well-formed
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_ACCEPTED = "caldrix_connections_total"


class HttpCounts:
    def __init__(self, connections: Callable[[], tuple[int, int]]) -> None:
        """`connections` tells how many are open and how many ever were."""
        self._connections = connections
        self._responses = Counter(
            "caldrix_http_responses_total", "Answers sent", ("route", "method", "status")
        )
        self._parse_errors = Counter(
            "caldrix_http_parse_errors_total", "Bytes that were no request", ("kind",)
        )

    def exchange_ended(self, exchange: Exchange, route: str) -> None:
        """One answer of any route; `route` is "" where no route was found."""
        if exchange.error is not None and exchange.error not in _OF_ANSWERS:
            self._parse_errors.add(1, exchange.error)
        if exchange.status and exchange.head is not None:
            method = exchange.head.method if exchange.head.method in _METHODS else "other"
            self._responses.add(1, route or "none", method, str(exchange.status))

    def lines(self) -> list[str]:
        lines: list[str] = []
        for counter in (self._responses, self._parse_errors):
            lines += family(counter.name, "counter", counter.help, counter.lines(()))
        n_open, n_accepted = self._connections()
        lines += gauge("caldrix_connections_open", "Connections open now", n_open)
        accepted = [sample(_ACCEPTED, (), n_accepted)]
        return [*lines, *family(_ACCEPTED, "counter", "Connections accepted", accepted)]
