"""The official Python SDK, as its README uses it: base URL, any key, plain calls."""

import asyncio
from collections.abc import Iterator
from typing import Any

import client_server as expected
import pytest
from client_server import MESSAGES, Served

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture
def openai() -> Any:
    return pytest.importorskip("openai")


@pytest.fixture
def client(openai: Any, once: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=once.base, api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def endless_client(openai: Any, endless: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=endless.base, api_key="any", max_retries=0) as made:
        yield made


def test_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="once", messages=MESSAGES)
    assert reply.choices[0].message.content == expected.REPLY
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == expected.PROMPT_TOKENS
    assert reply.usage.completion_tokens == expected.REPLY_TOKENS
    assert reply.usage.total_tokens == expected.PROMPT_TOKENS + expected.REPLY_TOKENS
    assert reply._request_id.startswith("req-")


def test_streamed_chat_with_usage(client: Any) -> None:
    stream = client.chat.completions.create(
        model="once", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    *parts, last = chunks
    assert "".join(c.choices[0].delta.content or "" for c in parts) == expected.REPLY
    assert [c.choices[0].delta.role for c in parts if c.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in parts if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage.completion_tokens == expected.REPLY_TOKENS
    assert last.usage.prompt_tokens == expected.PROMPT_TOKENS
    assert len({c.id for c in chunks}) == len({c.created for c in chunks}) == 1


def test_stream_helper_puts_the_reply_together(client: Any) -> None:
    options = {"include_usage": True}
    with client.chat.completions.stream(
        model="once", messages=MESSAGES, logprobs=True, stream_options=options
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.done" in kinds
    assert "logprobs.content.done" in kinds
    assert final.choices[0].message.content == expected.REPLY
    assert final.choices[0].message.role == "assistant"
    assert final.usage.completion_tokens == expected.REPLY_TOKENS
    assert b"".join(bytes(t.bytes) for t in final.choices[0].logprobs.content) == (
        expected.REPLY.encode()
    )


def test_stop_string(client: Any) -> None:
    for stop in (expected.STOP, ["zzz", expected.STOP]):
        reply = client.chat.completions.create(model="once", messages=MESSAGES, stop=stop)
        assert reply.choices[0].message.content == expected.BEFORE_STOP
        assert reply.choices[0].finish_reason == "stop"


def test_token_limit(client: Any) -> None:
    reply = client.chat.completions.create(model="once", messages=MESSAGES, max_completion_tokens=3)
    assert reply.choices[0].message.content == expected.REPLY[:3]
    assert reply.choices[0].finish_reason == "length"


def test_logprobs(client: Any) -> None:
    reply = client.chat.completions.create(
        model="once", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    tokens = reply.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in tokens) == expected.REPLY.encode()
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2
        best, second = token.top_logprobs
        assert (best.bytes, best.logprob) == (token.bytes, token.logprob)  # greedy
        assert best.logprob > second.logprob


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["once"]
    assert client.models.retrieve("once").id == "once"


def test_completions(client: Any) -> None:
    reply = client.completions.create(model="once", prompt=expected.LINE, logprobs=1, echo=True)
    assert reply.choices[0].text == expected.LINE + expected.REPLY
    assert reply.choices[0].logprobs.token_logprobs[0] is None
    assert reply.choices[0].logprobs.text_offset[3] == len(expected.LINE)
    assert reply.usage.completion_tokens == expected.REPLY_TOKENS
    chunks = list(
        client.completions.create(
            model="once",
            prompt=expected.LINE,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].text for c in chunks[:-1]) == expected.REPLY
    assert chunks[-1].usage.completion_tokens == expected.REPLY_TOKENS


def test_several_prompts_and_choices(client: Any) -> None:
    reply = client.completions.create(model="once", prompt=[expected.LINE, expected.LINE], n=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in reply.choices} == {expected.REPLY}


def test_400(openai: Any, client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="once", messages=MESSAGES, temperature=-1)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    assert caught.value.type == "invalid_request_error"


def test_404(openai: Any, client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_413(openai: Any, client: Any) -> None:
    """The answer comes before the body has been read; the client must see it all the same."""
    for _ in range(5):
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(
                model="once", messages=[{"role": "user", "content": expected.TOO_LARGE}]
            )
        assert caught.value.status_code == 413
        assert caught.value.code == "request_too_large"


def test_429(openai: Any, endless: Served, endless_client: Any) -> None:
    with endless.taken(), pytest.raises(openai.RateLimitError) as caught:
        endless_client.chat.completions.create(model="endless", messages=MESSAGES)
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_cancel_in_mid_stream(endless: Served, endless_client: Any) -> None:
    endless.wait(busy=False, seconds=5)
    stream = endless_client.chat.completions.create(model="endless", messages=MESSAGES, stream=True)
    for _, _chunk in zip(range(20), stream, strict=False):
        pass
    assert endless.is_busy()
    stream.close()
    endless.check_cancelled()


def test_cancel_of_a_reply_that_is_not_streamed(
    openai: Any, endless: Served, endless_client: Any
) -> None:
    endless.wait(busy=False, seconds=5)
    with pytest.raises(openai.APITimeoutError):
        endless_client.chat.completions.create(model="endless", messages=MESSAGES, timeout=0.5)
    endless.check_cancelled()


def test_async_client(openai: Any, once: Served, endless: Served) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=once.base, api_key="any", max_retries=0) as client:
            replies = await asyncio.gather(
                *(client.chat.completions.create(model="once", messages=MESSAGES) for _ in range(8))
            )
        return [reply.choices[0].message.content for reply in replies]

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=endless.base, api_key="any") as client:
            stream = await client.chat.completions.create(
                model="endless", messages=MESSAGES, stream=True
            )
            await anext(aiter(stream))
            await stream.close()

    assert asyncio.run(ask()) == [expected.REPLY] * 8
    endless.wait(busy=False, seconds=5)
    asyncio.run(leave())
    endless.check_cancelled()
