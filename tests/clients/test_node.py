"""The npm clients, each check a run of a script in node/: `openai`, and Vercel's `ai` with
`@ai-sdk/openai-compatible`.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client_server as expected
import pytest
from client_server import Served

pytestmark = [pytest.mark.slow, pytest.mark.clients]

Check = Callable[[str, str, Served], Any]


def started(folder: Path, client: str, check: str, served: Served) -> "subprocess.Popen[str]":
    node = folder / "node_modules" / ".bin" / "node"  # of an age that the clients ask for
    return subprocess.Popen(
        [node, f"{client}.mjs", check, served.base, served.name],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AI_SDK_LOG_WARNINGS": "false"},
    )


@pytest.fixture
def checked(node_clients: Path) -> Check:
    def run(client: str, check: str, served: Served) -> Any:
        with started(node_clients, client, check, served) as process:
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return json.loads(out)

    return run


def test_chat_of_openai(checked: Check, once: Served) -> None:
    reply = checked("openai", "chat", once)
    assert reply["choices"][0]["message"] == {"content": expected.REPLY, "role": "assistant"}
    assert reply["usage"]["completion_tokens"] == expected.REPLY_TOKENS
    assert reply["usage"]["prompt_tokens"] == expected.PROMPT_TOKENS


def test_streamed_chat_with_usage_of_openai(checked: Check, once: Served) -> None:
    reply = checked("openai", "stream", once)
    assert reply["text"] == expected.REPLY
    assert reply["usage"]["completion_tokens"] == expected.REPLY_TOKENS


def test_stream_helper_of_openai(checked: Check, once: Served) -> None:
    reply = checked("openai", "helper", once)
    assert reply["choices"][0]["message"]["content"] == expected.REPLY
    assert reply["choices"][0]["finish_reason"] == "stop"
    tokens = reply["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in tokens) == expected.REPLY.encode()


@pytest.mark.parametrize("check", ["chat", "stream"])
def test_chat_of_ai(checked: Check, once: Served, check: str) -> None:
    reply = checked("ai", check, once)
    assert reply["text"] == expected.REPLY
    assert reply["finishReason"] == "stop"
    assert reply["usage"]["inputTokens"] == expected.PROMPT_TOKENS
    assert reply["usage"]["outputTokens"] == expected.REPLY_TOKENS


def test_stop_string(checked: Check, once: Served) -> None:
    reply = checked("openai", "stop", once)
    assert reply["choices"][0]["message"]["content"] == expected.BEFORE_STOP
    assert checked("ai", "stop", once)["text"] == expected.BEFORE_STOP


def test_logprobs(checked: Check, once: Served) -> None:
    tokens = checked("openai", "logprobs", once)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in tokens) == expected.REPLY.encode()
    assert {len(token["top_logprobs"]) for token in tokens} == {2}


def test_models(checked: Check, once: Served) -> None:
    assert checked("openai", "models", once) == {"ids": ["once"], "one": "once"}


def test_completions_of_openai(checked: Check, once: Served) -> None:
    reply = checked("openai", "completions", once)
    assert reply["choices"][0]["text"] == expected.REPLY


@pytest.mark.parametrize("check", ["completions", "completions_stream"])
def test_completions_of_ai(checked: Check, once: Served, check: str) -> None:
    """It writes the prompt as a dialogue of its own, which ends in a line's end, and stops at the
    user's next line."""
    reply = checked("ai", check, once)
    assert reply["text"] == expected.REPLY
    assert reply["usage"]["outputTokens"] == expected.REPLY_TOKENS


@pytest.mark.parametrize(
    ("check", "name", "code"),
    [
        ("status_400", "BadRequestError", "invalid_value"),
        ("status_404", "NotFoundError", "model_not_found"),
        ("status_413", "APIError", "request_too_large"),
    ],
)
@pytest.mark.parametrize("client", ["openai", "ai"])
def test_errors(
    checked: Check, once: Served, client: str, check: str, name: str, code: str
) -> None:
    error = checked(client, check, once)
    status = int(check.removeprefix("status_"))
    if client == "openai":
        assert (error["name"], error["status"], error["code"]) == (name, status, code)
    else:
        assert (error["name"], error["statusCode"]) == ("AI_APICallError", status)
        assert error["data"]["error"]["code"] == code
        assert error["message"] == error["data"]["error"]["message"]
        assert not error["isRetryable"]


def test_429(checked: Check, endless: Served) -> None:
    with endless.taken():
        error = checked("openai", "status_429", endless)
        other = checked("ai", "status_429", endless)
    assert (error["name"], error["status"]) == ("RateLimitError", 429)
    assert (other["name"], other["statusCode"]) == ("AI_APICallError", 429)
    assert other["isRetryable"]


@pytest.mark.parametrize("client", ["openai", "ai"])
def test_cancel_in_mid_stream(node_clients: Path, endless: Served, client: str) -> None:
    endless.wait(busy=False, seconds=5)
    with started(node_clients, client, "cancel", endless) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["count"] >= 20
            endless.check_cancelled()
            assert process.poll() is None  # it did not leave by ending
        finally:
            process.kill()


def test_abort_of_a_reply_that_is_not_streamed(checked: Check, endless: Served) -> None:
    endless.wait(busy=False, seconds=5)
    assert checked("openai", "abort", endless) == {"name": "APIUserAbortError"}
    endless.check_cancelled()
