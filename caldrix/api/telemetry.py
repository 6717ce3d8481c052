"""The families of /metrics that tell of the model, and what feeds them: ended records.

Owns which event moves which number. Rendering is metrics.py's; the shape of a record is
records.py's. With telemetry off the histograms stay away.
"""

import platform
from collections.abc import Sequence

from caldrix import __version__
from caldrix.api import metrics
from caldrix.api.dashboards import FORMS, Values
from caldrix.api.metrics import (
    Counter,
    Labels,
    family,
    gauge,
    histogram_lines,
    sample,
)
from caldrix.api.records import Record
from caldrix.api.request_histograms import RequestHistograms
from caldrix.api.service import Service
from caldrix.engine.telemetry import Level
from caldrix.http.messages import Exchange


class Telemetry:
    def __init__(self, service: Service) -> None:
        self._service = service
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
        self._histograms = RequestHistograms()
        self._most_tokens = 0  # of one prompt and its reply

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
        self._most_tokens = max(self._most_tokens, job.most_tokens)
        for reason in job.reasons:
            self.finishes.add(1, reason)
        if outcome in ("cancelled", "error"):
            self.finishes.add(1, outcome)
        if self._service.settings.telemetry.level is not Level.OFF:
            self._histograms.take(record)

    def render(self, http_lines: Sequence[str], form: str = "") -> str:
        """`http_lines` are http_counts.py's families."""
        always = (("model", self._service.name),)
        lines = [*self._info(), *http_lines]
        for counter in (self.requests, self.finishes, self.prompt, self.cached, self.generated):
            lines += family(counter.name, "counter", counter.help, counter.lines(always))
        lines += self._engine(always)
        if self._service.settings.telemetry.level is not Level.OFF:
            for histogram in self._histograms.all:
                lines += family(
                    histogram.name, "histogram", histogram.help, histogram.lines(always)
                )
            lines += self._steps(always)
        lines += self._compat(form)
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

    def _engine(self, always: Labels) -> list[str]:
        snapshot, tally = self._service.engine.snapshot(), self._service.engine.tally
        rows: Sequence[tuple[str, str, float]] = (
            ("caldrix_requests_running", "Slots in use", snapshot.n_running),
            ("caldrix_requests_waiting", "Requests that wait for a slot", snapshot.n_waiting),
            ("caldrix_queue_limit", "--queue-depth", snapshot.queue_depth),
            ("caldrix_slots", "Replies decoded together", len(snapshot.slots)),
            ("caldrix_kv_tokens_used", "Tokens in the slots' memory", snapshot.kv_tokens_used),
            ("caldrix_kv_tokens_capacity", "Tokens that fit", snapshot.kv_tokens_capacity),
        )
        lines = [line for row in rows for line in gauge(*row, labels=always)]
        steps = "caldrix_engine_steps_total"
        counts = tally.n_steps.items()
        samples = [sample(steps, (*always, ("phase", phase.value)), n) for phase, n in counts]
        return [*lines, *family(steps, "counter", "Native steps", samples)]

    def _compat(self, form: str) -> list[str]:
        engine = self._service.engine
        is_off = self._service.settings.telemetry.level is Level.OFF
        values = Values(
            self._service.name,
            engine.snapshot(),
            engine.tally,
            self.prompt,
            self.generated,
            self.finishes,
            None if is_off else self._histograms,
            self._most_tokens,
        )
        return FORMS[form](values) if form else []

    def _steps(self, always: Labels) -> list[str]:
        """What the engine measures of its steps; native times only where they are sampled."""
        tally = self._service.engine.tally
        batch = tally.batch_size
        name = "caldrix_decode_batch_size"
        lines = histogram_lines(name, always, batch.bounds, batch.counts, batch.sum)
        found = family(name, "histogram", "Replies in one step", lines)
        if self._service.settings.telemetry.level is not Level.SAMPLED:
            return found
        name, lines = "caldrix_device_step_seconds", []
        for phase, one in tally.device_s.items():
            labels = (*always, ("phase", phase.value))
            lines += histogram_lines(name, labels, one.bounds, one.counts, one.sum)
        return [*found, *family(name, "histogram", "Native steps that were timed", lines)]
