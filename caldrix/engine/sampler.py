"""How the next token of a sequence is picked and scored, in the form the native step takes.

Owns what a request's sampling means for one row: a row is picked by its own sequence's tokens
alone, so company, chunks and slots change nothing. Knows nothing of steps or threads; the rules
themselves are in native/sample/sample.c.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from caldrix import native
from caldrix.errors import RefusedError, printable

if TYPE_CHECKING:
    from caldrix.engine.sequence import Request, Sequence

# The sampler computes in f32: values beyond its range are the nearest it has.
_F32_MAX = 3.4028234663852886e38
_F32_MIN = 1.1754943508222875e-38  # the smallest normal one
_U32_MAX = 2**32 - 1


MAX_BIASES = 1024


def odd_ones(values: Collection[Any], low: float, high: float, types: set[type]) -> Iterator[Any]:
    """Those that are no number from `low` to `high` of one of the types.

    There may be many, and as a rule there are none: that is found by a few calls.
    """
    if not values or (
        types.issuperset(map(type, values))
        and min(values) >= low
        and max(values) <= high
        and not math.isnan(sum(values))
    ):
        return
    for value in values:
        if not (type(value) in types and low <= value <= high):
            yield value


class LogitBias(Mapping[int, float]):
    """What is added to the scores of some tokens: checked and laid out once, for all the replies
    that share it. Never changes."""

    def __init__(self, values: Mapping[int, float]) -> None:
        self._values = dict(values)
        if len(self._values) > MAX_BIASES:
            n = len(self._values)
            raise RefusedError(f"logit_bias must be of at most {MAX_BIASES} tokens (got {n})")
        for x in odd_ones(self._values.values(), -100, 100, {int, float}):
            wanted = "made of numbers from -100 to 100"
            raise RefusedError(f"logit_bias must be {wanted} (got {printable(x)})")
        self._rows: npt.NDArray[np.void] | None = None

    def __getitem__(self, token_id: int) -> float:
        return self._values[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def rows(self) -> npt.NDArray[np.void] | None:
        """As the native step takes it; None when there is nothing to add."""
        if self._rows is None and self._values:
            self._rows = np.array(list(self._values.items()), native.BIAS)
        return self._rows


NO_BIAS = LogitBias({})


class Sampler:
    """How the tokens of one reply are picked; what stays the same for all of them is made once."""

    def __init__(self, request: "Request", seed: int) -> None:
        params = request.sampling
        penalty = min(max(params.repetition_penalty, _F32_MIN), _F32_MAX)
        self._fixed = native.Sampling(
            temperature=min(params.temperature, _F32_MAX),
            top_k=min(params.top_k, _U32_MAX),
            top_p=max(params.top_p, _F32_MIN),
            min_p=params.min_p,
            repetition_penalty=penalty,
            seed=seed,
            scored=None if request.n_logprobs is None else native.Scored(request.n_logprobs),
        )
        self._is_penalised = params.repetition_penalty != 1
        self._adjuster = None if _is_plain(request) else _Adjuster(request)
        # Without a draw, a window or an adjustment every row is picked in one and the same way.
        self._is_fixed = params.temperature == 0 and not self._is_penalised
        self._is_fixed = self._is_fixed and self._adjuster is None

    def of_row(self, sequence: "Sequence", n_tokens: int) -> native.Sampling:
        """For the token after the first `n_tokens` of prompt and reply."""
        fixed = self._fixed
        if self._is_fixed:
            return fixed
        adjust = None
        if self._adjuster is not None:
            adjust = self._adjuster.of_row(sequence.token_ids[sequence.n_prompt : n_tokens])
        return native.Sampling(
            fixed.temperature,
            fixed.top_k,
            fixed.top_p,
            fixed.min_p,
            fixed.repetition_penalty,
            fixed.seed,
            n_tokens - sequence.n_prompt,
            sequence.recent(n_tokens) if self._is_penalised else (),
            adjust,
            fixed.scored,
        )


class _Adjuster:
    """What one request changes in the scores: bias, penalties on its reply, no end yet."""

    def __init__(self, request: "Request") -> None:
        assert isinstance(request.logit_bias, LogitBias)
        self._bias = request.logit_bias.rows
        self._presence = request.presence_penalty
        self._frequency = request.frequency_penalty
        self._min_tokens = request.min_tokens
        self._forbidden = tuple(request.end_token_ids)

    def of_row(self, reply: Items[int]) -> native.Adjust:
        """For the token after `reply`."""
        is_penalised = self._presence != 0 or self._frequency != 0
        return native.Adjust(
            bias=self._bias,
            generated=np.array(reply, np.uint32) if is_penalised and reply else None,
            presence_penalty=self._presence,
            frequency_penalty=self._frequency,
            forbidden=self._forbidden if len(reply) < self._min_tokens else (),
        )


def _is_plain(request: "Request") -> bool:
    """Whether it leaves the scores alone."""
    return (
        not request.logit_bias
        and request.presence_penalty == request.frequency_penalty == 0
        and (request.min_tokens == 0 or not request.end_token_ids)
    )


def sampling_of(sequence: "Sequence", n_tokens: int) -> native.Sampling:
    """How the row of a sequence's n-th token is used: to pick the token after it, or, within the
    prompt, to score the one that stands there."""
    if n_tokens >= sequence.n_prompt:
        return sequence.sampler.of_row(sequence, n_tokens)
    request = sequence.request
    assert request.echo_logprobs
    scored = native.Scored(request.n_logprobs or 0, sequence.token_ids[n_tokens])
    return native.Sampling(scored=scored)
