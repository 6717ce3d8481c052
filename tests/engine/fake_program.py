"""A program without a model: each token is a function of the tokens that its own slot really holds.

Every row stores a digest of the digest at the position before it and of its own token, as keys and
values do. A wrong slot, a stale prefix, a skipped or repeated position therefore changes every
later token, and `expected_reply` says what the tokens are when nothing goes wrong. Rows of a step
that was cancelled or failed are overwritten with a marker that must never be read.

Beside it, what tests of the engine share: a gate that holds a step, and a loop that leaves nothing
behind.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from caldrix import native
from caldrix.engine.engine import Engine
from caldrix.engine.sequence import FinishReason, Request

SPOILT = -1


def digest(before: int, token: int) -> int:
    return (before * 1_000_003 + token * 7919 + 12_345) % (2**61 - 1)


def pick(state: int, sampling: native.Sampling, vocab_size: int) -> int:
    """The token after a row, by everything that may decide it."""
    if sampling.temperature > 0:
        state = digest(state, sampling.seed % 1_000_003 + 31 * sampling.draw)
    for token in sampling.recent:
        state = digest(state, token)
    adjust = sampling.adjust or native.Adjust()
    if adjust.bias is not None:
        for token, value in adjust.bias.tolist():
            state = digest(digest(state, token), round(value * 1000))
    for token in [] if adjust.generated is None else np.asarray(adjust.generated).tolist():
        amount = adjust.presence_penalty + 3 * adjust.frequency_penalty
        state = digest(digest(state, token), round(amount * 1000))
    allowed = [t for t in range(vocab_size) if t not in adjust.forbidden]
    return allowed[state // 97 % len(allowed)]


def logprob(state: int, token: int, n_top: int) -> native.TokenLogprob:
    """Of a row in that state: numbers that no other row gives."""
    top = [(i, -float(digest(state, i) % 1000)) for i in range(n_top)]
    return native.TokenLogprob(token, -float(digest(state, token) % 1000), top)


def expected_prompt_logprobs(request: Request) -> list[native.TokenLogprob | None]:
    state, expected = 0, []
    for token in request.prompt_ids:
        expected.append(logprob(state, token, request.n_logprobs or 0))
        state = digest(state, token)
    return [None, *expected[1:]] if request.echo_logprobs else []


def expected_reply(
    request: Request, context: int, vocab_size: int, seed: int
) -> tuple[list[int], FinishReason]:
    """The visible tokens of a request that runs alone, without slots, chunks or a cache."""
    reply, reason, _ = expected_scored(request, context, vocab_size, seed)
    return reply, reason


def expected_scored(
    request: Request, context: int, vocab_size: int, seed: int
) -> tuple[list[int], FinishReason, list[native.TokenLogprob]]:
    """... with their log-probabilities, if asked for."""
    state = 0
    for token in request.prompt_ids:
        state = digest(state, token)
    tokens, reply, scores = list(request.prompt_ids), [], []
    room = context - len(request.prompt_ids)
    n_max = room if request.max_tokens is None else min(request.max_tokens, room)
    ends = set(request.stop_token_ids)
    if not request.ignore_eos:
        ends |= request.eos_token_ids
    penalty = request.sampling.repetition_penalty
    for draw in range(n_max):
        sampling = native.Sampling(
            temperature=request.sampling.temperature,
            seed=seed,
            draw=draw,
            recent=tokens[-64:] if penalty != 1 else (),
            adjust=expected_adjust(request, reply, ends),
        )
        token = pick(state, sampling, vocab_size)
        if token in ends:
            return reply, FinishReason.STOP, scores
        if request.n_logprobs is not None:
            scores.append(logprob(state, token, request.n_logprobs))
        reply.append(token)
        tokens.append(token)
        state = digest(state, token)
    return reply, FinishReason.LENGTH, scores


def expected_adjust(request: Request, reply: list[int], ends: set[int]) -> native.Adjust:
    presence, frequency = request.presence_penalty, request.frequency_penalty
    return native.Adjust(
        np.array(list(request.logit_bias.items()), native.BIAS),
        np.array(reply if presence or frequency else [], np.uint32),
        presence,
        frequency,
        sorted(ends) if len(reply) < request.min_tokens else (),
    )


class Gate:
    """Holds each step in its thread until told to go on; the event loop can wait for that."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._held = asyncio.Event()
        self._orders: SimpleQueue[str | BaseException] = SimpleQueue()
        self.is_open = False

    def hold(self) -> None:
        """In the thread: waits for an order, which may be to raise."""
        if self.is_open:
            return
        self._loop.call_soon_threadsafe(self._held.set)
        order = self._orders.get(timeout=5)
        if isinstance(order, BaseException):
            raise order

    async def held(self) -> None:
        """A step has begun and waits."""
        await self._held.wait()
        self._held.clear()

    def order(self, order: str | BaseException = "go") -> None:
        self._orders.put(order)

    def open(self) -> None:
        """No step is held any more."""
        self.is_open = True
        self.order()


@dataclass
class FakeProgram:
    vocab_size: int = 50
    context: int = 64
    n_slots: int = 1
    max_rows: int = 16
    max_out: int = 4
    gate: Gate | None = None
    not_finite: Callable[[int, int], bool] = lambda slot, position: False  # of a row's scores

    held: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)  # slot, position, token
    n_cancels: int = 0

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
        sampling: Sequence[native.Sampling] | None,
    ) -> list[native.Pick]:
        assert sampling is not None
        self._check(tokens, positions, slots, out_rows, sampling)
        rows = list(zip(slots, positions, tokens, strict=True))
        self.steps.append(rows)
        for slot, position, _ in rows:
            self.held[slot, position] = SPOILT
        if self.gate is not None:
            self.gate.hold()
        for slot, position, token in rows:
            before = self.held[slot, position - 1] if position else 0
            assert before != SPOILT, "a row reads what a broken step left"
            self.held[slot, position] = digest(before, token)
        return [
            self._pick(slots[row], positions[row], how)
            for row, how in zip(out_rows, sampling, strict=True)
        ]

    def _pick(self, slot: int, position: int, how: native.Sampling) -> native.Pick:
        state, scored = self.held[slot, position], how.scored
        token, score = pick(state, how, self.vocab_size), None
        if scored is not None:
            which = token if scored.token is None else scored.token
            score = logprob(state, which, scored.n_top)
        return native.Pick(token, not self.not_finite(slot, position), score)

    def _check(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
        sampling: Sequence[native.Sampling],
    ) -> None:
        """What the native side demands of a step."""
        assert 0 < len(tokens) == len(positions) == len(slots) <= self.max_rows
        assert len(out_rows) == len(sampling) <= self.max_out
        assert sorted(set(out_rows)) == list(out_rows)
        assert all(0 <= row < len(tokens) for row in out_rows)
        assert all(0 <= token < self.vocab_size for token in tokens)
        assert all(0 <= position < self.context for position in positions)
        last: dict[int, int] = {}
        for slot, position in zip(slots, positions, strict=True):
            assert 0 <= slot < self.n_slots
            assert position == last.get(slot, position - 1) + 1
            assert position == 0 or (slot, position - 1) in self.held or slot in last
            last[slot] = position

    def cancel(self) -> None:
        self.n_cancels += 1
        if self.gate is not None:
            self.gate.order(native.Cancelled("the step was cancelled"))


def play(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test in a loop of its own and looks for what it left behind."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())
    assert not [t for t in threading.enumerate() if t.name == "caldrix-engine"]


@asynccontextmanager
async def running(program: FakeProgram, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(program, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        assert engine.n_waiting == engine.n_running == 0
