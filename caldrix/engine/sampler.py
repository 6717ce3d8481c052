"""How the next token of a sequence is picked and scored, in the form the native step takes.

Owns what a request's sampling means for one row: a row is picked by its own sequence's tokens
alone, so company, chunks and slots change nothing. Knows nothing of steps or threads; the rules
themselves are in native/sample/sample.c.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from caldrix import native

if TYPE_CHECKING:
    from caldrix.engine.sequence import Request, Sequence

# The sampler computes in f32: values beyond its range are the nearest it has.
_F32_MAX = 3.4028234663852886e38
_F32_MIN = 1.1754943508222875e-38  # the smallest normal one
_U32_MAX = 2**32 - 1


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
        self._bias = _bias_array(request.logit_bias)
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


def _bias_array(bias: Mapping[int, float]) -> npt.NDArray[np.void] | None:
    return np.array(list(bias.items()), native.BIAS) if bias else None


def sampling_of(sequence: "Sequence", n_tokens: int) -> native.Sampling:
    """How the row of a sequence's n-th token is used: to pick the token after it, or, within the
    prompt, to score the one that stands there."""
    if n_tokens >= sequence.n_prompt:
        return sequence.sampler.of_row(sequence, n_tokens)
    request = sequence.request
    assert request.echo_logprobs
    scored = native.Scored(request.n_logprobs or 0, sequence.token_ids[n_tokens])
    return native.Sampling(scored=scored)
