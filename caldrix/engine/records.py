"""What is kept of replies that have ended: a ring of records, and how long replies take.

Owns the ring, the call of the sink and the guess when a place is free. A record holds counts and
moments, never a token. A sink that fails is called no more; the engine goes on.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from caldrix import log
from caldrix.engine.sequence import CancelReason, FinishReason, Sequence
from caldrix.engine.telemetry import Level, Timings
from caldrix.errors import printable

RING = 256
_N_RECENT = 32  # replies whose time in a slot says how long the next ones take
_MAX_RETRY_S = 30


@dataclass(slots=True, frozen=True)
class ReplyRecord:
    """One reply that has ended."""

    label: str
    finish_reason: FinishReason
    cancel_reason: CancelReason | None
    error: str
    slot: int | None  # None: it never got one
    n_ahead: int
    n_prompt: int
    n_cached: int
    n_completion: int
    timings: Timings


Sink = Callable[[ReplyRecord], None]


def record_of(sequence: Sequence) -> ReplyRecord:
    assert sequence.finish_reason is not None
    return ReplyRecord(
        sequence.label,
        sequence.finish_reason,
        sequence.cancel_reason,
        sequence.error,
        sequence.slot,
        sequence.n_ahead,
        sequence.n_prompt,
        sequence.n_cached,
        sequence.n_completion,
        sequence.timings,
    )


class Records:
    """With Level.OFF nothing is kept but the times in a slot."""

    def __init__(self, level: Level, sink: Sink | None = None) -> None:
        self._level = level
        self._sink = sink
        self._slot_s: deque[float] = deque(maxlen=_N_RECENT)
        self.recent: deque[ReplyRecord] = deque(maxlen=RING)  # the last one last

    def add(self, sequence: Sequence) -> None:
        """Takes note of a sequence that has just ended."""
        timings = sequence.timings
        if timings.admitted_at is not None and timings.finished_at is not None:
            self._slot_s.append(timings.finished_at - timings.admitted_at)
        if self._level is Level.OFF:
            return
        record = record_of(sequence)
        self.recent.append(record)
        if self._sink is None:
            return
        try:
            self._sink(record)
        except Exception as error:
            self._sink = None
            log.status(f"telemetry is not passed on any more: {printable(error)}")

    def retry_after_s(self, n_slots: int) -> int:
        """Seconds until a slot is likely to be free, and with it a place: 1 to 30."""
        if not self._slot_s:
            return 1
        mean = sum(self._slot_s) / len(self._slot_s)
        return max(1, min(_MAX_RETRY_S, math.ceil(mean / n_slots)))
