"""One answer after another: prompt ids in, text out as it is generated, Ctrl-C stops it.

Owns the event loop, the engine and what SIGINT means while an answer is on its way. Knows nothing
of turns, templates or commands. The loop runs only while an answer does; between answers the
terminal is read by plain blocking calls and Ctrl-C is Python's own KeyboardInterrupt again.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from caldrix.cli.output import Output
from caldrix.engine.engine import Engine
from caldrix.engine.generate import Result, stream_text
from caldrix.engine.sequence import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    from caldrix.engine.load import LoadedModel

PATIENCE_S = 1.0  # a second Ctrl-C later than this ends the program: the answer should have stopped


def was_stopped(reply: Result) -> bool:
    """Whether Ctrl-C ended it."""
    return reply.finish_reason is FinishReason.CANCELLED


def _raise() -> None:
    raise KeyboardInterrupt


def _only_note() -> None:
    pass


class Interrupts:
    """Ctrl-C from a message to the end of its answer.

    While the prompt is made it raises KeyboardInterrupt; from then on the first press stops the
    answer, wherever it is.
    """

    def __init__(self) -> None:
        self.pressed_at: float | None = None
        self.on_press: Callable[[], object] = _raise

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.pressed_at is not None and now - self.pressed_at > PATIENCE_S:
            raise KeyboardInterrupt
        self.pressed_at = self.pressed_at or now
        self.on_press()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    handler = Interrupts()
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        signal.signal(signal.SIGINT, before)


class Replies:
    def __init__(self, model: "LoadedModel", output: Output) -> None:
        self._model = model
        self._output = output
        self._loop = asyncio.new_event_loop()
        self._engine = Engine(model.program)
        self._loop.run_until_complete(self._engine.start())

    def answer(
        self,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        max_tokens: int | None,
        stop: Interrupts,
    ) -> Result:
        """Writes the answer as it comes; a stopped one ends where it was."""
        stop.on_press = _only_note  # an exception would leave the loop in the middle of a task
        request = Request(prompt_ids, sampling, max_tokens, self._model.eos_token_ids)
        return self._loop.run_until_complete(self._stream(request, stop))

    async def _stream(self, request: Request, stop: Interrupts) -> Result:
        async with stream_text(self._engine, self._model.tokenizer, request) as stream:
            stop.on_press = partial(self._loop.call_soon_threadsafe, stream.cancel)
            if stop.pressed_at is not None:  # before there was anything to cancel
                stream.cancel()
            try:
                async for piece in stream:
                    self._output.write(piece)
            finally:
                stop.on_press = _only_note
            return stream.result

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()
        self._model.program.close()
