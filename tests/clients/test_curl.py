"""curl, as the documentation uses it."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import client_server as expected
import pytest
from client_server import MESSAGES, Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.clients,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine"),
]

STATUS = ["-w", "\n%{http_code}"]


def curl(url: str, body: object = None, *flags: str) -> str:
    """With `body`, a POST of it with curl's own content type."""
    data = [] if body is None else ["--data-binary", "@-"]
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", *flags, *data, url],
        input=None if body is None else json.dumps(body),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def asked(name: str, **more: object) -> dict[str, object]:
    return {"model": name, "messages": MESSAGES, **more}


def refused(served: Served, body: object, *flags: str) -> tuple[int, dict[str, Any]]:
    text = curl(f"{served.base}/chat/completions", body, *STATUS, *flags)
    answer, _, status = text.rpartition("\n")
    return int(status), json.loads(answer)["error"]


def test_chat(once: Served) -> None:
    reply = json.loads(curl(f"{once.base}/chat/completions", asked("once")))
    assert reply["choices"][0]["message"]["content"] == expected.REPLY
    assert reply["usage"]["completion_tokens"] == expected.REPLY_TOKENS
    assert reply["usage"]["prompt_tokens"] == expected.PROMPT_TOKENS


def test_by_the_name_localhost(once: Served) -> None:
    """curl tries ::1 first."""
    url = once.base.replace("127.0.0.1", "localhost")
    assert expected.REPLY in curl(f"{url}/chat/completions", asked("once"))


def test_streamed_chat_with_usage(once: Served) -> None:
    body = asked("once", stream=True, stream_options={"include_usage": True})
    text = curl(f"{once.base}/chat/completions", body, "-N")
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events.pop() == "[DONE]"
    *chunks, usage = [json.loads(event) for event in events]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == expected.REPLY
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == expected.REPLY_TOKENS


def test_stop_string(once: Served) -> None:
    reply = json.loads(curl(f"{once.base}/chat/completions", asked("once", stop=expected.STOP)))
    assert reply["choices"][0]["message"]["content"] == expected.BEFORE_STOP


def test_logprobs(once: Served) -> None:
    reply = json.loads(curl(f"{once.base}/chat/completions", asked("once", logprobs=True)))
    tokens = reply["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in tokens) == expected.REPLY.encode()


def test_models(once: Served) -> None:
    assert curl(f"{once.base}/models") == (
        '{"data":[{"id":"once","object":"model","owned_by":"inferno"}],"object":"list"}'
    )


def test_completions(once: Served) -> None:
    body = {"model": "once", "prompt": expected.LINE}
    reply = json.loads(curl(f"{once.base}/completions", body))
    assert reply["choices"][0]["text"] == expected.REPLY


def test_400(once: Served) -> None:
    status, error = refused(once, asked("once", top_p=0))
    assert (status, error["param"], error["code"]) == (400, "top_p", "invalid_value")


def test_404(once: Served) -> None:
    status, error = refused(once, asked("gpt-5"))
    assert (status, error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("flags", [(), ("-H", "Expect:"), ("-H", "Transfer-Encoding: chunked")])
def test_413(once: Served, flags: tuple[str, ...]) -> None:
    """Asked about before the body is sent, sent at once, and of unknown length."""
    body = asked("once") | {"messages": [{"role": "user", "content": expected.TOO_LARGE}]}
    status, error = refused(once, body, *flags)
    assert (status, error["code"]) == (413, "request_too_large")


def test_429(endless: Served, tmp_path: Path) -> None:
    with endless.taken():
        status, error = refused(endless, asked("endless"), "-D", str(tmp_path / "head"))
    assert (status, error["code"]) == (429, "queue_full")
    assert "\nretry-after: " in (tmp_path / "head").read_text().lower()


def test_cancel_in_mid_stream(endless: Served) -> None:
    endless.wait(busy=False, seconds=5)
    command = ["curl", "-sSN", f"{endless.base}/chat/completions", "-d"]
    body = json.dumps(asked("endless", stream=True))
    with subprocess.Popen([*command, body], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        assert endless.is_busy()
        process.send_signal(signal.SIGINT)
        endless.check_cancelled()
