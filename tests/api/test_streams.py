"""What a stream says while it waits, when its chunks begin, and what a client leaves behind."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from held import Held, Reader, held_steps, wait_until
from served import CHAT, COMPLETIONS, Served, serving

from caldrix.api.service import Settings

USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def served(endless_path: Path) -> Iterator[Served]:
    with serving(endless_path, Settings(ping_interval_s=0.01), context=4096) as found:
        yield found


@pytest.fixture
def held(served: Served) -> Iterator[Held]:
    with held_steps(served) as steps:
        yield steps
    wait_until(lambda: not any(slot["is_processing"] for slot in served.get("/slots").json))


def role_of(event: Any) -> tuple[int, str | None]:
    choice = event["choices"][0]
    return choice["index"], choice["delta"].get("role")


def test_a_waiting_stream_has_its_head_and_tells_its_place(served: Served, held: Held) -> None:
    first = Reader(served, CHAT, messages=USER, stream=True, max_tokens=2)
    held.begun()
    second = Reader(served, CHAT, messages=USER, stream=True, max_tokens=2)
    third = Reader(served, CHAT, messages=USER, stream=True, max_tokens=2, n=3)
    assert role_of(first.event()) == (0, "assistant")  # its prefill has started
    second.comment("queued 0")
    third.comment("queued 1")
    second.leave()
    third.comment("queued 0")  # as it is now
    held.open()
    assert role_of(third.event()) == (0, "assistant")
    assert [e["choices"][0]["index"] for e in third.rest()[:-1]] == [0] * 3 + [1] * 4 + [2] * 4
    assert len(first.rest()) == 4


def test_a_long_prefill_tells_how_far_it_is(served: Served, held: Held) -> None:
    n_rows = served.model.program.max_rows
    n_prompt = 2 * n_rows + 1
    reader = Reader(served, COMPLETIONS, prompt=[65] * n_prompt, stream=True, max_tokens=3)
    held.begun()
    reader.comment(f"prefill 0/{n_prompt}")
    held.pass_one()
    reader.comment(f"prefill {n_rows}/{n_prompt}")
    held.pass_one()
    reader.comment(f"prefill {2 * n_rows}/{n_prompt}")
    held.pass_one()
    assert reader.event()["choices"][0]["text"] == "B"
    reader.comment("ping")
    held.open()
    reader.rest()


def test_each_choice_opens_when_its_own_prefill_starts(served: Served, held: Held) -> None:
    reader = Reader(served, CHAT, messages=USER, stream=True, max_tokens=1, n=2)
    held.begun()
    assert role_of(reader.event()) == (0, "assistant")
    for _ in range(3):
        assert reader.block().startswith(": prefill ")
    held.pass_one()
    assert [reader.event()["choices"][0]["finish_reason"] for _ in range(2)] == [None, "length"]
    assert role_of(reader.event()) == (1, "assistant")
    assert reader.block().startswith(": prefill ")
    held.open()
    assert len(reader.rest()) == 3


def test_each_prompt_tells_of_its_own_prefill(served: Served, held: Held) -> None:
    prompts = [[65] * 30, [66] * 40]
    reader = Reader(served, COMPLETIONS, prompt=prompts, stream=True, max_tokens=1)
    held.begun()
    reader.comment("prefill 0/30")
    held.pass_one()
    assert [reader.event()["choices"][0]["index"] for _ in range(2)] == [0, 0]
    reader.comment("prefill 0/40")
    held.open()
    assert len(reader.rest()) == 3


def test_without_an_interval_nothing_is_said(endless_path: Path) -> None:
    with (
        serving(endless_path, Settings(ping_interval_s=0.0)) as served,
        held_steps(served) as held,
    ):
        reader = Reader(served, CHAT, messages=USER, stream=True, max_tokens=1)
        held.begun()
        assert role_of(reader.event()) == (0, "assistant")
        time.sleep(0.05)
        held.open()
        assert reader.block().startswith("data: ")
        reader.leave()


# Leaving

LONG = [65] * 1000
NEVER = "ABCABCABCABCABCABC-"  # begins again and again, and holds all text back


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    ("n_steps", "fields"),
    [
        (0, {"prompt": "A"}),
        (2, {"prompt": LONG}),  # in its prefill
        (8, {"prompt": "A"}),
        (8, {"prompt": "C", "stop": NEVER}),
        (2, {"prompt": "A", "max_tokens": 2, "n": 3}),  # between two choices
        (2, {"prompt": [LONG, LONG[:600]], "max_tokens": 1}),
        (1, {"prompt": [65] * 100, "echo": True, "logprobs": 1}),
    ],
)
def test_who_leaves_frees_the_slot_within_a_step(
    served: Served, held: Held, n_steps: int, fields: dict[str, Any], is_streamed: bool
) -> None:
    before = last_done(served)
    gone = Reader(served, COMPLETIONS, **{"max_tokens": 3000, "stream": is_streamed, **fields})
    held.begun()
    for _ in range(n_steps):
        held.pass_one()
    after = Reader(served, CHAT, messages=USER, stream=True, max_tokens=1)
    after.comment("queued 0")
    gone.leave()
    wait_until(lambda: last_done(served) != before)  # while its step is held
    record = last_done(served)
    assert (record["outcome"], record["status"]) == ("cancelled", 499)
    held.pass_one()
    assert role_of(after.event()) == (0, "assistant")  # the step after that is the next one's
    assert served.get("/slots").json[0]["n_prompt"] < 30
    held.open()
    after.rest()


def last_done(served: Served) -> Any:
    return (served.get("/debug/requests?state=done&limit=1").json["requests"] or [None])[0]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_who_leaves_the_queue_frees_the_place_at_once(
    endless_path: Path, is_streamed: bool
) -> None:
    settings = Settings(ping_interval_s=0.01, queue_depth=1)
    with serving(endless_path, settings) as served, held_steps(served) as held:
        first = Reader(served, CHAT, messages=USER, stream=True, max_tokens=1)
        held.begun()
        gone = Reader(served, COMPLETIONS, prompt=["A"] * 3, n=5, stream=is_streamed)
        wait_until(lambda: n_queued(served) == 1)
        assert served.chat().status == 429
        gone.leave()
        wait_until(lambda: n_queued(served) == 0)
        after = Reader(served, CHAT, messages=USER, stream=True, max_tokens=1)
        after.comment("queued 0")
        held.open()
        first.rest()
        after.rest()


def n_queued(served: Served) -> int:
    return len(served.get("/debug/requests?state=queued").json["requests"])
