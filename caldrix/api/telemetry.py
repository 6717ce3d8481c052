"""The families of /metrics and what feeds them: exchanges of the HTTP layer and ended records.

Owns which event moves which number. Rendering is metrics.py's; the shape of a record is
records.py's. With telemetry off the histograms stay away.
"""

import platform
from collections.abc import Sequence

from caldrix import __version__
from caldrix.api import metrics
from caldrix.api.metrics import Counter, Histogram, family, gauge
from caldrix.api.records import Record
from caldrix.api.service import Service
from caldrix.api.timings import decode_s, gaps
from caldrix.http.messages import Exchange

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")


class Telemetry:
    def __init__(self, service: Service) -> None:
        self._service = service
        # The connection's
        self.responses = Counter(
            "caldrix_http_responses_total", "Answers sent", ("route", "method", "status")
        )
        self.parse_errors = Counter(
            "caldrix_http_parse_errors_total", "Bytes that were no request", ("kind",)
        )
        # The request's
        self.requests = Counter(
            "caldrix_requests_total", "Generation requests by how they ended", ("route", "outcome")
        )
        self.finishes = Counter(
            "caldrix_request_finish_total", "Choices by the reason of their end", ("reason",)
        )
        self.prompt = Counter("caldrix_prompt_tokens_total", "Prompt tokens of ended requests")
        self.cached = Counter(
            "caldrix_cached_prompt_tokens_total", "Prompt tokens found in a slot's memory"
        )
        self.generated = Counter("caldrix_generation_tokens_total", "Tokens picked")
        self._histograms = _Histograms()

    def exchange_ended(self, exchange: Exchange, route: str) -> None:
        """One answer of any route; `route` is "" where no route was found."""
        if exchange.error is not None:
            self.parse_errors.add(1, exchange.error)
        if exchange.status and exchange.head is not None:
            method = exchange.head.method if exchange.head.method in _METHODS else "other"
            self.responses.add(1, route or "none", method, str(exchange.status))

    def record_ended(self, record: Record, exchange: Exchange) -> None:
        outcome = record.outcome(exchange.status)
        self.requests.add(1, record.route, outcome)
        job = record.job
        if job is None:
            return
        usage = job.usage
        self.prompt.add(usage.prompt)
        self.cached.add(usage.cached)
        self.generated.add(usage.completion)
        for reason in job.reasons:
            self.finishes.add(1, reason)
        if outcome in ("cancelled", "error"):
            self.finishes.add(1, outcome)
        if self._service.settings.telemetry != "off":
            self._histograms.take(record)

    def render(self, n_open: int, n_accepted: int, compat: str = "") -> str:
        always = (("model", self._service.name),)
        lines = self._info()
        for counter in (self.responses, self.parse_errors):
            lines += family(counter.name, "counter", counter.help, counter.lines(()))
        lines += gauge("caldrix_connections_open", "Connections open now", n_open)
        accepted = "caldrix_connections_total"
        lines += family(
            accepted, "counter", "Connections accepted", [metrics.sample(accepted, (), n_accepted)]
        )
        for counter in (self.requests, self.finishes, self.prompt, self.cached, self.generated):
            lines += family(counter.name, "counter", counter.help, counter.lines(always))
        lines += self._engine(always)
        if self._service.settings.telemetry != "off":
            for histogram in self._histograms.all:
                lines += family(
                    histogram.name, "histogram", histogram.help, histogram.lines(always)
                )
        return "\n".join([*lines, *metrics.process_lines()]) + "\n"

    def _info(self) -> list[str]:
        program = self._service.model.program
        build = (("version", __version__), ("python", platform.python_version()))
        model = (
            ("model", self._service.name),
            ("backend", "cpu"),
            ("dtype", program.options.dtype),
            ("max_context", str(program.context)),
            ("max_batch", str(program.n_slots)),
            ("variant", ""),
        )
        return [
            *gauge("caldrix_build_info", "This build", 1, build),
            *gauge("caldrix_model_info", "The model that is served", 1, model),
        ]

    def _engine(self, always: metrics.Labels) -> list[str]:
        engine = self._service.engine
        rows: Sequence[tuple[str, str, float]] = (
            ("caldrix_requests_running", "Requests in a slot", engine.n_running),
            ("caldrix_requests_waiting", "Requests that wait for a slot", engine.n_waiting),
            ("caldrix_queue_limit", "--queue-depth", self._service.settings.queue_depth),
            ("caldrix_slots", "Requests decoded together", self._service.model.program.n_slots),
            (
                "caldrix_kv_tokens_capacity",
                "Tokens that all slots hold",
                self._service.model.context * self._service.model.program.n_slots,
            ),
        )
        return [line for row in rows for line in gauge(*row, labels=always)]


class _Histograms:
    def __init__(self) -> None:
        def seconds(name: str, help: str) -> Histogram:
            return Histogram(f"caldrix_{name}_seconds", help, metrics.SECONDS, ("route",))

        self.queue = seconds("request_queue", "From asking to a slot")
        self.prefill = seconds("request_prefill", "From the first prompt row to the last")
        self.first = seconds("time_to_first_token", "From asking to the first token")
        self.gap = seconds("inter_token", "Between neighbouring tokens of a reply")
        self.decode = seconds("request_decode", "From the first token to the last")
        self.whole = seconds("request", "From asking to the end of the reply")
        self.prompt = Histogram(
            "caldrix_request_prompt_tokens", "Prompt tokens of a request", metrics.TOKENS
        )
        self.generated = Histogram(
            "caldrix_request_generation_tokens", "Tokens picked for a request", metrics.TOKENS
        )

    @property
    def all(self) -> tuple[Histogram, ...]:
        timed = (self.queue, self.prefill, self.first, self.gap, self.decode, self.whole)
        return (*timed, self.prompt, self.generated)

    def take(self, record: Record) -> None:
        job, route = record.job, record.route
        assert job is not None
        self.prompt.observe(job.usage.prompt)
        self.generated.observe(job.usage.completion)
        for timings in job.timings:
            for histogram, value in (
                (self.queue, timings.queue_s),
                (self.prefill, timings.prefill_s),
                (self.first, timings.first_token_s),
                (self.decode, decode_s(timings) if timings.token_times else None),
                (self.whole, timings.total_s),
            ):
                if value is not None:
                    histogram.observe(value, route)
        for gap in gaps(job.timings):
            self.gap.observe(gap, route)
