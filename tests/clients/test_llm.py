"""The `llm` command, with the server's model in its extra-openai-models.yaml."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import client_server as expected
import pytest
from client_server import Served

pytestmark = [pytest.mark.slow, pytest.mark.clients]

MODELS = """\
- model_id: {name}-chat
  model_name: {name}
  api_base: {base}
- model_id: {name}-text
  model_name: {name}
  api_base: {base}
  completion: true
- model_id: stranger
  model_name: gpt-5
  api_base: {base}
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Path:
    found = Path(sys.executable).with_name("llm")
    if not found.exists():
        pytest.skip("no llm in this environment")
    return found


@pytest.fixture
def start(command: Path, tmp_path: Path) -> Start:
    """`llm` with arguments, its models being those of one server."""

    def started(served: Served, *arguments: str) -> "subprocess.Popen[str]":
        models = MODELS.format(name=served.name, base=served.base)
        (tmp_path / "extra-openai-models.yaml").write_text(models)
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "any"}
        return subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    return started


def said(process: "subprocess.Popen[str]", given: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(given, timeout=60)
    return process.returncode, out, err


def usage(err: str) -> dict[str, int]:
    """From `Token usage: 20 input, 15 output`."""
    words = err.replace(",", "").split()
    return {name: int(words[words.index(name) - 1]) for name in ("input", "output")}


@pytest.mark.parametrize("flag", ["--no-stream", "--usage"])
def test_chat_and_streamed_chat_with_usage(start: Start, once: Served, flag: str) -> None:
    """It streams unless told not to."""
    status, out, err = said(start(once, "-m", "once-chat", "--usage", flag, expected.ASK))
    assert (status, out) == (0, f"{expected.REPLY}\n"), err
    assert usage(err) == {"input": expected.PROMPT_TOKENS, "output": expected.REPLY_TOKENS}
    assert once.last_record()["stream"] == (flag != "--no-stream")


def test_a_conversation_goes_on(start: Start, once: Served) -> None:
    first = int(str(once_prompt_tokens(start, once, expected.ASK)))
    assert int(str(once_prompt_tokens(start, once, "--continue", expected.ASK))) > first


def once_prompt_tokens(start: Start, once: Served, *arguments: str) -> object:
    status, out, err = said(start(once, "-m", "once-chat", *arguments))
    assert (status, out) == (0, f"{expected.REPLY}\n"), err
    return once.last_record()["prompt_tokens"]


def test_stop_string(start: Start, once: Served) -> None:
    process = start(once, "-m", "once-chat", "-o", "stop", expected.STOP, expected.ASK)
    assert said(process)[:2] == (0, f"{expected.BEFORE_STOP}\n")


def test_logprobs(start: Start, once: Served) -> None:
    """llm knows them for completions only, and keeps them with the reply in its log."""
    asked = ("-m", "once-text", "-o", "logprobs", "2", "--no-stream")
    status, _, err = said(start(once, *asked), expected.LINE)
    assert status == 0, err
    _, out, _ = said(start(once, "logs", "--json", "-n", "1"))
    assert '"top_logprobs"' in json.dumps(json.loads(out))


def test_completions(start: Start, once: Served) -> None:
    for flags in ((), ("--no-stream",)):
        status, out, err = said(start(once, "-m", "once-text", *flags), expected.LINE)
        assert (status, out) == (0, f"{expected.REPLY}\n"), err


def test_400(start: Start, once: Served) -> None:
    status, _, err = said(start(once, "-m", "once-chat", "-o", "seed", str(2**63), expected.ASK))
    assert status == 1
    assert "400" in err
    assert "seed must be" in err


def test_404(start: Start, once: Served) -> None:
    status, _, err = said(start(once, "-m", "stranger", expected.ASK))
    assert status == 1
    assert "404" in err
    assert "model `gpt-5` is not served here" in err


def test_413(start: Start, once: Served) -> None:
    status, _, err = said(start(once, "-m", "once-chat"), expected.TOO_LARGE)
    assert status == 1
    assert "413" in err
    assert "over 4194304 bytes" in err


def test_429(start: Start, endless: Served) -> None:
    """It has tried three times by then: its SDK waits as told."""
    with endless.taken():
        status, _, err = said(start(endless, "-m", "endless-chat", expected.ASK))
    assert status == 1
    assert "429" in err
    assert "every slot is in use" in err


def test_cancel_in_mid_stream(start: Start, endless: Served) -> None:
    endless.wait(busy=False, seconds=5)
    with start(endless, "-m", "endless-chat", expected.ASK) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()  # it reads that to its end first
            assert process.stdout.read(20)
            assert endless.is_busy()
            process.send_signal(signal.SIGINT)
            endless.wait(busy=False, seconds=5)  # the command's own exit takes its time
            endless.check_cancelled()
        finally:
            process.kill()
