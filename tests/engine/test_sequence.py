"""Ranges and refusals of sampling and requests; what ends a reply."""

import math
from typing import Any

import pytest

from caldrix.engine.sampler import LogitBias
from caldrix.engine.sequence import (
    FinishReason,
    Request,
    SamplingParams,
    Sequence,
    SequenceStatus,
    check_request,
    new_sequence,
)
from caldrix.errors import RefusedError

ACCEPTED: list[tuple[str, Any]] = [
    ("temperature", 0),
    ("temperature", 0.0),
    ("temperature", 1e300),
    ("top_k", 0),
    ("top_k", 10**12),
    ("top_p", 1),
    ("top_p", 1e-300),
    ("min_p", 0),
    ("min_p", 1),
    ("repetition_penalty", 0.5),
    ("repetition_penalty", 1e300),
    ("seed", None),
    ("seed", -(2**63)),
    ("seed", 2**63 - 1),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("temperature", -1, "temperature must be a finite number >= 0 (got -1)"),
    ("temperature", math.inf, "temperature must be a finite number >= 0 (got inf)"),
    ("temperature", math.nan, "temperature must be a finite number >= 0 (got nan)"),
    ("temperature", "1", "temperature must be a finite number >= 0 (got '1')"),
    ("temperature", True, "temperature must be a finite number >= 0 (got True)"),
    ("temperature", None, "temperature must be a finite number >= 0 (got None)"),
    ("top_k", -1, "top_k must be an integer >= 0 (got -1)"),
    ("top_k", 1.0, "top_k must be an integer >= 0 (got 1.0)"),
    ("top_k", False, "top_k must be an integer >= 0 (got False)"),
    ("top_p", 0, "top_p must be a number > 0 and <= 1 (got 0)"),
    ("top_p", 1.5, "top_p must be a number > 0 and <= 1 (got 1.5)"),
    ("top_p", math.nan, "top_p must be a number > 0 and <= 1 (got nan)"),
    ("min_p", -0.1, "min_p must be a number from 0 to 1 (got -0.1)"),
    ("min_p", 1.1, "min_p must be a number from 0 to 1 (got 1.1)"),
    ("repetition_penalty", 0, "repetition_penalty must be a finite number > 0 (got 0)"),
    ("repetition_penalty", math.inf, "repetition_penalty must be a finite number > 0 (got inf)"),
    ("seed", 2**63, f"seed must be an integer from -2^63 to 2^63-1 (got {2**63})"),
    ("seed", -(2**63) - 1, f"seed must be an integer from -2^63 to 2^63-1 (got {-(2**63) - 1})"),
    ("seed", 1.5, "seed must be an integer from -2^63 to 2^63-1 (got 1.5)"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_value_in_range_is_taken(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message


def test_an_integer_beyond_a_double_is_no_temperature() -> None:
    with pytest.raises(RefusedError, match="temperature must be a finite number"):
        SamplingParams(temperature=10**400)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "8"])
def test_max_tokens_is_a_positive_integer(value: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        Request((1,), max_tokens=value)
    assert str(caught.value) == f"max_tokens must be an integer >= 1 (got {value!r})"


REQUESTS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"min_tokens": -1}, "min_tokens must be an integer >= 0 (got -1)"),
    ({"min_tokens": True}, "min_tokens must be an integer >= 0 (got True)"),
    ({"n_logprobs": 21}, "n_logprobs must be an integer from 0 to 20 (got 21)"),
    ({"n_logprobs": -1}, "n_logprobs must be an integer from 0 to 20 (got -1)"),
    ({"n_logprobs": 1.0}, "n_logprobs must be an integer from 0 to 20 (got 1.0)"),
    ({"presence_penalty": 2.5}, "presence_penalty must be a number from -2 to 2 (got 2.5)"),
    ({"frequency_penalty": math.nan}, "frequency_penalty must be a number from -2 to 2 (got nan)"),
    ({"logit_bias": {1: 101}}, "logit_bias must be made of numbers from -100 to 100 (got 101)"),
    ({"logit_bias": {1: "1"}}, "logit_bias must be made of numbers from -100 to 100 (got '1')"),
    (
        {"logit_bias": dict.fromkeys(range(1025), 0)},
        "logit_bias must be of at most 1024 tokens (got 1025)",
    ),
    (
        {"max_tokens": -1, "echo_logprobs": True},
        "max_tokens must be an integer >= 0 (got -1)",
    ),
]


@pytest.mark.parametrize(("fields", "message"), REQUESTS_REFUSED)
def test_a_request_out_of_range_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Request((1,), **fields)
    assert str(caught.value) == message


def test_the_ends_of_each_range_are_taken() -> None:
    Request((1,), n_logprobs=0, presence_penalty=-2, frequency_penalty=2, min_tokens=10**9)
    Request((1,), n_logprobs=20, logit_bias={i: 100 - 200 * (i % 2) for i in range(1024)})
    Request((1,), max_tokens=0, echo_logprobs=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {50: 1}}, "logit_bias holds token 50: the vocabulary has tokens 0 to 49"),
        ({"logit_bias": {-1: 1}}, "logit_bias holds token -1: the vocabulary has tokens 0 to 49"),
        (
            {"min_tokens": 3, "stop_token_ids": frozenset(range(50))},
            "min_tokens 3: every token ends the reply",
        ),
    ],
)
def test_what_the_vocabulary_cannot_give_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_request(Request((1,), **fields), context=256, vocab_size=50)
    assert str(caught.value) == message


