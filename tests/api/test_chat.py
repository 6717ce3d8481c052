"""Chat replies, whole and streamed, byte for byte; stop strings; choices; who may cancel."""

import threading
from pathlib import Path
from typing import Any

import pytest
from known_reply import write_model
from served import CHAT, Served, serving

from caldrix.api.service import Settings


def test_a_reply_has_the_documented_fields_and_bytes(quick: Served) -> None:
    answer = quick.chat(max_tokens=3)
    body = answer.json
    created, reply_id = body["created"], body["id"]
    expected = (
        '{"choices":[{"finish_reason":"length","index":0,'
        '"message":{"content":"The","role":"assistant"}}],'
        f'"created":{created},"id":"{reply_id}","model":"quick","object":"chat.completion",'
        '"usage":{"completion_tokens":3,'
    )
    assert answer.status == 200
    assert answer.body.decode().startswith(expected)
    assert answer.headers["content-type"] == "application/json"
    assert reply_id.startswith("chatcmpl-")


def test_ids_count_admitted_requests_of_all_routes(quick_path: Path) -> None:
    with serving(quick_path) as served:
        served.get("/v1/models")
        served.chat(temperature=-1)
        ids = [
            served.chat(max_tokens=1).json["id"],
            served.complete("T", max_tokens=1).json["id"],
            served.chat(max_tokens=1).json["id"],
        ]
    assert ids == ["chatcmpl-1", "cmpl-2", "chatcmpl-3"]


def test_the_end_token_is_counted_and_not_shown(quick: Served) -> None:
    body = quick.chat().json
    assert body["choices"][0]["message"]["content"] == "The quick!"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("The quick!") + 1
    assert body["usage"]["total_tokens"] == (
        body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )


def test_cached_prompt_tokens_are_told_when_there_are_any(quick_path: Path) -> None:
    with serving(quick_path) as served:
        first = served.chat("a long enough message", max_tokens=1).json["usage"]
        again = served.chat("a long enough message", max_tokens=1).json["usage"]
    assert "prompt_tokens_details" not in first
    assert again["prompt_tokens_details"] == {"cached_tokens": again["prompt_tokens"] - 1}


def test_a_stream_is_the_documented_sequence(quick: Served) -> None:
    answer = quick.chat(max_tokens=3, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last, done = answer.events
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"content": "", "role": "assistant"},
        {"content": "T"},
        {"content": "h"},
        {"content": "e"},
    ]
    assert last["choices"] == [{"delta": {}, "finish_reason": "length", "index": 0}]
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in [*chunks, last]}) == 1
    assert all("usage" not in chunk for chunk in [*chunks, last])


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(quick: Served) -> None:
    *chunks, last, _ = quick.chat(
        max_tokens=2, stream=True, stream_options={"include_usage": True}
    ).events
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2


