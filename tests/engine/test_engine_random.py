"""Random clients of the engine over its thread: each gets the reply its request gets alone."""

import asyncio
from dataclasses import dataclass

from any_request import requests
from fake_program import (
    FakeProgram,
    expected_prompt_logprobs,
    expected_scored,
    play,
    running,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.engine import Engine
from caldrix.engine.scheduler import Admission
from caldrix.engine.sequence import FinishReason, Request

CONTEXT, VOCAB = 40, 30


@dataclass
class Client:
    request: Request
    n_turns_before: int  # of the event loop, before it asks
    n_turns_between: int  # ... and after each token: a slow reader
    cancel_after: int | None  # tokens


clients = st.builds(
    Client,
    request=requests(CONTEXT, VOCAB),
    n_turns_before=st.integers(0, 60),
    n_turns_between=st.integers(0, 5),
    cancel_after=st.one_of(st.none(), st.none(), st.integers(0, 12)),
)


async def turns(n_turns: int) -> None:
    for _ in range(n_turns):
        await asyncio.sleep(0)


async def ask(engine: Engine, client: Client) -> None:
    await turns(client.n_turns_before)
    generation = engine.submit(client.request)
    tokens: list[int] = []
    if client.cancel_after == 0:
        await turns(client.n_turns_between)
        generation.cancel()
    async for token_id in generation:
        tokens.append(token_id)
        if len(tokens) == client.cancel_after:
            generation.cancel()
        await turns(client.n_turns_between)
    reply, reason, scores = expected_scored(client.request, CONTEXT, VOCAB, generation.seed)
    assert generation.logprobs == scores[: len(generation.logprobs)]
    prompt_scores = expected_prompt_logprobs(client.request)
    assert generation.prompt_logprobs == prompt_scores[: len(generation.prompt_logprobs)]
    if generation.finish_reason is FinishReason.CANCELLED:
        assert client.cancel_after is not None
        assert tokens == reply[: len(tokens)]
    else:
        assert (tokens, generation.finish_reason) == (reply, reason)
        assert generation.logprobs == scores
        assert generation.prompt_logprobs == prompt_scores


@settings(max_examples=40)
@given(
    st.lists(clients, min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 4),
    st.sampled_from(Admission),
)
def test_every_client_gets_its_own_reply(
    crowd: list[Client], n_slots: int, max_rows: int, max_out: int, admission: Admission
) -> None:
    async def test() -> None:
        program = FakeProgram(VOCAB, CONTEXT, n_slots, max_rows, max_out)
        async with running(program, admission=admission) as engine:
            await asyncio.gather(*(ask(engine, client) for client in crowd))
            # Nothing is left: a request that needs every slot's turn still gets one.
            for _ in range(n_slots):
                await ask(engine, Client(Request((0, 1), max_tokens=2), 0, 0, None))
            await engine.close(grace_s=5)
            assert engine._scheduler._kv.n_free == n_slots

    play(test)
