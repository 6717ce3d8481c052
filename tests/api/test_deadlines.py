"""What a client sees when the time of its request is over, and what no reuse of prompts means.

No step ends while the test waits for a deadline, so that each is met at a known point.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from held import Held, Reader, held_steps, wait_until
from served import CHAT, COMPLETIONS, Answer, Served, serving

from caldrix.api.service import Settings

USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def served(endless_path: Path) -> Iterator[Served]:
    with serving(endless_path, Settings(deadline_s=0.3)) as found:
        yield found


@pytest.fixture
def held(served: Served) -> Iterator[Held]:
    with held_steps(served) as steps:
        yield steps
    wait_until(lambda: not any(slot["is_processing"] for slot in served.get("/slots").json))


def check(error: dict[str, Any], where: str) -> None:
    assert (error["code"], error["type"]) == ("deadline_exceeded", "unavailable_error")
    assert error["message"] == f"no token after 0.3 s (--request-timeout 0.3): {where}"


def test_a_request_without_a_token_gets_an_error(served: Served, held: Held) -> None:
    running = Reader(served, CHAT, messages=USER, stream=True)
    assert running.event()["choices"][0]["delta"]["role"] == "assistant"
    streamed = Reader(served, CHAT, messages=USER, stream=True)
    waiting = served.chat(n=3)
    assert waiting.status == 503
    check(waiting.error, "it was waiting in the queue")
    assert 1 <= int(waiting.headers["retry-after"]) <= 30
    error, done = running.rest()
    assert done == "[DONE]"
    check(error["error"], "its prompt was being computed")
    (error, done) = streamed.rest()  # and no role
    check(error["error"], "it was waiting in the queue")
    outcomes = [r["outcome"] for r in served.get("/debug/requests").json["requests"]]
    assert sorted(outcomes) == ["error", "error", "rejected"]


def test_a_reply_with_tokens_ends_where_it_is(served: Served, held: Held) -> None:
    for fields in ({"stream": True}, {}):
        reader = Reader(served, CHAT, messages=USER, n=2, **fields)
        held.begun()
        for _ in range(3):
            held.pass_one()
        if fields:
            found = [event["choices"][0] for event in reader.rest()[:-1]]
            text = [choice["delta"].get("content") for choice in found]
            assert text == ["", "A", "B", "C", None, "", None]
            assert [c["finish_reason"] for c in found if c["finish_reason"]] == ["length"] * 2
        else:
            choices = reader.answer()["choices"]
            assert [c["message"]["content"] for c in choices] == ["ABC", ""]
            assert [c["finish_reason"] for c in choices] == ["length", "length"]
        held.end_one()


def test_scores_of_a_prompt_come_whole_or_not_at_all(served: Served, held: Held) -> None:
    prompts = [[65], [65] * 300]
    reader = Reader(served, COMPLETIONS, prompt=prompts, echo=True, logprobs=0, max_tokens=0)
    held.begun()
    held.pass_one()
    held.pass_one()
    check(reader.answer()["error"], "its prompt was being computed")


def test_without_reuse_no_prompt_tokens_are_cached(quick_path: Path) -> None:
    with serving(quick_path, Settings(prefix_cache=False)) as found:
        answers: list[Answer] = [found.chat(max_tokens=2, n=2, cache_prompt=True) for _ in "ab"]
        records = found.get("/debug/requests").json["requests"]
    assert answers[0].json["usage"] == answers[1].json["usage"]
    assert "prompt_tokens_details" not in answers[1].json["usage"]
    assert [record["cached_tokens"] for record in records] == [0, 0]