def test_usage_may_come_with_every_chunk(quick: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = quick.chat(max_tokens=2, stream=True, stream_options=options).events
    assert all(chunk["usage"]["prompt_tokens"] > 0 for chunk in chunks)


@pytest.mark.parametrize(
    ("stop", "text"),
    [("quick", "The "), (["ck!", "k!x"], "The qui"), ("T", ""), ("!", "The quick")],
)
def test_a_stop_string_ends_the_reply_and_is_not_shown(quick: Served, stop: Any, text: str) -> None:
    choice = quick.chat(stop=stop).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    events = quick.chat(stop=stop, stream=True).events[:-1]
    streamed = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    assert streamed == text


def test_text_held_back_for_a_stop_string_comes_in_the_end(quick: Served) -> None:
    events = quick.chat(stop="k!x", stream=True).events[:-1]
    pieces = [e["choices"][0]["delta"].get("content") for e in events]
    assert "".join(p or "" for p in pieces) == "The quick!"


def test_every_choice_has_its_index_and_the_prompt_counts_once(quick: Served) -> None:
    alone = quick.chat(max_tokens=2).json["usage"]
    body = quick.chat(max_tokens=2, n=3).json
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 6
    events = quick.chat(max_tokens=2, n=2, stream=True).events[:-1]
    roles = [e["choices"][0]["index"] for e in events if "role" in e["choices"][0]["delta"]]
    assert roles == [0, 1]


def test_a_choice_draws_from_its_own_seed(quick: Served) -> None:
    fields: dict[str, Any] = {"temperature": 1e30, "max_tokens": 4}
    both = quick.chat(n=2, seed=7, **fields).json["choices"]
    second = quick.chat(seed=8, **fields).json["choices"][0]
    assert both[1]["message"] == second["message"]
    assert both[0]["message"] != both[1]["message"]


def test_a_stop_token_and_no_end_token(quick: Served) -> None:
    token = quick.model.tokenizer.encode("q")[0]
    choice = quick.chat(stop_token_ids=[token]).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("The ", "stop")
    assert quick.chat(ignore_eos=True, max_tokens=20).json["usage"]["completion_tokens"] == 20


def test_the_assistants_last_message_is_continued(quick: Served) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Th"}]
    body = quick.chat(messages, continue_final_message=True).json
    assert body["choices"][0]["message"]["content"] == "e quick!"


def test_text_parts_are_the_same_as_a_string(quick: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    told = quick.chat([{"role": "user", "content": parts}], max_tokens=1).json["usage"]
    plain = quick.chat("a\nb", max_tokens=1).json["usage"]
    assert told["prompt_tokens"] == plain["prompt_tokens"]


def test_timings_come_when_asked_for(quick: Served) -> None:
    timings = quick.chat(timings=True, max_tokens=3).json["timings"]
    assert timings["predicted_n"] == 3
    assert timings["cache_n"] + timings["prompt_n"] > 0
    events = quick.chat(timings_per_token=True, max_tokens=3, stream=True).events
    assert [i for i, e in enumerate(events) if "timings" in e] == [len(events) - 2]


def test_ignored_fields_are_named_in_a_header(quick: Served) -> None:
    answer = quick.chat(max_tokens=1, top_q=1, zz=2, user="u", metadata={"a": "b"})
    assert answer.headers["x-caldrix-ignored"] == "top_q, zz"
    assert "x-caldrix-ignored" not in quick.chat(max_tokens=1).headers


def test_flags_are_the_defaults_of_a_request(quick_path: Path) -> None:
    from caldrix.engine.sequence import SamplingParams

    settings = Settings(sampling=SamplingParams(temperature=1e30, seed=3))
    with serving(quick_path, settings) as served:
        drawn = served.chat(max_tokens=4).json["choices"][0]["message"]["content"]
        greedy = served.chat(max_tokens=4, temperature=0).json["choices"][0]
    assert drawn != "The "
    assert greedy["message"]["content"] == "The "


def test_a_model_without_a_template_continues_the_last_user_message(tmp_path: Path) -> None:
    path = write_model(tmp_path / "plain", "ABC", template=None, repeats=True)
    with serving(path) as served:
        conversation = [
            {"role": "system", "content": "no"},
            {"role": "user", "content": [{"type": "text", "text": "B"}]},
            {"role": "assistant", "content": "no"},
        ]
        answer = served.chat(conversation, max_tokens=2)
        assert answer.json["choices"][0]["message"]["content"] == "CA"
        assert answer.headers["x-caldrix-note"] == "no chat template"
        assert served.chat("A").json["usage"]["completion_tokens"] == 256
        nobody = served.chat([{"role": "system", "content": "x"}])
        assert nobody.error["param"] == "messages"
        assert served.ask(
            "POST", "/apply-template", {"messages": [{"role": "user", "content": "B"}]}
        ).json == {"prompt": "B"}


def test_a_running_request_can_be_called_off_by_its_id(endless: Served) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(endless.chat()))
    thread.start()
    running: list[Any] = []
    while not running:
        running = endless.get("/debug/requests?state=running").json["requests"]
    reply_id = running[0]["id"]
    cancelled = endless.ask("POST", f"{CHAT}/{reply_id}/cancel")
    thread.join(30)
    assert cancelled.json == {"cancelled": True, "id": reply_id}
    assert found[0].error["code"] == "cancelled"
    again = endless.ask("POST", f"{CHAT}/{reply_id}/cancel")
    assert (again.status, again.error["code"]) == (404, "unknown_url")
    assert endless.ask("POST", f"{CHAT}/{reply_id}/stop").status == 404


def test_a_stream_called_off_ends_with_an_error_event(endless: Served) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(endless.chat(stream=True)))
    thread.start()
    running: list[Any] = []
    while not running:
        running = endless.get("/debug/requests?state=running").json["requests"]
    endless.ask("POST", f"{CHAT}/{running[0]['id']}/cancel")
    thread.join(30)
    *_, error, done = found[0].events
    assert (error["error"]["code"], done) == ("cancelled", "[DONE]")
