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
    return state // 97 % vocab_size


def expected_reply(
    request: Request, context: int, vocab_size: int, seed: int
) -> tuple[list[int], FinishReason]:
    """The visible tokens of a request that runs alone, without slots, chunks or a cache."""
    state = 0
    for token in request.prompt_ids:
        state = digest(state, token)
    tokens, reply = list(request.prompt_ids), []
    n_max = min(request.max_tokens or context, context - len(request.prompt_ids))
    penalty = request.sampling.repetition_penalty
    for draw in range(n_max):
        sampling = native.Sampling(
            temperature=request.sampling.temperature,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=penalty,
            top_k=0,
            seed=seed,
            draw=draw,
            recent=tokens[-64:] if penalty != 1 else (),
        )
        token = pick(state, sampling, vocab_size)
        if token in request.stop_token_ids:
            return reply, FinishReason.STOP
        reply.append(token)
        tokens.append(token)
        state = digest(state, token)
    return reply, FinishReason.LENGTH


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
            native.Pick(
                pick(self.held[slots[row], positions[row]], how, self.vocab_size),
                not self.not_finite(slots[row], positions[row]),
            )
            for row, how in zip(out_rows, sampling, strict=True)
        ]

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
