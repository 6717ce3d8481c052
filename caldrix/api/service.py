"""What the handlers share: the model behind the API, its engine, the server's defaults and state.

Owns the counter of admitted requests, the way off the event loop for heavy work, and admission:
loading and draining before the queue, the queue before anything else. Knows no route and no shape.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from caldrix.api.access import Access
from caldrix.api.refusals import (
    ApiError,
    deadline_exceeded,
    engine_failed,
    engine_gone,
    from_library,
    queue_full,
    unavailable,
)
from caldrix.engine.engine import Engine
from caldrix.engine.generate import TextStream, prepare_all
from caldrix.engine.load import LoadedModel
from caldrix.engine.sequence import Request, SamplingParams
from caldrix.engine.telemetry import Level, Telemetry
from caldrix.errors import BusyError, EngineError, RefusedError

Value = TypeVar("Value")


class State(StrEnum):
    LOADING = "loading"  # there is no service yet
    OK = "ok"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Settings:
    """What flags and embedders decide."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    queue_depth: int = 8
    admission: str = "fill"
    telemetry: Telemetry = field(default_factory=lambda: Telemetry(Level.SAMPLED))
    telemetry_log: Callable[[str], None] | None = None  # takes a line at once, never raises
    # From admission on: a reply that takes longer ends where it is, an error if that is nowhere.
    deadline_s: float | None = None
    prefix_cache: bool = True  # whether what a slot holds of an earlier prompt may be used
    ping_interval_s: float = 15.0
    reasoning_format: str = "none"
    access: Access = field(default_factory=Access)
    access_log: Callable[[str], None] | None = None  # as telemetry_log, of every exchange


class Service:
    def __init__(self, model: LoadedModel, engine: Engine, settings: Settings) -> None:
        # The server's
        self.model = model
        self.engine = engine
        self.settings = settings
        self.created = int(time.time())
        self._threads = ThreadPoolExecutor(2, "caldrix-api")

        # So far
        self.is_draining = False
        self._n_admitted = 0

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def state(self) -> State:
        if self.engine.failed:
            return State.FAILED
        return State.DRAINING if self.is_draining else State.OK

    async def off_loop(self, work: Callable[[], Value]) -> Value:
        """Runs what may take longer than a few milliseconds on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def prepare(
        self, requests: Iterable[Request], stops: tuple[str, ...], param: str
    ) -> list[TextStream]:
        """The choices of one request, checked; on any thread. Refuses as the API does."""
        try:
            return prepare_all(self.engine, self.model.tokenizer, requests, stops)
        except RefusedError as error:
            raise from_library(error, param) from None

    def submit(self, streams: Sequence[TextStream], label: str) -> None:
        """Puts them in the engine's queue, or refuses."""
        self._check_open()
        try:
            self.engine.enqueue([stream.generation for stream in streams], label)
        except BusyError as error:
            raise queue_full(str(error), self.engine.retry_after_s()) from None
        except EngineError as error:
            raise self.engine_error(error) from None

    @property
    def next_number(self) -> int:
        """The number of the request that is admitted next."""
        return self._n_admitted + 1

    def admit(self) -> None:
        """Counts a request that is in the queue."""
        self._n_admitted += 1

    def engine_error(self, error: EngineError) -> ApiError:
        """For a request that was in the queue or ran."""
        if self.is_draining:
            return unavailable("shutting_down", "the server is shutting down")
        return engine_failed(str(error), may_retry=not self.engine.failed)

    def deadline_error(self, has_started: bool) -> ApiError:
        """For a request that has no token when its time is over."""
        seconds = f"{self.settings.deadline_s:g}"
        where = "its prompt was being computed" if has_started else "it was waiting in the queue"
        message = f"no token after {seconds} s (--request-timeout {seconds}): {where}"
        return deadline_exceeded(message, self.engine.retry_after_s())

    def _check_open(self) -> None:
        if self.state is State.FAILED:
            raise engine_gone(self.engine.failed)
        if self.state is State.DRAINING:
            raise unavailable("shutting_down", "the server is shutting down")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