def test_choices_have_seeds_of_their_own() -> None:
    assert SamplingParams(seed=5).of_choice(0).seed == 5
    assert SamplingParams(seed=5, top_k=3).of_choice(2) == SamplingParams(seed=7, top_k=3)
    assert SamplingParams(seed=2**63 - 1).of_choice(1).seed == -(2**63)
    assert SamplingParams(seed=-1).of_choice(1).seed == 0
    assert SamplingParams().of_choice(3).seed is None


@pytest.mark.parametrize(
    ("prompt_ids", "message"),
    [
        ((), "the prompt is empty: it needs at least one token"),
        ((1,) * 256, "the prompt is 256 tokens and --ctx is 256"),
        ((1,) * 257, "the prompt is 257 tokens and --ctx is 256"),
        ((0, 50), "the prompt holds token 50: the vocabulary has tokens 0 to 49"),
        ((-1,), "the prompt holds token -1: the vocabulary has tokens 0 to 49"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(prompt_ids: tuple[int, ...], message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_request(Request(prompt_ids), context=256, vocab_size=50)
    assert str(caught.value) == message


def test_a_prompt_one_below_the_context_fits() -> None:
    check_request(Request((1,) * 255), context=256, vocab_size=50)


def sequence_of(request: Request, context: int = 10) -> Sequence:
    sequence = new_sequence(request, context, 1.0, lambda: None)
    sequence.start(0, 0, 1.0)
    return sequence


def test_the_reply_fills_the_context_and_no_more() -> None:
    assert sequence_of(Request((1, 2, 3))).max_completion == 7
    assert sequence_of(Request((1, 2, 3), max_tokens=5)).max_completion == 5
    assert sequence_of(Request((1, 2, 3), max_tokens=8)).max_completion == 7


def test_a_stop_token_is_counted_and_not_visible_also_as_the_last_token() -> None:
    sequence = sequence_of(Request((1,), max_tokens=2, stop_token_ids=frozenset({9})))
    sequence.append(4, 2.0)
    assert (sequence.n_visible, sequence.finish_reason) == (1, None)
    sequence.append(9, 3.5)
    assert (sequence.n_visible, sequence.n_completion) == (1, 2)
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.timings.total_s == 2.5


def test_ignored_ends_of_the_text_are_tokens_and_stop_tokens_still_stop() -> None:
    ends = {"stop_token_ids": frozenset({8}), "eos_token_ids": frozenset({9})}
    sequence = sequence_of(Request((1,), **ends, ignore_eos=True))
    sequence.append(9, 1.0)
    assert (sequence.n_visible, sequence.finish_reason) == (1, None)
    sequence.append(8, 1.0)
    assert sequence.finish_reason is FinishReason.STOP
    sequence = sequence_of(Request((1,), **ends))
    sequence.append(9, 1.0)
    assert (sequence.n_visible, sequence.finish_reason) == (0, FinishReason.STOP)


def test_every_visible_change_is_told() -> None:
    told: list[FinishReason | None] = []
    sequence = new_sequence(
        Request((1,), max_tokens=2), 10, 0.0, lambda: told.append(sequence.finish_reason)
    )
    sequence.start(0, 0, 0.5)
    sequence.append(4, 1.0)
    sequence.append(4, 2.0)
    assert told == [None, FinishReason.LENGTH]


def test_a_seed_is_taken_modulo_2_to_the_64_and_fresh_without_one() -> None:
    assert sequence_of(Request((1,), SamplingParams(seed=-1))).seed == 2**64 - 1
    assert sequence_of(Request((1,), SamplingParams(seed=7))).seed == 7
    fresh = {sequence_of(Request((1,))).seed for _ in range(4)}
    assert len(fresh) == 4
    assert all(0 <= seed < 2**64 for seed in fresh)


def test_the_penalty_sees_the_last_64_tokens_of_prompt_and_reply() -> None:
    sequence = sequence_of(Request(tuple(range(100))), context=200)
    sequence.append(7, 0.0)
    assert sequence.recent(100) == list(range(36, 100))
    assert sequence.recent(101) == [*range(37, 100), 7]
    assert sequence.recent(3) == [0, 1, 2]


def test_the_status_follows_the_slot_and_the_rows() -> None:
    sequence = new_sequence(Request((1, 2)), 10, 0.0, lambda: None)
    assert (sequence.status, sequence.n_completion) == (SequenceStatus.WAITING, 0)
    sequence.start(3, 1, 5.0)
    assert (sequence.slot, sequence.n_computed, sequence.timings.admitted_at) == (3, 1, 5.0)
    assert sequence.status is SequenceStatus.PREFILL
    sequence.n_computed = 2
    assert sequence.status is SequenceStatus.DECODE
    sequence.finish(FinishReason.CANCELLED, 0.0)
    assert sequence.status is SequenceStatus.FINISHED


def test_a_bias_is_checked_once_and_shared() -> None:
    values = {3: 1.5}
    request = Request((1,), logit_bias=values)
    values[3] = 99.0
    assert dict(request.logit_bias) == {3: 1.5}
    assert request == Request((1,), logit_bias={3: 1.5})
    again = Request((1,), logit_bias=request.logit_bias)
    assert again.logit_bias is request.logit_bias
    assert isinstance(request.logit_bias, LogitBias)
    rows = request.logit_bias.rows
    assert rows is not None
    assert rows.tolist() == [(3, 1.5)]
    assert rows is request.logit_bias.rows


def test_what_choices_share_is_not_checked_again() -> None:
    prompt_ids, bias = (99,), LogitBias({99: 1.0})
    passed = Request(prompt_ids, logit_bias=bias)
    check_request(Request(prompt_ids, logit_bias=bias), 10, 50, passed)
    for request in (Request((99, 99)), Request(prompt_ids, logit_bias={99: 1.0})):
        with pytest.raises(RefusedError, match="holds token 99"):
            check_request(request, 10, 50, passed)
