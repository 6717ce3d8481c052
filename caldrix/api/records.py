"""One record for each generation request: what it asked, when each stage came, how it ended.

Owns the live records, the ring of the last ones and what the telemetry log gets. A record holds
counts, settings and times, never a word of a prompt or reply. Knows no route's shape.
"""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from caldrix.api.choices import Job
from caldrix.api.timings import device_times, host_times
from caldrix.engine.sequence import SequenceStatus
from caldrix.engine.telemetry import Level, Telemetry
from caldrix.http.messages import Exchange, RequestHead

RING = 256

_STATES = {
    SequenceStatus.WAITING: "queued",
    SequenceStatus.PREFILL: "prefill",
    SequenceStatus.DECODE: "decode",
    SequenceStatus.FINISHED: "decode",  # the engine is done, the client not yet
}


@dataclass(slots=True, eq=False)
class Record:
    """One request while it runs; what the handler learns is set as it comes."""

    head: RequestHead
    request_id: str
    route: str
    model: str
    started_at: float = field(default_factory=time.monotonic)
    received_at: float = field(default_factory=time.time)
    parse_s: float = 0.0
    tokenize_s: float = 0.0
    queue_position: int = 0
    error_code: str | None = None
    job: Job | None = None

    def body(self, exchange: Exchange | None, telemetry: Telemetry) -> dict[str, object]:
        """The record as it is shown; `exchange` says how it ended, None while it goes on."""
        job = self.job
        status = None if exchange is None else exchange.status
        body: dict[str, object] = {
            "id": None if job is None else job.id,
            "request_id": self.request_id,
            "route": self.route,
            "model": self.model,
            "variant": None,
            "stream": job is not None and job.plan.options.streaming.is_on,
            "state": self._state() if exchange is None else "done",
            "outcome": None if status is None else self.outcome(status),
            "status": status,
            "finish_reason": None if job is None else job.finish_reason,
            "error_code": self.error_code or (None if job is None else job.error_code),
            "received_at": round(self.received_at, 3),
            "ended_at": None if exchange is None else round(time.time(), 3),
            "peer": self.head.peer,
            "bytes_in": None if exchange is None else exchange.bytes_in,
            "bytes_out": None if exchange is None else exchange.bytes_out,
            "images": 0,
            "image_rows": 0,
            "questions": 0,
            "queue_position": self.queue_position,
            "batch_max": None if job is None else max(t.batch_max for t in job.timings),
            "speculation": None,
            "weights": None,
        }
        body |= _job_body(job)
        if telemetry.level is Level.OFF:
            body["host"] = None
        else:
            stalled_s = None if exchange is None else exchange.stalled_s
            body["host"] = host_times(self.parse_s, self.tokenize_s, job, stalled_s)
        body["device"] = None if job is None else device_times(job, telemetry)
        return body

    def outcome(self, status: int) -> str:
        """How it ended, in the words of the metrics."""
        if status == 499 or (self.job is not None and self.job.is_cancelled):
            return "cancelled"
        if status in (429, 503):
            return "rejected"
        if 400 <= status < 500:
            return "client_error"
        failed = self.job is not None and self.job.error_code is not None
        return "error" if status >= 500 or failed else "ok"

    def _state(self) -> str:
        return "queued" if self.job is None else _STATES[self.job.status]


def _job_body(job: Job | None) -> dict[str, object]:
    if job is None:
        counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), 0)
        return {**counts, "sampling": None, "slot": None}
    usage, sampling = job.usage, job.plan.options.sampling
    return {
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "slot": job.slot,
        "sampling": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
        },
    }


class Records:
    """`log_line` gets each record as a line."""

    def __init__(
        self,
        telemetry: Telemetry,
        log_line: Callable[[str], None] | None,
        ended: Callable[[Record, Exchange], None],
    ) -> None:
        self.telemetry = telemetry
        self._log_line = log_line
        self._ended = ended  # told of every record's end
        self._live: dict[int, Record] = {}  # by the identity of the head, which the record holds
        self._done: deque[dict[str, object]] = deque(maxlen=RING)

    @property
    def is_off(self) -> bool:
        return self.telemetry.level is Level.OFF

    def begin(self, record: Record) -> Record:
        self._live[id(record.head)] = record
        return record

    def observe(self, exchange: Exchange) -> None:
        """Closes the record of an exchange that is over."""
        record = self._live.pop(id(exchange.head), None)
        if record is None:
            return
        self._ended(record, exchange)
        body = record.body(exchange, self.telemetry)
        if not self.is_off:
            self._done.append(body)
        if self._log_line is not None:
            self._log_line(json.dumps(body, sort_keys=True, separators=(",", ":")))

    def bodies(self) -> list[dict[str, object]]:
        """Newest first, the live ones before those that are done."""
        live = [record.body(None, self.telemetry) for record in reversed(self._live.values())]
        return [*live, *reversed(self._done)]

    def live_jobs(self) -> list[Job]:
        return [record.job for record in self._live.values() if record.job is not None]
