"""Requests in, tokens out: the engine object and its step loop.

Owns the life cycle: start, the loop of schedule, step, take, and close; cancelling; failing closed.
Knows nothing of text. Everything here runs in one event loop, which never blocks: steps run on the
worker's thread. An engine that cannot go on ends every request with an EngineError and takes no
more.
"""

import asyncio
import time
from collections.abc import Iterable
from collections.abc import Sequence as Items

from caldrix import native
from caldrix.engine.generation import Generation
from caldrix.engine.records import Records, Sink
from caldrix.engine.scheduler import Admission, Limits, Scheduler
from caldrix.engine.sequence import (
    CancelReason,
    FinishReason,
    Place,
    Request,
    Sequence,
    check_request,
    new_sequence,
)
from caldrix.engine.snapshot import Snapshot, snapshot_of
from caldrix.engine.telemetry import StepTally, Telemetry
from caldrix.engine.worker import Program, StepError, Worker, WorkerDied
from caldrix.errors import EngineError, printable

# How many steps in a row may come back as cancelled without our asking before the sequences in them
# are given up.
_MAX_UNASKED = 3


class Engine:
    """Runs one program. The program stays the caller's, to be closed after the engine."""

    def __init__(
        self,
        program: Program,
        queue_depth: int = 8,
        admission: Admission | str = Admission.FILL,
        telemetry: Telemetry | None = None,
        sink: Sink | None = None,
    ) -> None:
        """`sink` is called with the record of each reply as it ends, unless telemetry is off."""
        telemetry = telemetry or Telemetry()
        self._program = program
        self._limits = Limits(program.n_slots, program.max_rows, program.max_out, queue_depth)
        self._scheduler = Scheduler(self._limits, Admission(admission), telemetry=telemetry)
        self.records = Records(telemetry.level, sink)

        # From start() on
        self._loop_task: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._has_work = asyncio.Event()
        self._is_closing = False
        self._failure = ""

        # Of the step in flight
        self._asked_interrupt = False
        self._n_unasked = 0

    @property
    def failed(self) -> str:
        """Why the engine cannot go on; empty while it can."""
        return self._failure

    @property
    def n_waiting(self) -> int:
        return self._scheduler.n_waiting

    @property
    def n_running(self) -> int:
        return self._scheduler.n_running

    @property
    def tally(self) -> StepTally:
        """What the steps so far add up to."""
        return self._scheduler.tally

    def snapshot(self) -> Snapshot:
        """The queue and the slots as they are now."""
        return snapshot_of(self._scheduler, self._limits, self._program.context)

    def retry_after_s(self) -> int:
        """When one who was told that the queue is full should ask again."""
        return self.records.retry_after_s(self._limits.n_slots)

    async def start(self) -> None:
        """Starts the thread and the loop; once in an engine's life, else raises EngineError."""
        if self._loop_task is not None:
            raise EngineError("the engine is started already")
        if self._is_closing:
            raise EngineError("the engine is shutting down")
        self._worker = Worker(self._program, self._worker_exited)
        self._loop_task = asyncio.create_task(self._run(self._worker), name="caldrix-engine")

    async def ended(self) -> None:
        """Waits until the engine, which was started, has failed or is closed."""
        assert self._loop_task is not None
        await asyncio.wait([self._loop_task])

    async def close(self, grace_s: float = 0.0) -> None:
        """Takes no more requests and ends those that wait; those that run get `grace_s` to finish.

        A second call may cut short the grace of the first. Returns when the thread has ended.
        """
        self._is_closing = True
        self._end(running=False)
        self._has_work.set()
        if self._loop_task is None or self._worker is None:
            return
        if grace_s > 0:
            await asyncio.wait([self._loop_task], timeout=grace_s)
        self._end(running=True)
        await asyncio.wait([self._loop_task])  # nothing is left to do but the step in flight
        await self._worker.join()

    def submit(self, request: Request) -> Generation:
        """Queues a request.

        Raises RefusedError, BusyError, or EngineError when the engine is not running.
        """
        return self.submit_all([request])[0]

    def submit_all(self, requests: Iterable[Request]) -> list[Generation]:
        """The same for several that are one to their asker: choices, or a list of prompts.

        They take one place in the queue, and go one behind the other or, where there are free
        slots, together. All are refused when one is.
        """
        generations = self.prepare(requests)
        self.enqueue(generations)
        return generations

    def prepare(self, requests: Iterable[Request]) -> list[Generation]:
        """The first half of submit_all: the checks, and replies that are not yet in the queue.

        Many requests or long ones take their time, and any thread may do this: nothing of the
        engine is touched. Raises RefusedError.
        """
        context, vocab_size = self._program.context, self._program.vocab_size
        end, n_before, on_finish = self._finish, self._scheduler.n_before, self.records.add
        generations: list[Generation] = []
        place, passed = Place(), None
        for request in requests:
            check_request(request, context, vocab_size, passed)
            passed = request
            sequence = new_sequence(request, context, place=place, on_finish=on_finish)
            generations.append(Generation(sequence, end, n_before))
        return generations

    def enqueue(self, generations: Items[Generation], label: str | None = None) -> None:
        """The other half: puts what `prepare` made in the queue, in one place.

        `label` replaces those of the requests. Raises BusyError, or EngineError when the engine is
        not running.
        """
        self._check_running()
        now = time.monotonic()
        sequences = [generation.sequence for generation in generations]
        for sequence in sequences:
            sequence.timings.queued_at = now
            if label is not None:
                sequence.label = label
        self._scheduler.add(*sequences)
        for deadline_s in {sequence.request.deadline_s for sequence in sequences} - {None}:
            assert deadline_s is not None
            self._set_deadline([s for s in sequences if s.request.deadline_s == deadline_s])
        self._has_work.set()

    def _set_deadline(self, sequences: list[Sequence]) -> None:
        """One timer for all of them, which share their deadline."""
        deadline_s, n_left = sequences[0].request.deadline_s, len(sequences)
        assert deadline_s is not None
        timer = asyncio.get_running_loop().call_later(deadline_s, self._expire, sequences)

        def ended(sequence: Sequence) -> None:
            nonlocal n_left
            n_left -= 1
            if n_left == 0:
                timer.cancel()
            self.records.add(sequence)

        for sequence in sequences:
            sequence.on_finish = ended

    def _expire(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            reasons = FinishReason.CANCELLED, "", CancelReason.DEADLINE
            self._scheduler.end(sequence, *reasons)
        self._interrupt_if_wanted()

    def _check_running(self) -> None:
        if self._failure:
            raise EngineError(self._failure)
        if self._is_closing:
            raise EngineError("the engine is shutting down")
        if self._loop_task is None:
            raise EngineError("the engine is not started")

    def _finish(
        self, sequence: Sequence, reason: FinishReason, cancel_reason: CancelReason | None
    ) -> None:
        if not sequence.is_finished:
            self._scheduler.end(sequence, reason, cancel_reason=cancel_reason)
            self._interrupt_if_wanted()

    def _end(self, running: bool) -> None:
        for sequence in self._scheduler.sequences:
            if running or not sequence.place.is_left:
                self._scheduler.end(sequence, FinishReason.ERROR, "the engine is shutting down")
        self._interrupt_if_wanted()

    def _interrupt_if_wanted(self) -> None:
        # Only while a step is in flight, so a cancel cannot hit the next one.
        if self._worker and not self._asked_interrupt and self._scheduler.wants_interrupt():
            self._asked_interrupt = True
            self._worker.interrupt()

    # The step loop

    async def _run(self, worker: Worker) -> None:
        try:
            while await self._step(worker):
                pass
        except WorkerDied:
            pass  # told by _worker_exited
        except Exception as error:
            self._fail(f"the engine's step loop failed: {printable(error)}")
        except asyncio.CancelledError:
            self._fail("the engine's task was cancelled")
            raise
        finally:
            worker.stop()

    async def _step(self, worker: Worker) -> bool:
        """Runs the next step, or waits for work; False when the engine is to end."""
        step = self._scheduler.schedule()
        if step is None:
            if self._is_closing:
                return False
            self._has_work.clear()
            await self._has_work.wait()  # set by submit, close and the worker's exit
            return not self._failure
        self._asked_interrupt = False
        try:
            result = await worker.run(step, self._scheduler.is_sampled)
        except native.Cancelled:
            self._step_cancelled()
        except StepError as error:
            self._scheduler.failed(f"a step of the model failed: {error}")
        else:
            self._n_unasked = 0
            self._scheduler.complete(result.picks, result.seconds)
        return True

    def _step_cancelled(self) -> None:
        self._n_unasked = 0 if self._asked_interrupt else self._n_unasked + 1
        if self._n_unasked > _MAX_UNASKED:
            self._scheduler.failed("steps of the model are cancelled again and again")
        else:
            self._scheduler.interrupted()

    def _worker_exited(self, reason: str) -> None:
        if reason:
            self._fail(f"the engine's thread died: {reason}")

    def _fail(self, message: str) -> None:
        """The engine cannot go on: nobody is left waiting."""
        self._failure = self._failure or message
        self._scheduler.abandon(message)
        self._has_work.set()
