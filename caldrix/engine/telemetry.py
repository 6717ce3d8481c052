"""When each stage of one request happened, and what the steps of the engine add up to.

Owns the moments, the durations derived from them and the counts; knows nothing of scheduling or of
who reads them. All moments are `time.monotonic()` seconds, so only their differences mean anything.
`None` says that a moment has not come.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
BATCH = (1.0, 2.0, 4.0, 8.0)


class Level(StrEnum):
    """How much is recorded; each level includes the one before it."""

    OFF = "off"  # counts alone
    HOST = "host"  # moments as the event loop sees them
    SAMPLED = "sampled"  # the time of the native step, of one step in `sample_period`


class Phase(StrEnum):
    """A step with a row of any prompt is a prefill step."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, frozen=True)
class Telemetry:
    """What an engine records."""

    level: Level = Level.OFF
    sample_period: int = 8
    sample_offset: int = 4  # which step of each period

    def samples(self, n_steps_before: int) -> bool:
        """Whether the step after so many others is timed."""
        if self.level is not Level.SAMPLED:
            return False
        return n_steps_before % self.sample_period == self.sample_offset


class Histogram:
    """Counts of values by upper bounds, as OpenMetrics has them: a bound counts itself."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class DeviceTimes:
    """Seconds of the sampled native steps that one request was in, others' rows included."""

    n_steps: int = 0
    prefill_s: float = 0.0
    n_decode: int = 0
    decode_s: float = 0.0
    decode_max_s: float = 0.0

    def add(self, phase: Phase, seconds: float) -> None:
        """`phase` is that of the request's own rows."""
        self.n_steps += 1
        if phase is Phase.PREFILL:
            self.prefill_s += seconds
        else:
            self.n_decode += 1
            self.decode_s += seconds
            self.decode_max_s = max(self.decode_max_s, seconds)

    @property
    def decode_mean_s(self) -> float | None:
        return self.decode_s / self.n_decode if self.n_decode else None


class StepTally:
    """What the steps of one engine add up to; all numbers only grow."""

    def __init__(self) -> None:
        self.n_prefill = 0  # plain numbers: they are counted in every step
        self.n_decode = 0
        self.batch_size = Histogram(BATCH)  # replies in one step; not with Level.OFF
        self.device_s = {phase: Histogram(SECONDS) for phase in Phase}  # of sampled steps

    @property
    def n_steps(self) -> dict[Phase, int]:
        return {Phase.PREFILL: self.n_prefill, Phase.DECODE: self.n_decode}


@dataclass(slots=True)
class Timings:
    """The moments of one request, in the order in which they come."""

    queued_at: float
    admitted_at: float | None = None  # a slot was given
    prefill_started_at: float | None = None  # the first step with rows of its prompt began
    prefill_ended_at: float | None = None  # the step with the last row of its prompt came back
    # one per token picked
    token_times: "array[float]" = field(default_factory=lambda: array("d"))
    finished_at: float | None = None

    device: DeviceTimes | None = None  # with Level.SAMPLED, once a step was sampled
    batch_max: int = 0  # the most replies in one step with this one

    @property
    def queue_s(self) -> float | None:
        """Seconds of waiting for a slot."""
        return None if self.admitted_at is None else self.admitted_at - self.queued_at

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the first prompt row to the last, other requests' rows included."""
        if self.prefill_started_at is None or self.prefill_ended_at is None:
            return None
        return self.prefill_ended_at - self.prefill_started_at

    @property
    def first_token_s(self) -> float | None:
        """Seconds from asking to the first token."""
        return self.token_times[0] - self.queued_at if self.token_times else None

    @property
    def token_s(self) -> float | None:
        """Mean seconds between one token and the next; there is none for a reply of one token."""
        n_gaps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / n_gaps if n_gaps > 0 else None

    @property
    def total_s(self) -> float | None:
        """Seconds from asking to the end of the reply."""
        return None if self.finished_at is None else self.finished_at - self.queued_at
