"""One answer after another: prompt ids in, text out as it is generated, Ctrl-C stops it.

Owns the event loop and the engine. Knows nothing of turns, templates or commands. The loop runs
only while an answer does; between answers the terminal is read by plain blocking calls.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from caldrix.cli.interrupts import Stop
from caldrix.cli.output import Output
from caldrix.engine.engine import Engine
from caldrix.engine.generate import Result, stream_text
from caldrix.engine.sequence import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    from caldrix.engine.load import LoadedModel


def was_stopped(reply: Result) -> bool:
    """Whether Ctrl-C ended it."""
    return reply.finish_reason is FinishReason.CANCELLED


class Replies:
    """One model's engine, its loop and the program itself, until `close`."""

    def __init__(self, model: "LoadedModel", output: Output) -> None:
        self._model = model
        self._output = output
        self._loop = asyncio.new_event_loop()
        self._engine = Engine(model.program)
        try:
            self._loop.run_until_complete(self._engine.start())
        except BaseException:
            self.close()
            raise

    def answer(
        self,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        max_tokens: int | None,
        stop: Stop,
    ) -> Result:
        """Writes the answer as it comes; a stopped one ends where it was."""
        stop.is_armed = True  # an exception would leave the loop in the middle of a task
        request = Request(prompt_ids, sampling, max_tokens, self._model.eos_token_ids)
        return self._loop.run_until_complete(self._stream(request, stop))

    async def _stream(self, request: Request, stop: Stop) -> Result:
        async with stream_text(self._engine, self._model.tokenizer, request) as stream:
            stop.on_press = partial(self._loop.call_soon_threadsafe, stream.cancel)
            if stop.is_pressed:  # before there was anything to cancel
                stream.cancel()
            try:
                async for piece in stream:
                    self._output.write(piece)
            finally:
                stop.on_press = None
            return stream.result

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()
        self._model.program.close()
