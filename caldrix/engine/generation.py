"""The handle on one reply: its tokens as they come, and what is known of it.

Owns the reader's place in the reply. Knows nothing of slots, steps or text; everything but reading
and ending is the sequence's. Runs in the engine's event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from caldrix import native
from caldrix.engine.sequence import CancelReason, FinishReason, Sequence, SequenceStatus
from caldrix.engine.telemetry import Timings
from caldrix.errors import EngineError


class Generation:
    """One reply: iterate over its tokens.

    The engine may run ahead; at most a context of tokens waits here.
    """

    def __init__(
        self,
        sequence: Sequence,
        end: Callable[[Sequence, FinishReason, CancelReason | None], None],
        n_before: Callable[[Sequence], int],
    ) -> None:
        self.sequence = sequence  # the engine's
        self._end = end
        self._n_before = n_before
        self._n_read = 0
        self._woken: asyncio.Event | None = None  # made when somebody waits

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        """The next token; a reply that ended with an error raises it after its tokens."""
        sequence = self.sequence
        while self._n_read == sequence.n_visible:
            if sequence.finish_reason is FinishReason.ERROR:
                raise EngineError(sequence.error)
            if sequence.is_finished:
                raise StopAsyncIteration
            await self._changed()  # by every token and by the end, which always comes
        token_id = sequence.token_ids[sequence.n_prompt + self._n_read]
        self._n_read += 1
        return token_id

    async def started(self) -> None:
        """Returns when the first step with rows of the prompt begins, or at an end without one."""
        sequence = self.sequence
        while not (self.has_started or sequence.is_finished):
            await self._changed()  # by that step and by the end, which always comes

    async def _changed(self) -> None:
        if self._woken is None:
            self._woken = asyncio.Event()
            self.sequence.notify = self._woken.set
        self._woken.clear()
        await self._woken.wait()

    @property
    def has_started(self) -> bool:
        return self.sequence.timings.prefill_started_at is not None

    def cancel(self) -> None:
        """Ends the reply now; tokens already here can still be read.

        No effect on one that has ended.
        """
        self._end(self.sequence, FinishReason.CANCELLED, CancelReason.CALLER)

    def stop(self) -> None:
        """The same for a reply that is complete, as its reader sees it: at a stop string."""
        self._end(self.sequence, FinishReason.STOP, None)

    @property
    def status(self) -> SequenceStatus:
        return self.sequence.status

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while the reply goes on."""
        return self.sequence.finish_reason

    @property
    def cancel_reason(self) -> CancelReason | None:
        """With FinishReason.CANCELLED."""
        return self.sequence.cancel_reason

    @property
    def label(self) -> str:
        return self.sequence.label

    @property
    def seed(self) -> int:
        return self.sequence.seed

    @property
    def slot(self) -> int | None:
        return self.sequence.slot

    @property
    def n_prompt(self) -> int:
        return self.sequence.n_prompt

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that an earlier one had left in the slot."""
        return self.sequence.n_cached

    @property
    def n_computed(self) -> int:
        """Tokens of the prompt that are computed, those found in the slot included."""
        return min(self.sequence.n_computed, self.sequence.n_prompt)

    @property
    def n_ahead(self) -> int:
        """Requests that wait before this one now; 0 once it has a slot."""
        return self._n_before(self.sequence)

    @property
    def n_completion(self) -> int:
        """Tokens picked, read or not, a stop token included."""
        return self.sequence.n_completion

    @property
    def logprobs(self) -> list[native.TokenLogprob]:
        """One for each token of the reply so far, read or not; none when not asked for."""
        return self.sequence.logprobs

    @property
    def prompt_logprobs(self) -> list[native.TokenLogprob | None]:
        """With echo_logprobs, one for each token of the prompt so far; the first has none."""
        return self.sequence.prompt_logprobs

    @property
    def timings(self) -> Timings:
        return self.sequence.timings
