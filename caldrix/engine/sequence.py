"""What is asked of the engine, and the state of one reply in the making.

Owns the sampling parameters with their ranges, the request, and the sequence: its tokens, how far
they are computed and why it ended. Knows nothing of slots' contents, steps, threads or text. A
sequence ends once; whoever ends it first gives the reason, and from then on its tokens do not
change.
"""

import math
import secrets
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from caldrix.engine.sampler import NO_BIAS, LogitBias, Sampler, odd_ones
from caldrix.engine.telemetry import Timings
from caldrix.errors import RefusedError, printable

if TYPE_CHECKING:
    from caldrix.native import Pick, TokenLogprob

MAX_LOGPROBS = 20  # most likely tokens whose log-probabilities one position may give
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

    def of_choice(self, index: int) -> "SamplingParams":
        """For one of several replies to a prompt: its seed is this one plus the index."""
        if self.seed is None:
            return self
        seed = (self.seed + index) % 2**64
        return replace(self, seed=seed if seed < 2**63 else seed - 2**64)


@dataclass(slots=True, frozen=True)
class Request:
    """A prompt to continue. Without `max_tokens` the reply may fill the context.

    A stop token ends the reply and is no part of it; so does an end-of-sequence token, except with
    `ignore_eos`. None of these is picked before `min_tokens` others were. Log-probabilities are of
    the token at each position and of the `n_logprobs` most likely ones; with `echo_logprobs` also
    of the prompt, whose reply may then have no tokens at all (`max_tokens` 0).
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = frozenset()

    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0

    logit_bias: Mapping[int, float] = field(default_factory=lambda: NO_BIAS)  # kept as a LogitBias
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    n_logprobs: int | None = None  # None: no log-probabilities
    echo_logprobs: bool = False

    use_cache: bool = True  # whether keys and values of an earlier prompt may be used
    deadline_s: float | None = None  # after so many seconds the reply ends where it is
    label: str = ""  # what its asker calls it, in snapshots and records

    def __post_init__(self) -> None:
        least, most = 0 if self.echo_logprobs else 1, MAX_LOGPROBS
        n, seconds = self.n_logprobs, self.deadline_s
        _refuse_unless(
            self.max_tokens is None or (_is_integer(self.max_tokens) and self.max_tokens >= least),
            "max_tokens",
            f"an integer >= {least}",
            self.max_tokens,
        )
        accepted = _is_integer(self.min_tokens) and self.min_tokens >= 0
        _refuse_unless(accepted, "min_tokens", "an integer >= 0", self.min_tokens)
        accepted = n is None or (_is_integer(n) and 0 <= n <= most)
        _refuse_unless(accepted, "n_logprobs", f"an integer from 0 to {most}", n)
        accepted = seconds is None or (_is_finite(seconds) and seconds > 0)
        _refuse_unless(accepted, "deadline_s", "a finite number > 0", seconds)
        for name in ("presence_penalty", "frequency_penalty"):
            x = getattr(self, name)
            _refuse_unless(_is_finite(x) and -2 <= x <= 2, name, "a number from -2 to 2", x)
        if not isinstance(self.logit_bias, LogitBias):
            object.__setattr__(self, "logit_bias", LogitBias(self.logit_bias))

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end the reply."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | self.eos_token_ids


def check_request(
    request: Request, context: int, vocab_size: int, passed: Request | None = None
) -> None:
    """Refuses what this engine's model cannot take.

    `passed` is one that has passed: what the two share, as choices do, is not checked again.
    """
    if passed is None or request.prompt_ids is not passed.prompt_ids:
        _check_prompt(request.prompt_ids, context, vocab_size)
    if passed is None or request.logit_bias is not passed.logit_bias:
        _check_tokens(request.logit_bias, vocab_size, "logit_bias")
    ends = request.end_token_ids if request.min_tokens else frozenset()
    if len(ends) >= vocab_size and ends.issuperset(range(vocab_size)):
        raise RefusedError(f"min_tokens {request.min_tokens}: every token ends the reply")


def _check_prompt(prompt_ids: tuple[int, ...], context: int, vocab_size: int) -> None:
    n_prompt = len(prompt_ids)
    if n_prompt == 0:
        raise RefusedError("the prompt is empty: it needs at least one token")
    if n_prompt >= context:
        raise RefusedError(f"the prompt is {n_prompt} tokens and --ctx is {context}")
    _check_tokens(prompt_ids, vocab_size, "the prompt")


def _check_tokens(token_ids: Collection[int], vocab_size: int, where: str) -> None:
    for token_id in odd_ones(token_ids, 0, vocab_size - 1, {int}):
        raise RefusedError(
            f"{where} holds token {printable(token_id)}: "
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


class CancelReason(Enum):
    CALLER = "caller"  # whoever asked has gone or does not want it any more
    DEADLINE = "deadline"


class Place:
    """A place in the queue. The sequences of one request share it and wait one behind another."""

    def __init__(self) -> None:
        self.is_left = False  # one of them got a slot: the place is free for others


def _nothing() -> None:
    pass


def _no_record(sequence: "Sequence") -> None:
    pass


_NONE: list[Any] = []  # stands for every list of a sequence that has not started; never changed


def _fresh_seed() -> int:
    return secrets.randbits(64)


@dataclass(slots=True, eq=False)
class Sequence:
    """One reply in the making: the prompt's tokens and those picked after them, in one list.

    Many may wait in one request, so what only a running one needs is made by `start`.
    """

    request: Request
    max_completion: int  # the reply ends with this many tokens
    timings: Timings
    place: Place
    notify: Callable[[], None]  # called after every change that a reader of the reply can see
    on_finish: Callable[["Sequence"], None]  # called once, at the end
    n_ahead: int = 0  # requests that waited before it when it came

    # Made from the request
    label: str = field(init=False)
    seed: int = field(init=False)

    # Made by `start`
    end_token_ids: frozenset[int] = frozenset()
    token_ids: list[int] = field(default_factory=lambda: _NONE)
    logprobs: list["TokenLogprob"] = field(default_factory=lambda: _NONE)  # of the visible tokens
    # of the prompt's tokens; the first has none
    prompt_logprobs: list["TokenLogprob | None"] = field(default_factory=lambda: _NONE)

    n_visible: int = 0  # tokens of the reply for the reader: all but a stop token
    _sampler: Sampler | None = None  # made when a row first asks for it

    slot: int | None = None  # the slot it was given, also after it ended
    n_cached: int = 0  # prompt tokens found in the slot
    n_computed: int = 0  # token_ids[:n_computed] are in the slot; the last token never is
    last_turn: int = 0  # counts chunks of all sequences: the smallest has waited longest

    finish_reason: FinishReason | None = None
    error: str = ""  # the reason in words, with FinishReason.ERROR
    cancel_reason: CancelReason | None = None  # with FinishReason.CANCELLED

    def __post_init__(self) -> None:
        seed = self.request.sampling.seed
        self.label = self.request.label
        self.seed = _fresh_seed() if seed is None else seed % 2**64

    def start(self, slot: int, n_cached: int, now: float) -> None:
        """Gets a slot, in which the first `n_cached` tokens are computed."""
        self.slot = slot
        self.n_cached = self.n_computed = n_cached
        self.timings.admitted_at = now
        self.end_token_ids = self.request.end_token_ids
        self.token_ids = list(self.request.prompt_ids)
        self.logprobs = []
        self.prompt_logprobs = [None] if self.request.echo_logprobs else []

    @property
    def sampler(self) -> Sampler:
        if self._sampler is None:
            self._sampler = Sampler(self.request, self.seed)
        return self._sampler

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def n_completion(self) -> int:
        """Tokens picked so far, a stop token included."""
        return len(self.token_ids) - self.n_prompt if self.token_ids else 0

    @property
    def n_pending(self) -> int:
        """Tokens whose rows must be computed before the next token can be picked."""
        return len(self.token_ids) - self.n_computed

    @property
    def scores_prompt(self) -> bool:
        """Whether rows of the prompt are still to give log-probabilities."""
        return self.request.echo_logprobs and self.n_computed < self.n_prompt - 1

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

    def take(self, n_computed: int, picks: Items["Pick"], now: float) -> None:
        """What rows up to the n-th token gave, one pick for each of the last of them."""
        self.n_computed = n_computed
        if n_computed >= self.n_prompt and self.timings.prefill_ended_at is None:
            self.timings.prefill_ended_at = now
        if self.is_finished or not picks:
            return
        if not all(pick.finite for pick in picks):
            self.finish(FinishReason.ERROR, now, self._not_finite(n_computed))
            return
        # A row before the prompt's last one scores the token after it.
        n_scored = min(n_computed, self.n_prompt - 1) - (n_computed - len(picks))
        self.prompt_logprobs.extend(pick.logprob for pick in picks[: max(n_scored, 0)])
        if n_computed < len(self.token_ids):
            return
        if self.max_completion == 0:
            self.finish(FinishReason.LENGTH, now)
        else:
            self.append(picks[-1].token, now, picks[-1].logprob)

    def _not_finite(self, n_computed: int) -> str:
        n = n_computed - self.n_prompt + 1
        where = f"token {n} of the reply" if n > 0 else "a token of the prompt"
        return f"the model gave no valid scores for {where} (NaN or infinite)"

    def append(self, token_id: int, now: float, logprob: "TokenLogprob | None" = None) -> None:
        """Takes the next token of the reply, which may end it."""
        self.token_ids.append(token_id)
        self.timings.token_times.append(now)
        if token_id in self.end_token_ids:
            self.finish(FinishReason.STOP, now)
            return
        if logprob is not None:
            self.logprobs.append(logprob)
        self.n_visible += 1
        if self.n_completion >= self.max_completion:
            self.finish(FinishReason.LENGTH, now)
        else:
            self.notify()

    def finish(
        self,
        reason: FinishReason,
        now: float,
        error: str = "",
        cancel_reason: CancelReason | None = None,
    ) -> None:
        """Ends the reply."""
        assert not self.is_finished
        self.finish_reason = reason
        self.error = error
        self.cancel_reason = cancel_reason
        self.timings.finished_at = now
        self.notify()
        self.on_finish(self)


def new_sequence(
    request: Request,
    context: int,
    now: float = 0.0,
    notify: Callable[[], None] = _nothing,
    *,
    place: Place | None = None,
    on_finish: Callable[[Sequence], None] = _no_record,
) -> Sequence:
    """A checked request as a sequence: prompt and reply together fill at most the context."""
    room = context - len(request.prompt_ids)
    n_max = room if request.max_tokens is None else min(request.max_tokens, room)
    return Sequence(request, n_max, Timings(now), place or Place(), notify, on_finish)
