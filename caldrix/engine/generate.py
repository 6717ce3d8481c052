"""The text of one reply, piece by piece.

Owns what lies between tokens and text: whole characters, stop strings, and the record of what came
out. Knows nothing of prompts, templates or who reads. A reply that nobody reads any more is
cancelled.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from caldrix.engine.engine import Engine
from caldrix.engine.generation import Generation
from caldrix.engine.sequence import FinishReason, Request
from caldrix.engine.telemetry import Timings
from caldrix.errors import EngineError
from caldrix.native import TokenLogprob
from caldrix.text.detokenize import Detokenizer, PieceSource, StopStrings


@dataclass(slots=True, frozen=True)
class TextPiece:
    """Text that is certain, with the log-probabilities of its tokens if they were asked for.

    A token comes with the piece that holds the end of its text, so a piece may have none. Only the
    last one may have no text, for tokens that are not shown or not whole.
    """

    text: str
    tokens: list[TokenLogprob]


@dataclass(slots=True, frozen=True)
class Result:
    """A reply that has ended.

    With a stop string the text ends before it, and the tokens end with the one that completed it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    n_prompt: int
    n_cached: int
    n_completion: int  # tokens picked for the reply, a stop token included
    timings: Timings


class _Reply:
    """What has been read of a generation so far."""

    def __init__(self, generation: Generation, tokenizer: PieceSource, stops: StopStrings) -> None:
        self.generation = generation
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.n_pushed = 0  # characters of the tokens so far, shown or not
        self.is_stopped = False  # by a stop string
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = stops

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token."""
        self.token_ids.append(token_id)
        text = self._detokenizer.push(token_id)
        self.n_pushed += len(text)
        return self._search(text)

    def finish(self) -> str:
        """The rest of the text when no more tokens come."""
        text = self._search(self._detokenizer.finish())
        if not self.is_stopped:
            rest = self._stops.finish()
            self.text.append(rest)
            text += rest
        return text

    def _search(self, text: str) -> str:
        text, self.is_stopped = self._stops.push(text)
        self.text.append(text)
        if self.is_stopped:
            self.generation.stop()
        return text


async def _pieces(reply: _Reply) -> AsyncGenerator[str, None]:
    try:
        async for token_id in reply.generation:
            if piece := reply.push(token_id):
                yield piece
            if reply.is_stopped:
                return
        if piece := reply.finish():
            yield piece
    finally:
        reply.generation.cancel()  # no effect on one that has ended


class _Tape:
    """Log-probabilities that wait until the text of their tokens is shown."""

    def __init__(self, reply: _Reply) -> None:
        self._reply = reply
        self._waiting: deque[tuple[int, int, TokenLogprob]] = deque()  # where its text is
        self._n_pushed = 0
        self._n_shown = 0

    def push(self, shown: str) -> list[TokenLogprob]:
        """After a push to the reply that made `shown` certain: the tokens that go with it.

        A token that only begins a character, or that is not shown, goes with the text after it.
        """
        reply, start = self._reply, self._n_pushed
        self._n_pushed = reply.n_pushed
        if reply.generation.logprobs:
            logprob = reply.generation.logprobs[len(reply.token_ids) - 1]
            self._waiting.append((start, max(self._n_pushed, start + 1), logprob))
        self._n_shown += len(shown)
        tokens = []
        while self._waiting and self._goes(*self._waiting[0][:2]):
            tokens.append(self._waiting.popleft()[2])
        return tokens

    def _goes(self, start: int, end: int) -> bool:
        """A stop string leaves behind the tokens that lie in it or after it with all their text."""
        return start < self._n_shown if self._reply.is_stopped else end <= self._n_shown

    def rest(self) -> list[TokenLogprob]:
        """What is left when no more tokens come."""
        return [] if self._reply.is_stopped else [logprob for *_, logprob in self._waiting]


async def _pieces_with_tokens(reply: _Reply) -> AsyncGenerator[TextPiece, None]:
    tape = _Tape(reply)
    try:
        async for token_id in reply.generation:
            text = reply.push(token_id)
            tokens = tape.push(text)
            if text or tokens:
                yield TextPiece(text, tokens)
            if reply.is_stopped:
                return
        text = reply.finish()
        tokens = tape.rest()
        if text or tokens:
            yield TextPiece(text, tokens)
    finally:
        reply.generation.cancel()  # no effect on one that has ended


class TextStream:
    """Iterate over the pieces, best inside `async with`, which cancels a reply that is left early.

    Without it, a reply that is dropped is cancelled when Python frees this object.
    """

    def __init__(self, generation: Generation, tokenizer: PieceSource, stops: StopStrings) -> None:
        """What is used of `stops` is its strings."""
        self.generation = generation
        self._tokenizer = tokenizer
        self._stops = stops
        # Made when it is read: many streams may wait for one another. The generators must not refer
        # to this object, since a cycle would put off its clean-up.
        self._begun: _Reply | None = None
        self._pieces: AsyncGenerator[str, None] | None = None
        self._with_tokens: AsyncGenerator[TextPiece, None] | None = None

    @property
    def _reply(self) -> _Reply:
        if self._begun is None:
            self._begun = _Reply(self.generation, self._tokenizer, self._stops.fresh())
        return self._begun

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        """The next piece; a reply that ended with an error raises it after its text."""
        if self._pieces is None:
            self._pieces = _pieces(self._reply)
        return await self._pieces.__anext__()

    def pieces(self) -> AsyncIterator[TextPiece]:
        """The same text with its tokens' log-probabilities; instead of iterating over this."""
        if self._with_tokens is None:
            self._with_tokens = _pieces_with_tokens(self._reply)
        return self._with_tokens

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
        for pieces in (self._pieces, self._with_tokens):
            if pieces is not None:
                await pieces.aclose()

    def cancel(self) -> None:
        """Ends the reply now; text already here can still be read."""
        self.generation.cancel()

    @property
    def n_read(self) -> int:
        """Tokens read so far, shown or not."""
        return len(self._reply.token_ids)

    @property
    def result(self) -> Result:
        """What came out; raises EngineError while the reply goes on."""
        reply, generation = self._reply, self._reply.generation
        reason = FinishReason.STOP if reply.is_stopped else generation.finish_reason
        if reason is None:
            raise EngineError("the reply goes on: its result is there when it has ended")
        return Result(
            text="".join(reply.text),
            token_ids=tuple(reply.token_ids),
            finish_reason=reason,
            n_prompt=generation.n_prompt,
            n_cached=generation.n_cached,
            n_completion=len(reply.token_ids) if reply.is_stopped else generation.n_completion,
            timings=generation.timings,
        )


def stream_text(
    engine: Engine, tokenizer: PieceSource, request: Request, stops: Sequence[str] = ()
) -> TextStream:
    """Submits a request, with the engine's refusals, and streams its reply as text."""
    return stream_all(engine, tokenizer, [request], stops)[0]


def stream_all(
    engine: Engine, tokenizer: PieceSource, requests: Iterable[Request], stops: Sequence[str] = ()
) -> list[TextStream]:
    """The same for several requests that take one place in the queue, as Engine.submit_all."""
    streams = prepare_all(engine, tokenizer, requests, stops)
    engine.enqueue([stream.generation for stream in streams])
    return streams


def prepare_all(
    engine: Engine, tokenizer: PieceSource, requests: Iterable[Request], stops: Sequence[str] = ()
) -> list[TextStream]:
    """The first half of stream_all, which any thread may do; the other is Engine.enqueue."""
    search = StopStrings(stops)
    return [TextStream(generation, tokenizer, search) for generation in engine.prepare(requests)]
