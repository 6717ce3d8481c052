"""litellm, by its `openai/` and `text-completion-openai/` providers with an api_base."""

import asyncio
from typing import Any

import client_server as expected
import pytest
from client_server import MESSAGES, Served

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture
def litellm() -> Any:
    return pytest.importorskip("litellm")


def where(served: Served) -> dict[str, Any]:
    return {"api_base": served.base, "api_key": "any", "num_retries": 0, "max_retries": 0}


def ask(litellm: Any, served: Served, **more: Any) -> Any:
    asked = {"model": f"openai/{served.name}", "messages": MESSAGES, **where(served), **more}
    return litellm.completion(**asked)


def test_chat(litellm: Any, once: Served) -> None:
    reply = ask(litellm, once)
    assert reply.choices[0].message.content == expected.REPLY
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == expected.PROMPT_TOKENS
    assert reply.usage.completion_tokens == expected.REPLY_TOKENS


def test_streamed_chat_with_usage(litellm: Any, once: Served) -> None:
    chunks = list(ask(litellm, once, stream=True, stream_options={"include_usage": True}))
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == expected.REPLY
    usages = [c.usage for c in chunks if getattr(c, "usage", None)]
    assert [usage.completion_tokens for usage in usages] == [expected.REPLY_TOKENS]
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert whole.choices[0].message.content == expected.REPLY
    assert whole.usage.prompt_tokens == expected.PROMPT_TOKENS


def test_stop_string(litellm: Any, once: Served) -> None:
    reply = ask(litellm, once, stop=[expected.STOP])
    assert reply.choices[0].message.content == expected.BEFORE_STOP


def test_logprobs(litellm: Any, once: Served) -> None:
    reply = ask(litellm, once, logprobs=True, top_logprobs=2)
    tokens = reply.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in tokens) == expected.REPLY.encode()
    assert {len(token.top_logprobs) for token in tokens} == {2}


def test_models(litellm: Any, once: Served) -> None:
    found = litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="openai",
        api_key="any",
        api_base=once.url,
    )
    assert [name.removeprefix("openai/") for name in found] == ["once"]


def test_completions(litellm: Any, once: Served) -> None:
    model = "text-completion-openai/once"
    reply = litellm.text_completion(model=model, prompt=expected.LINE, **where(once))
    assert reply.choices[0].text == expected.REPLY
    assert reply.usage.completion_tokens == expected.REPLY_TOKENS
    chunks = litellm.text_completion(model=model, prompt=expected.LINE, stream=True, **where(once))
    assert "".join(c.choices[0].text or "" for c in chunks) == expected.REPLY


def test_400(litellm: Any, once: Served) -> None:
    with pytest.raises(litellm.BadRequestError) as caught:
        ask(litellm, once, temperature=-1)
    assert "temperature must be" in str(caught.value)


def test_400_for_a_prompt_that_does_not_fit(litellm: Any, once: Served) -> None:
    """Gateways fall back to a model with a longer context on this class."""
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(litellm, once, messages=[{"role": "user", "content": "x" * 5000}])


def test_404(litellm: Any, once: Served) -> None:
    with pytest.raises(litellm.NotFoundError):
        ask(litellm, once, model="openai/gpt-5")


def test_413(litellm: Any, once: Served) -> None:
    with pytest.raises(litellm.APIError) as caught:
        ask(litellm, once, messages=[{"role": "user", "content": expected.TOO_LARGE}])
    assert caught.value.status_code == 413
    assert "over 4194304 bytes" in str(caught.value)


def test_429(litellm: Any, endless: Served) -> None:
    with endless.taken(), pytest.raises(litellm.RateLimitError):
        ask(litellm, endless)


def test_cancel_in_mid_stream(litellm: Any, endless: Served) -> None:
    async def leave() -> None:
        asked = {"model": "openai/endless", "messages": MESSAGES, "stream": True}
        stream = await litellm.acompletion(**asked, **where(endless))
        for _ in range(20):
            await anext(stream)
        assert endless.is_busy()
        await stream.aclose()
        await asyncio.to_thread(endless.check_cancelled)  # the loop still closes the socket

    endless.wait(busy=False, seconds=5)
    asyncio.run(leave())
