"""LangChain's `langchain-openai`: ChatOpenAI and OpenAI with a base URL."""

from typing import Any

import client_server as expected
import pytest
from client_server import Served

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture
def langchain_openai() -> Any:
    return pytest.importorskip("langchain_openai")


@pytest.fixture
def openai() -> Any:
    """Whose exceptions LangChain lets through."""
    return pytest.importorskip("openai")


def chat(langchain_openai: Any, served: Served, **more: Any) -> Any:
    asked = {"model": served.name, "base_url": served.base, "api_key": "any", "max_retries": 0}
    return langchain_openai.ChatOpenAI(**(asked | more))


def test_chat(langchain_openai: Any, once: Served) -> None:
    reply = chat(langchain_openai, once).invoke(expected.ASK)
    assert reply.content == expected.REPLY
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.usage_metadata["input_tokens"] == expected.PROMPT_TOKENS
    assert reply.usage_metadata["output_tokens"] == expected.REPLY_TOKENS


def test_streamed_chat_with_usage(langchain_openai: Any, once: Served) -> None:
    whole = None
    for chunk in chat(langchain_openai, once, stream_usage=True).stream(expected.ASK):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == expected.REPLY
    assert whole.usage_metadata["output_tokens"] == expected.REPLY_TOKENS
    assert whole.usage_metadata["input_tokens"] == expected.PROMPT_TOKENS


def test_batch(langchain_openai: Any, once: Served) -> None:
    replies = chat(langchain_openai, once).batch([expected.ASK] * 4)
    assert [reply.content for reply in replies] == [expected.REPLY] * 4


def test_stop_string(langchain_openai: Any, once: Served) -> None:
    reply = chat(langchain_openai, once).invoke(expected.ASK, stop=[expected.STOP])
    assert reply.content == expected.BEFORE_STOP


def test_logprobs(langchain_openai: Any, once: Served) -> None:
    model = chat(langchain_openai, once).bind(logprobs=True, top_logprobs=2)
    tokens = model.invoke(expected.ASK).response_metadata["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in tokens) == expected.REPLY.encode()
    assert {len(token["top_logprobs"]) for token in tokens} == {2}


def test_completions(langchain_openai: Any, once: Served) -> None:
    asked = {"model": "once", "base_url": once.base, "api_key": "any", "max_retries": 0}
    model = langchain_openai.OpenAI(**asked)
    assert model.invoke(expected.LINE) == expected.REPLY
    assert "".join(model.stream(expected.LINE)) == expected.REPLY


def test_400(langchain_openai: Any, openai: Any, once: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(langchain_openai, once, temperature=-1).invoke(expected.ASK)
    assert caught.value.param == "temperature"


def test_400_for_a_prompt_that_does_not_fit(
    langchain_openai: Any, openai: Any, once: Served
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(langchain_openai, once).invoke("x" * 5000)
    assert "ContextOverflow" in type(caught.value).__name__


def test_404(langchain_openai: Any, openai: Any, once: Served) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(langchain_openai, once, model="gpt-5").invoke(expected.ASK)


def test_413(langchain_openai: Any, openai: Any, once: Served) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        chat(langchain_openai, once).invoke(expected.TOO_LARGE)
    assert caught.value.status_code == 413


def test_429(langchain_openai: Any, openai: Any, endless: Served) -> None:
    with endless.taken(), pytest.raises(openai.RateLimitError):
        chat(langchain_openai, endless).invoke(expected.ASK)


def test_cancel_in_mid_stream(langchain_openai: Any, endless: Served) -> None:
    endless.wait(busy=False, seconds=5)
    stream = chat(langchain_openai, endless).stream(expected.ASK)
    for _ in range(20):
        next(stream)
    assert endless.is_busy()
    stream.close()
    endless.check_cancelled()
