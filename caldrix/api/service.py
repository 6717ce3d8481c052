"""What the handlers share: the model behind the API, its engine, the server's defaults and state.

Owns the counter of admitted requests, the way off the event loop for heavy work, and admission:
loading and draining before the queue, the queue before anything else. Knows no route and no shape.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from caldrix.api.access import Access
from caldrix.api.refusals import (
    ApiError,
    context_exceeded,
    engine_failed,
    engine_gone,
    from_library,
    queue_full,
    unavailable,
)
from caldrix.engine.engine import Engine
from caldrix.engine.generate import TextStream, stream_text
from caldrix.engine.load import LoadedModel
from caldrix.engine.sequence import Request, SamplingParams
from caldrix.errors import BusyError, EngineError, RefusedError

Value = TypeVar("Value")
MAX_RETRY_S = 30
_RECENT = 16  # service times that Retry-After is judged by


class State(StrEnum):
    OK = "ok"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Settings:
    """What flags and embedders decide."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    queue_depth: int = 8
    admission: str = "fill"
    telemetry: str = "sampled"
    telemetry_log: Callable[[str], None] | None = None  # takes a line at once, never raises
    ping_interval_s: float = 15.0
    reasoning_format: str = "none"
    access: Access = field(default_factory=Access)


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
        self._service_s: deque[float] = deque(maxlen=_RECENT)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def n_slots(self) -> int:
        return self.model.program.n_slots

    @property
    def state(self) -> State:
        if self.engine.failed:
            return State.FAILED
        return State.DRAINING if self.is_draining else State.OK

    async def off_loop(self, work: Callable[[], Value]) -> Value:
        """Runs what may take longer than a few milliseconds on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def submit(self, request: Request, stops: tuple[str, ...], param: str) -> TextStream:
        """Puts a request in the engine's queue, or refuses it as the API does."""
        self._check_open()
        try:
            return stream_text(self.engine, self.model.tokenizer, request, stops)
        except BusyError as error:
            raise queue_full(str(error), self.retry_after_s()) from None
        except EngineError as error:
            raise self.engine_error(error) from None
        except RefusedError as error:
            n_prompt = len(request.prompt_ids)
            if n_prompt >= self.model.context:
                raise context_exceeded(param, n_prompt, self.model.context) from None
            raise from_library(error, param) from None

    def admit(self) -> int:
        """Counts a request that is in the queue."""
        self._n_admitted += 1
        return self._n_admitted

    def finished(self, seconds: float) -> None:
        self._service_s.append(seconds)

    def retry_after_s(self) -> int:
        """When a place may be free: the queue ahead at the pace of the last requests."""
        if not self._service_s:
            return 1
        mean = sum(self._service_s) / len(self._service_s)
        return max(1, min(MAX_RETRY_S, math.ceil(mean * max(1, self.engine.n_waiting))))

    def engine_error(self, error: EngineError) -> ApiError:
        if self.engine.failed:
            return engine_gone(str(error))
        if self.is_draining:
            return unavailable("shutting_down", "the server is shutting down")
        return engine_failed(str(error))

    def _check_open(self) -> None:
        if self.state is State.FAILED:
            raise engine_gone(self.engine.failed)
        if self.state is State.DRAINING:
            raise unavailable("shutting_down", "the server is shutting down")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
