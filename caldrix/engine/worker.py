"""The one thread that runs steps, and the form in which a step crosses to it.

Owns the thread; the event loop owns everything else, so there are no locks: a step goes over as
plain lists, its picks come back through the loop. An exception in a step is that step's (StepError)
and the thread goes on; anything that ends the thread reaches the loop as an exit with its reason,
and whoever waits for a step gets WorkerDied.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from caldrix import native
from caldrix.engine.sampler import sampling_of
from caldrix.engine.scheduler import Step
from caldrix.errors import CaldrixError, EngineError, printable


class Program(Protocol):
    """What the engine needs of a compiled model; caldrix.compile.program has it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def max_out(self) -> int: ...
    def step(
        self,
        tokens: Items[int],
        positions: Items[int],
        slots: Items[int],
        out_rows: Items[int],
        sampling: Items[native.Sampling] | None,
    ) -> list[native.Pick]: ...
    def cancel(self) -> None: ...


class StepError(Exception):
    """A step raised; the message says what, in one line."""


class WorkerDied(Exception):
    """The thread has ended; no step will run any more."""


@dataclass(slots=True, frozen=True)
class StepRows:
    """A step as a program takes it."""

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    out_rows: list[int]
    sampling: list[native.Sampling]


def rows_of(step: Step) -> StepRows:
    """The rows of a step's chunks, one after the other."""
    rows = StepRows([], [], [], [], [])
    for chunk in step.chunks:
        n_before, n_rows = len(rows.tokens), len(chunk.token_ids)
        rows.tokens.extend(chunk.token_ids)
        rows.positions.extend(range(chunk.start, chunk.start + n_rows))
        rows.slots.extend([chunk.slot] * n_rows)
        for row in range(n_rows - chunk.n_out, n_rows):
            rows.out_rows.append(n_before + row)
            rows.sampling.append(sampling_of(chunk.sequence, chunk.start + row + 1))
    return rows


@dataclass(slots=True)
class StepResult:
    picks: list[native.Pick]
    seconds: float | None  # that the program's step took, if it was timed


@dataclass(slots=True)
class Job:
    rows: StepRows
    result: asyncio.Future[StepResult]
    is_timed: bool = False
    is_cancelled: bool = False


class Worker:
    """Starts its thread at once, and must be made where the event loop runs."""

    def __init__(self, program: Program, on_exit: Callable[[str], None]) -> None:
        self._program = program
        self._on_exit = on_exit  # called in the loop with the reason, empty after stop()
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._in_flight: Job | None = None
        self._exited = asyncio.Event()
        # A daemon, so that a program that ends without closing its engine does not wait for it.
        self._thread = threading.Thread(target=self._main, name="caldrix-engine", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise EngineError(f"cannot start a thread for the engine: {error}") from None

    async def run(self, step: Step, is_timed: bool = False) -> StepResult:
        """One step.

        Raises native.Cancelled, StepError or WorkerDied. The thread wakes the caller, also when it
        dies.
        """
        if self._exited.is_set():
            raise WorkerDied("the thread has ended")
        job = Job(rows_of(step), self._loop.create_future(), is_timed)
        self._in_flight = job
        self._jobs.put(job)
        try:
            return await job.result
        finally:
            self._in_flight = None

    def interrupt(self) -> None:
        """Makes the step in flight raise native.Cancelled, unless it is about to return."""
        assert self._in_flight is not None
        self._in_flight.is_cancelled = True  # for a step that the thread has not begun
        self._program.cancel()

    def stop(self) -> None:
        """Asks the thread to end after the step in flight."""
        self._jobs.put(None)

    async def join(self) -> None:
        """Waits for the thread to end; a step's time has no limit, so this has none."""
        await self._exited.wait()
        self._thread.join()

    # In the thread

    def _main(self) -> None:
        reason = ""
        try:
            while (job := self._jobs.get()) is not None:
                self._step(job)
        except BaseException as error:
            reason = printable(error)
        finally:
            self._call(self._set_exited, reason)

    def _step(self, job: Job) -> None:
        rows = job.rows
        try:
            if job.is_cancelled:
                raise native.Cancelled
            started = time.perf_counter() if job.is_timed else None
            picks = self._program.step(
                rows.tokens, rows.positions, rows.slots, rows.out_rows, rows.sampling
            )
            seconds = None if started is None else time.perf_counter() - started
        except native.Cancelled as error:
            self._call(_set_error, job.result, error)
        except Exception as error:
            message = str(error) if isinstance(error, CaldrixError) else printable(error)
            self._call(_set_error, job.result, StepError(message))
        else:
            self._call(_set_result, job.result, StepResult(picks, seconds))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        # The loop is closed when its program ended without closing the engine: nobody is left to be
        # told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # In the loop again

    def _set_exited(self, reason: str) -> None:
        self._exited.set()
        if self._in_flight is not None:
            _set_error(self._in_flight.result, WorkerDied(reason))
        self._on_exit(reason)


def _set_result(future: asyncio.Future[StepResult], result: StepResult) -> None:
    if not future.done():  # done: whoever waited was cancelled
        future.set_result(result)


def _set_error(future: asyncio.Future[StepResult], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
