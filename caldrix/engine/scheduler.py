"""What runs next: the queue, the slots in use, and the rows of each step.

Plain synchronous code: no awaits, no tensors, no threads. One step is in flight at a time;
`schedule` starts it and exactly one of `complete`, `interrupted` or `failed` ends it. Row
invariance of the plan makes every choice here free of consequences for the replies: chunks, mixes
and prefixes change when a token comes, never which.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING

from caldrix.engine.kv_cache import KVCache
from caldrix.engine.sequence import CancelReason, FinishReason, Place, Sequence
from caldrix.engine.telemetry import DeviceTimes, Level, Phase, StepTally, Telemetry
from caldrix.errors import BusyError

if TYPE_CHECKING:
    from caldrix.native import Pick

# Prompt rows in a step that also decodes. A chunk of this size reads each weight once for all its
# rows, so it costs a few decode steps of time; running replies wait no longer than that for their
# next token.
MIXED_PROMPT_ROWS = 32


class Admission(StrEnum):
    FILL = "fill"  # every step admits into all free slots
    ONE = "one"  # a step admits at most one


@dataclass(slots=True, frozen=True)
class Limits:
    """What a program and the queue have room for."""

    n_slots: int
    max_rows: int  # of one step
    max_out: int  # tokens picked in one step
    queue_depth: int  # sequences that may wait beyond those that a free slot is there for
    mixed_prompt_rows: int = MIXED_PROMPT_ROWS


@dataclass(slots=True, frozen=True)
class Chunk:
    """Neighbouring rows of one sequence in a step."""

    sequence: Sequence
    slot: int
    start: int  # the position of the first row
    token_ids: tuple[int, ...]
    n_out: int  # the last n_out rows each pick a token, or score the prompt's next one

    @property
    def phase(self) -> Phase:
        return Phase.PREFILL if self.start < self.sequence.n_prompt else Phase.DECODE


@dataclass(slots=True, frozen=True)
class Step:
    """What one call of the program computes."""

    chunks: tuple[Chunk, ...]

    @property
    def n_out(self) -> int:
        return sum(chunk.n_out for chunk in self.chunks)


class Scheduler:
    """Which sequences run, and what of them each step computes."""

    def __init__(
        self,
        limits: Limits,
        admission: Admission = Admission.FILL,
        clock: Callable[[], float] = time.monotonic,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._clock = clock
        self._telemetry = telemetry or Telemetry()
        self.tally = StepTally()

        self._kv = KVCache(limits.n_slots)
        self._waiting: OrderedDict[Place, deque[Sequence]] = OrderedDict()  # none of them empty
        self._running: dict[int, Sequence] = {}  # by slot, in order of admission
        self._in_flight: Step | None = None
        self._n_turns = 0
        self._is_repeating = False  # the step before this one was interrupted

    @property
    def n_waiting(self) -> int:
        """Requests of which no sequence has a slot yet."""
        return sum(not place.is_left for place in self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def sequences(self) -> list[Sequence]:
        """All that have not ended, the running ones first."""
        waiting = chain.from_iterable(self._waiting.values())
        return [s for s in chain(self._running.values(), waiting) if not s.is_finished]

    @property
    def running(self) -> list[Sequence]:
        """Those in a slot; one that ended in the step in flight has it until that is over."""
        return list(self._running.values())

    @property
    def n_held(self) -> list[int]:
        """Tokens whose keys and values each slot holds, in use or kept."""
        held = self._kv.n_kept
        for slot, sequence in self._running.items():
            held[slot] = sequence.n_computed
        return held

    @property
    def is_sampled(self) -> bool:
        """Whether the native time of the step in flight is wanted."""
        n_before = self.tally.n_prefill + self.tally.n_decode
        return self._telemetry.samples(n_before)

    # What comes in and what is called off

    def add(self, *sequences: Sequence) -> None:
        """Queues the sequences of one request, which take one place together.

        Raises BusyError when the queue is full.
        """
        if not sequences:
            return
        self._check_depth()
        n_ahead, place = self.n_waiting, sequences[0].place
        for sequence in sequences:
            sequence.place = place
            sequence.n_ahead = n_ahead
        self._waiting[place] = deque(sequences)

    def _check_depth(self) -> None:
        """When every slot is taken or about to be."""
        n_free, n_staying = self._kv.n_free, 0
        for place, waiting in self._waiting.items():
            n_staying += n_free <= 0 and not place.is_left
            n_free -= len(waiting)
        depth = self._limits.queue_depth
        if n_free <= 0 and n_staying >= depth:
            waiting_ones = f"{depth} request{'s are' if depth != 1 else ' is'} already waiting"
            full = waiting_ones if depth else "every slot is in use"
            raise BusyError(f"{full} (--queue-depth {depth})")

    def n_before(self, sequence: Sequence) -> int:
        """Requests that wait before a sequence now; 0 for one that does not wait."""
        n_before = 0
        for place in self._waiting:
            if place is sequence.place:
                return n_before
            n_before += not place.is_left
        return 0

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: str = "",
        cancel_reason: CancelReason | None = None,
    ) -> None:
        """Ends a sequence; with rows in the step in flight it keeps its slot until that is over."""
        if sequence.is_finished:
            return
        sequence.finish(reason, self._clock(), error, cancel_reason)
        if sequence.slot is None:
            self._forget(sequence)
        elif not any(chunk.sequence is sequence for chunk in self._chunks_in_flight()):
            self._release(sequence, sequence.token_ids[: sequence.n_computed])

    def _forget(self, sequence: Sequence) -> None:
        waiting = self._waiting[sequence.place]
        waiting.remove(sequence)  # as a rule the first
        if not waiting:
            del self._waiting[sequence.place]

    def abandon(self, error: str) -> None:
        """Ends everything, the step in flight too, which will not come back.

        Nothing is scheduled after this.
        """
        for sequence in self.sequences:
            sequence.finish(FinishReason.ERROR, self._clock(), error)
        self._waiting.clear()
        self._running.clear()
        self._in_flight = None

    def wants_interrupt(self) -> bool:
        """Whether the step in flight is mostly for sequences that have ended.

        A step shared with others is interrupted only when the one before it was not: they lose a
        step at most, however often somebody calls off a long prompt.
        """
        chunks = self._chunks_in_flight()
        n_rows = sum(len(chunk.token_ids) for chunk in chunks)
        n_ended = sum(len(chunk.token_ids) for chunk in chunks if chunk.sequence.is_finished)
        if n_ended == n_rows:
            return n_rows > 0
        return not self._is_repeating and 2 * n_ended > n_rows

    # One step

    def schedule(self) -> Step | None:
        """Admits what there is room for and starts the next step; None: nothing to do."""
        assert self._in_flight is None
        self._admit()
        singles = self._single_chunks()
        chunks = singles + self._prompt_chunks(singles)
        if not chunks:
            return None
        for chunk in chunks:
            self._n_turns += 1
            chunk.sequence.last_turn = self._n_turns
            if chunk.sequence.timings.prefill_started_at is None:
                chunk.sequence.timings.prefill_started_at = self._clock()
                chunk.sequence.notify()
        self._in_flight = Step(tuple(chunks))
        return self._in_flight

    def complete(self, picks: Items["Pick"], device_s: float | None = None) -> None:
        """Ends the step in flight with one pick for each row that wanted one, in order.

        `device_s`: the seconds that the native step took, if it was timed.
        """
        step = self._end_step()
        assert len(picks) == step.n_out
        self._is_repeating = False
        now = self._clock()
        self._count(step, device_s)
        remaining = iter(picks)
        for chunk in step.chunks:
            self._take(chunk, list(islice(remaining, chunk.n_out)), now)

    def interrupted(self) -> None:
        """Ends the step in flight as one that computed nothing; those that go on repeat it."""
        self._is_repeating = True
        for chunk in self._end_step().chunks:
            sequence = chunk.sequence
            if sequence.is_finished:
                self._release(sequence, sequence.token_ids[: sequence.n_computed])

    def failed(self, error: str) -> None:
        """Ends the step in flight and every sequence in it.

        What their slots hold is not trusted any more.
        """
        step = self._end_step()
        now = self._clock()
        for chunk in step.chunks:
            if not chunk.sequence.is_finished:
                chunk.sequence.finish(FinishReason.ERROR, now, error)
            self._release(chunk.sequence, [])

    # How

    def _chunks_in_flight(self) -> tuple[Chunk, ...]:
        return () if self._in_flight is None else self._in_flight.chunks

    def _end_step(self) -> Step:
        step = self._in_flight
        assert step is not None
        self._in_flight = None
        return step

    def _release(self, sequence: Sequence, held: list[int]) -> None:
        assert sequence.slot is not None
        del self._running[sequence.slot]
        self._kv.release(sequence.slot, held)

    def _admit(self) -> None:
        n_places = self._kv.n_free
        if self._admission is Admission.ONE:
            n_places = min(n_places, 1)
        for _ in range(n_places):
            place = next(iter(self._waiting), None)
            if place is None:
                return
            sequence = self._waiting[place][0]
            self._forget(sequence)
            request = sequence.request
            may_reuse = request.use_cache and not request.echo_logprobs  # every row gives a score
            placement = self._kv.acquire(request.prompt_ids, may_reuse)
            place.is_left = True
            sequence.start(placement.slot, placement.n_cached, self._clock())
            self._running[placement.slot] = sequence

    def _single_chunks(self) -> list[Chunk]:
        """One row for each sequence that needs only that for its next token: the running replies.

        Where not all fit, those that have waited longest. A longer prompt gets at least one row
        beside them, if a step has more than one; one whose rows all give scores, a turn like them.
        """
        room = self._limits.max_rows
        if room > 1 and any(sequence.n_pending > 1 for sequence in self._running.values()):
            room -= 1
        room = min(room, self._limits.max_out)
        running = self._running.items()
        ready = [item for item in running if item[1].n_pending == 1 or item[1].scores_prompt]
        ready.sort(key=lambda item: item[1].last_turn)
        return [
            Chunk(sequence, slot, sequence.n_computed, (sequence.token_ids[-1],), 1)
            for slot, sequence in ready[:room]
            if sequence.n_pending == 1
        ]

    def _prompt_chunks(self, singles: list[Chunk]) -> list[Chunk]:
        """Prompts in order of admission, as far as the step has room."""
        room = self._limits.max_rows - len(singles)
        if singles:
            room = min(room, self._limits.mixed_prompt_rows)
        room_out = self._limits.max_out - len(singles)
        chunks: list[Chunk] = []
        for slot, sequence in self._running.items():
            n_pending = sequence.n_pending
            n_rows = min(n_pending, room) if n_pending > 1 else 0
            if sequence.scores_prompt:
                n_rows = n_out = min(n_rows, room_out)
            elif n_rows == n_pending and room_out == 0:
                n_rows, n_out = n_rows - 1, 0  # its last row picks a token: in a later step
            else:
                n_out = int(n_rows == n_pending)
            if n_rows == 0:
                continue
            start = sequence.n_computed
            rows = tuple(sequence.token_ids[start : start + n_rows])
            chunks.append(Chunk(sequence, slot, start, rows, n_out))
            room -= n_rows
            room_out -= n_out
        return chunks

    def _count(self, step: Step, device_s: float | None) -> None:
        replies = [chunk for chunk in step.chunks if chunk.start >= chunk.sequence.n_prompt]
        if len(replies) == len(step.chunks):
            self.tally.n_decode += 1
        else:
            self.tally.n_prefill += 1
        if self._telemetry.level is Level.OFF:
            return
        if replies:
            self.tally.batch_size.observe(len(replies))
        for chunk in replies:
            timings = chunk.sequence.timings
            timings.batch_max = max(timings.batch_max, len(replies))
        if device_s is not None:
            phase = Phase.DECODE if len(replies) == len(step.chunks) else Phase.PREFILL
            self.tally.device_s[phase].observe(device_s)
            self._add_device_time(step, device_s)

    def _add_device_time(self, step: Step, device_s: float) -> None:
        for chunk in step.chunks:
            timings = chunk.sequence.timings
            timings.device = timings.device or DeviceTimes()
            timings.device.add(chunk.phase, device_s)

    def _take(self, chunk: Chunk, picks: list["Pick"], now: float) -> None:
        """What one chunk of a completed step brings its sequence."""
        sequence = chunk.sequence
        sequence.take(chunk.start + len(chunk.token_ids), picks, now)
        if sequence.is_finished:
            is_sound = all(pick.finite for pick in picks)
            self._release(sequence, sequence.token_ids[: sequence.n_computed] if is_sound else [])
