"""What is asked of the engine, and the state of one reply in the making.

Owns the sampling parameters with their ranges, the request, and the sequence: its tokens, how far
they are computed and why it ended. Knows nothing of slots' contents, steps, threads or text. A
sequence ends once; whoever ends it first gives the reason, and from then on its tokens do not
change.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from caldrix.engine.telemetry import Timings
from caldrix.errors import RefusedError, printable

RECENT_TOKENS = 64  # how far back in prompt and reply the repetition penalty looks


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    """Whether `value` is a number, and one that fits a double."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_unless(accepted: bool, name: str, wanted: str, value: object) -> None:
    if not accepted:
        raise RefusedError(f"{name} must be {wanted} (got {printable(value)})")


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """How tokens are picked; the defaults are greedy. A value out of range is refused by name."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: fresh entropy for every reply

    def __post_init__(self) -> None:
        t, k, p, m = self.temperature, self.top_k, self.top_p, self.min_p
        penalty, seed = self.repetition_penalty, self.seed
        _refuse_unless(_is_finite(t) and t >= 0, "temperature", "a finite number >= 0", t)
        _refuse_unless(_is_integer(k) and k >= 0, "top_k", "an integer >= 0", k)
        _refuse_unless(_is_finite(p) and 0 < p <= 1, "top_p", "a number > 0 and <= 1", p)
        _refuse_unless(_is_finite(m) and 0 <= m <= 1, "min_p", "a number from 0 to 1", m)
        _refuse_unless(
            _is_finite(penalty) and penalty > 0,
            "repetition_penalty",
            "a finite number > 0",
            penalty,
        )
        _refuse_unless(
            seed is None or (_is_integer(seed) and -(2**63) <= seed < 2**63),
            "seed",
            "an integer from -2^63 to 2^63-1",
            seed,
        )


@dataclass(slots=True, frozen=True)
class Request:
    """A prompt to continue. Without `max_tokens` the reply may fill the context."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        n = self.max_tokens
        _refuse_unless(n is None or (_is_integer(n) and n >= 1), "max_tokens", "an integer >= 1", n)


def check_request(request: Request, context: int, vocab_size: int) -> None:
    """Refuses a prompt that this engine's model cannot take."""
    n_prompt = len(request.prompt_ids)
    if n_prompt == 0:
        raise RefusedError("the prompt is empty: it needs at least one token")
    if n_prompt >= context:
        raise RefusedError(f"the prompt is {n_prompt} tokens and --ctx is {context}")
    for token_id in request.prompt_ids:
        if not 0 <= token_id < vocab_size:
            raise RefusedError(
                f"the prompt holds token {printable(token_id)}: "
                f"the vocabulary has tokens 0 to {vocab_size - 1}"
            )


class SequenceStatus(Enum):
    WAITING = "waiting"  # no slot yet
    PREFILL = "prefill"  # rows of its prompt are still to be computed
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"  # a stop token, or a stop string in the text above
    LENGTH = "length"  # max_tokens, or a full context
    CANCELLED = "cancelled"
    ERROR = "error"


def _fresh_seed() -> int:
    return secrets.randbits(64)


@dataclass(slots=True, eq=False)
class Sequence:
    """One reply in the making: the prompt's tokens and those picked after them, in one list."""

    request: Request
    max_completion: int  # the reply ends with this many tokens
    timings: Timings
    notify: Callable[[], None]  # called after every change that a reader of the reply can see

    seed: int = field(init=False)
    token_ids: list[int] = field(init=False)
    n_visible: int = 0  # tokens of the reply for the reader: all but a stop token

    slot: int | None = None  # the slot it was given, also after it ended
    n_cached: int = 0  # prompt tokens found in the slot
    n_computed: int = 0  # token_ids[:n_computed] are in the slot; the last token never is
    last_turn: int = 0  # counts chunks of all sequences: the smallest has waited longest

    finish_reason: FinishReason | None = None
    error: str = ""  # the reason in words, with FinishReason.ERROR

    def __post_init__(self) -> None:
        seed = self.request.sampling.seed
        self.seed = _fresh_seed() if seed is None else seed % 2**64
        self.token_ids = list(self.request.prompt_ids)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def n_completion(self) -> int:
        """Tokens picked so far, a stop token included."""
        return len(self.token_ids) - self.n_prompt

    @property
    def n_pending(self) -> int:
        """Tokens whose rows must be computed before the next token can be picked."""
        return len(self.token_ids) - self.n_computed

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def status(self) -> SequenceStatus:
        if self.is_finished:
            return SequenceStatus.FINISHED
        if self.slot is None:
            return SequenceStatus.WAITING
        if self.n_computed < self.n_prompt:
            return SequenceStatus.PREFILL
        return SequenceStatus.DECODE

    def recent(self, n_tokens: int) -> list[int]:
        """The window of the repetition penalty for the token that follows the first `n_tokens`."""
        return self.token_ids[max(0, n_tokens - RECENT_TOKENS) : n_tokens]

    def append(self, token_id: int, now: float) -> None:
        """Takes the next token of the reply, which may end it."""
        self.token_ids.append(token_id)
        self.timings.token_times.append(now)
        if token_id in self.request.stop_token_ids:
            self.finish(FinishReason.STOP, now)
            return
        self.n_visible += 1
        if self.n_completion >= self.max_completion:
            self.finish(FinishReason.LENGTH, now)
        else:
            self.notify()

    def finish(self, reason: FinishReason, now: float, error: str = "") -> None:
        """Ends the reply."""
        assert not self.is_finished
        self.finish_reason = reason
        self.error = error
        self.timings.finished_at = now
        self.notify()


def new_sequence(
    request: Request, context: int, now: float, notify: Callable[[], None]
) -> Sequence:
    """A checked request as a sequence: prompt and reply together fill at most the context."""
    room = context - len(request.prompt_ids)
    n_max = room if request.max_tokens is None else min(request.max_tokens, room)
    return Sequence(request, n_max, Timings(queued_at=now), notify)
