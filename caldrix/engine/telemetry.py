"""When each stage of one request happened.

Owns the moments and the durations derived from them; knows nothing of scheduling or of who reads
them. All moments are `time.monotonic()` seconds, so only their differences mean anything. `None`
says that a moment has not come.
"""

from array import array
from dataclasses import dataclass, field


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
