"""Log-probabilities and adjusted scores of real tiny models, against the numpy reference."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import tiny
from fake_program import play

from caldrix import native
from caldrix.engine.engine import Engine
from caldrix.engine.generation import Generation
from caldrix.engine.load import LoadOptions, load_program
from caldrix.engine.sequence import FinishReason, Request, SamplingParams

MODEL = next(model for model in tiny.MODELS if model.name == "qwen3")
PROMPT = tuple(range(40, 75))
OPTIONS = LoadOptions(dtype="f32", max_context=96, n_slots=3, threads=1, max_rows=24, max_out=5)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tiny.write_model(tmp_path_factory.mktemp("scored"), MODEL)
    made = load_program(path, OPTIONS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return dict(tiny.weights(MODEL))


async def read(generation: Generation) -> list[int]:
    return [token_id async for token_id in generation]


async def answer(program: Any, *requests: Request) -> list[tuple[list[int], Generation]]:
    engine = Engine(program)
    await engine.start()
    generations = [engine.submit(request) for request in requests]
    tokens = await asyncio.gather(*(read(generation) for generation in generations))
    await engine.close()
    return list(zip(tokens, generations, strict=True))


def check(scores: list[native.TokenLogprob], ids: list[int], logits: Any, n_top: int) -> None:
    expected = reference.log_softmax(logits.astype(np.float32))
    assert [score.token_id for score in scores] == ids
    for score, row, found in zip(scores, expected, logits, strict=True):
        assert score.logprob == pytest.approx(row[score.token_id], abs=1e-3)
        assert [p for _, p in score.top] == sorted((p for _, p in score.top), reverse=True)
        best = reference.top_tokens(found.astype(np.float32), n_top)
        assert [p for _, p in score.top] == pytest.approx(row[best].tolist(), abs=1e-3)


def test_every_position_has_the_log_softmax_of_the_raw_logits(
    program: Any, weights: dict[str, Any]
) -> None:
    async def test() -> None:
        request = Request(PROMPT, max_tokens=8, n_logprobs=7, echo_logprobs=True)
        hot = SamplingParams(temperature=1.5, top_k=9, repetition_penalty=1.3, seed=4)
        adjusted = {"logit_bias": {7: 3.0}, "presence_penalty": 1.0, "frequency_penalty": 0.5}
        for how in [request, replace(request, sampling=hot, **adjusted)]:
            ((tokens, generation),) = await answer(program, how)
            ids = [*PROMPT, *tokens]
            logits = reference.forward(MODEL.config_json(), weights, ids)
            check(generation.logprobs, tokens, logits[len(PROMPT) - 1 : -1], 7)
            first, *rest = generation.prompt_logprobs
            assert first is None
            check(rest, ids[1 : len(PROMPT)], logits[: len(PROMPT) - 1], 7)

    play(test)


def test_scores_do_not_change_a_reply_and_company_does_not_change_scores(program: Any) -> None:
    async def test() -> None:
        how = SamplingParams(temperature=0.9, seed=11)
        plain = Request(PROMPT, how, max_tokens=12)
        scored = replace(plain, n_logprobs=3, echo_logprobs=True)
        ((expected, _),) = await answer(program, plain)
        ((tokens, alone),) = await answer(program, scored)
        assert tokens == expected
        crowd = [
            replace(plain, n_logprobs=20, prompt_ids=PROMPT[:9]),
            scored,
            replace(plain, min_tokens=3, logit_bias={5: -100}),
            replace(scored, echo_logprobs=False),
            scored,
        ]
        replies = await answer(program, *crowd)
        for index in (1, 3, 4):
            tokens, generation = replies[index]
            assert tokens == expected
            assert generation.logprobs == alone.logprobs
        assert replies[1][1].prompt_logprobs == alone.prompt_logprobs
        assert replies[4][1].n_cached == 0

    play(test)


def test_bias_penalties_and_the_least_length_change_what_is_picked(
    program: Any, weights: dict[str, Any]
) -> None:
    async def test() -> None:
        fields: list[dict[str, Any]] = [
            {"logit_bias": {9: 100.0, 10: 100.0}},
            {"presence_penalty": 2.0, "frequency_penalty": 2.0, "logit_bias": {9: 8.0}},
            {"presence_penalty": -2.0, "frequency_penalty": -2.0},
        ]
        for field in fields:
            ((tokens, _),) = await answer(program, Request(PROMPT, max_tokens=10, **field))
            for n, token in enumerate(tokens):
                ids = [*PROMPT, *tokens[:n]]
                logits = reference.forward(MODEL.config_json(), weights, ids)[-1]
                settings = {name: value for name, value in field.items() if "penalty" in name}
                bias = list(field.get("logit_bias", {}).items())
                scores = reference.adjusted(
                    logits.astype(np.float32), bias, generated=tokens[:n], **settings
                )
                assert scores[token] == pytest.approx(scores.max(), abs=1e-3)

    play(test)


def test_ends_wait_for_the_least_length(program: Any) -> None:
    async def test() -> None:
        ((greedy, _),) = await answer(program, Request(PROMPT, max_tokens=12))
        ends = frozenset({greedy[0]})
        early = Request(PROMPT, max_tokens=12, eos_token_ids=ends, logit_bias={greedy[0]: 100.0})
        late, ignored = replace(early, min_tokens=5), replace(early, ignore_eos=True)
        replies = await answer(program, early, late, ignored)
        assert [len(tokens) for tokens, _ in replies] == [0, 5, 12]
        reasons = [generation.finish_reason for _, generation in replies]
        assert reasons == [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]
        assert greedy[0] not in replies[1][0]
        assert replies[2][0] == [greedy[0]] * 12

    play(test)


def test_scoring_alone(program: Any) -> None:
    async def test() -> None:
        request = Request(PROMPT, max_tokens=0, n_logprobs=1, echo_logprobs=True)
        ((tokens, generation),) = await answer(program, request)
        assert (tokens, generation.n_completion, len(generation.prompt_logprobs)) == ([], 0, 35)

    play(test)
