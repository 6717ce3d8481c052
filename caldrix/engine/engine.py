"""Requests in, tokens out: the engine object, its step loop, and the handle on one reply.

Owns the life cycle: start, the loop of schedule, step, take, and close; cancelling; failing closed.
Knows nothing of text. Everything here runs in one event loop, which never blocks: steps run on the
worker's thread. An engine that cannot go on ends every request with an EngineError and takes no
more.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from caldrix import native
from caldrix.engine.scheduler import Admission, Limits, Scheduler
from caldrix.engine.sequence import (
    FinishReason,
    Request,
    Sequence,
    SequenceStatus,
    check_request,
    new_sequence,
)
from caldrix.engine.telemetry import Timings
from caldrix.engine.worker import Program, StepError, Worker, WorkerDied
from caldrix.errors import EngineError, printable

# How many steps in a row may come back as cancelled without our asking before the sequences in them
# are given up.
_MAX_UNASKED = 3


class Generation:
    """One reply: iterate over its tokens.

    The engine may run ahead; at most a context of tokens waits here.
    """

    def __init__(
        self, sequence: Sequence, woken: asyncio.Event, cancel: Callable[[Sequence], None]
    ) -> None:
        self._sequence = sequence
        self._woken = woken
        self._cancel = cancel
        self._n_read = 0

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        """The next token; a reply that ended with an error raises it after its tokens."""
        sequence = self._sequence
        while self._n_read == sequence.n_visible:
            if sequence.finish_reason is FinishReason.ERROR:
                raise EngineError(sequence.error)
            if sequence.is_finished:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()  # set by every token and by the end, which always comes
        token_id = sequence.token_ids[sequence.n_prompt + self._n_read]
        self._n_read += 1
        return token_id

    def cancel(self) -> None:
        """Ends the reply now; tokens already here can still be read.

        No effect on one that has ended.
        """
        self._cancel(self._sequence)

    @property
    def status(self) -> SequenceStatus:
        return self._sequence.status

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while the reply goes on."""
        return self._sequence.finish_reason

    @property
    def seed(self) -> int:
        return self._sequence.seed

    @property
    def slot(self) -> int | None:
        return self._sequence.slot

    @property
    def n_prompt(self) -> int:
        return self._sequence.n_prompt

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that an earlier one had left in the slot."""
        return self._sequence.n_cached

    @property
    def n_completion(self) -> int:
        """Tokens picked, read or not, a stop token included."""
        return self._sequence.n_completion

    @property
    def logprobs(self) -> list[native.TokenLogprob]:
        """One for each token of the reply so far, read or not; none when not asked for."""
        return self._sequence.logprobs

    @property
    def prompt_logprobs(self) -> list[native.TokenLogprob | None]:
        """With echo_logprobs, one for each token of the prompt so far; the first has none."""
        return self._sequence.prompt_logprobs

    @property
    def timings(self) -> Timings:
        return self._sequence.timings


class Engine:
    """Runs one program. The program stays the caller's, to be closed after the engine."""

    def __init__(
        self,
        program: Program,
        queue_depth: int = 8,
        admission: Admission | str = Admission.FILL,
    ) -> None:
        self._program = program
        limits = Limits(program.n_slots, program.max_rows, program.max_out, queue_depth)
        self._scheduler = Scheduler(limits, Admission(admission))

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

    async def start(self) -> None:
        """Starts the thread and the loop; once in an engine's life, else raises EngineError."""
        if self._loop_task is not None:
            raise EngineError("the engine is started already")
        if self._is_closing:
            raise EngineError("the engine is shutting down")
        self._worker = Worker(self._program, self._worker_exited)
        self._loop_task = asyncio.create_task(self._run(self._worker), name="caldrix-engine")

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
        self._check_running()
        check_request(request, self._program.context, self._program.vocab_size)
        woken = asyncio.Event()
        sequence = new_sequence(request, self._program.context, time.monotonic(), woken.set)
        self._scheduler.add(sequence)
        self._has_work.set()
        return Generation(sequence, woken, self._cancel)

    def _check_running(self) -> None:
        if self._failure:
            raise EngineError(self._failure)
        if self._is_closing:
            raise EngineError("the engine is shutting down")
        if self._loop_task is None:
            raise EngineError("the engine is not started")

    def _cancel(self, sequence: Sequence) -> None:
        self._scheduler.end(sequence, FinishReason.CANCELLED)
        self._interrupt_if_wanted()

    def _end(self, running: bool) -> None:
        for sequence in self._scheduler.sequences:
            if running or sequence.slot is None:
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
            picks = await worker.run(step)
        except native.Cancelled:
            self._step_cancelled()
        except StepError as error:
            self._scheduler.failed(f"a step of the model failed: {error}")
        else:
            self._n_unasked = 0
            self._scheduler.complete(picks)
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
