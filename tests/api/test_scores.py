"""Log-probabilities in both shapes, fields that change the scores, and thinking shown apart."""

import math
from pathlib import Path
from typing import Any

import pytest
from known_reply import write_model
from served import Served, serving

from caldrix.api.logprobs import chat_logprobs
from caldrix.api.reasoning import Splitter, prompt_opens
from caldrix.api.service import Settings
from caldrix.native import TokenLogprob


def test_chat_scores_each_token_it_shows(quick: Served) -> None:
    choice = quick.chat(max_tokens=3, logprobs=True, top_logprobs=2).json["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["T", "h", "e"]
    assert [entry["bytes"] for entry in entries] == [[84], [104], [101]]
    for entry in entries:
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["logprob"] == tops[0] <= 0
    bare = quick.chat(max_tokens=1, logprobs=True).json["choices"][0]
    assert bare["logprobs"]["content"][0]["top_logprobs"] == []
    assert "logprobs" not in quick.chat(max_tokens=1).json["choices"][0]


def test_scores_ride_on_the_chunk_of_their_text(quick: Served) -> None:
    events = quick.chat(max_tokens=3, logprobs=True, stream=True).events[1:-2]
    shown = [
        (c["delta"]["content"], [entry["token"] for entry in c["logprobs"]["content"]])
        for c in (event["choices"][0] for event in events)
    ]
    assert shown == [("T", ["T"]), ("h", ["h"]), ("e", ["e"])]


def test_tokens_that_are_not_shown_have_scores_without_text(quick: Served) -> None:
    """The end token goes on, is no text, and is scored like any other."""
    fields: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12, "logprobs": True}
    whole = quick.chat(**fields).json["choices"][0]
    assert len(whole["logprobs"]["content"]) == 12
    events = quick.chat(stream=True, **fields).events[:-1]
    silent = [e["choices"][0] for e in events if e["choices"][0]["delta"] == {}]
    assert [len(c["logprobs"]["content"]) for c in silent if "logprobs" in c] == [2]


def test_a_score_that_is_not_finite_is_a_number(quick: Served) -> None:
    scores = chat_logprobs([TokenLogprob(84, -math.inf, [])], quick.model.tokenizer)
    assert scores["content"][0]["logprob"] == -9999.0  # type: ignore[index]


def test_completions_score_in_four_lists(quick: Served) -> None:
    lists = quick.complete("T", max_tokens=3, logprobs=2).json["choices"][0]["logprobs"]
    assert lists["tokens"] == ["h", "e", " "]
    assert lists["text_offset"] == [0, 1, 2]
    assert all(value <= 0 for value in lists["token_logprobs"])
    assert [len(top) for top in lists["top_logprobs"]] == [2, 2, 2]
    none = quick.complete("T", max_tokens=1, logprobs=0).json["choices"][0]["logprobs"]
    assert list(none["top_logprobs"][0]) == ["h"]


def test_an_echoed_prompt_is_scored_too(quick: Served) -> None:
    body = quick.complete("Té", max_tokens=2, logprobs=1, echo=True, ignore_eos=True).json
    choice = body["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"].startswith("Té")
    assert len(lists["tokens"]) == body["usage"]["total_tokens"] == 5
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert lists["text_offset"] == [0, 1, 1, 2, 2]
    assert "h" in lists["top_logprobs"][1]


def test_a_prompt_can_be_scored_without_a_reply(quick: Served) -> None:
    body = quick.complete("The", max_tokens=0, logprobs=0, echo=True).json
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("The", "length")
    assert choice["logprobs"]["tokens"] == ["T", "h", "e"]
    assert body["usage"]["completion_tokens"] == 0
    assert quick.complete("The", max_tokens=0, echo=True).json["choices"][0]["text"] == "The"


def test_streamed_scores_are_those_of_the_whole_reply(quick: Served) -> None:
    fields: dict[str, Any] = {"max_tokens": 3, "logprobs": 1, "echo": True}
    whole = quick.complete("T", **fields).json["choices"][0]["logprobs"]
    found: dict[str, list[Any]] = {name: [] for name in whole}
    for event in quick.complete("T", stream=True, **fields).events[:-1]:
        for name, values in event["choices"][0].get("logprobs", {}).items():
            found[name] += values
    assert found == whole


def test_bias_penalties_and_the_least_length(quick: Served) -> None:
    t = str(quick.model.tokenizer.encode("T")[0])
    assert (
        not quick.chat(max_tokens=1, logit_bias={t: -100})
        .json["choices"][0]["message"]["content"]
        .startswith("T")
    )
    h = str(quick.model.tokenizer.encode("h")[0])
    text = quick.chat(max_tokens=2, logit_bias={h: 100}).json["choices"][0]["message"]["content"]
    assert text == "hh"
    penalised = quick.chat(max_tokens=2, logit_bias={h: 100}, presence_penalty=2)
    assert penalised.json["choices"][0]["message"]["content"] == "hh"
    assert quick.chat(min_tokens=14).json["usage"]["completion_tokens"] >= 14


def test_a_request_may_leave_the_cache_alone(quick: Served) -> None:
    quick.chat("the same text", max_tokens=1)
    usage = quick.chat("the same text", max_tokens=1, cache_prompt=False).json["usage"]
    assert "prompt_tokens_details" not in usage


THOUGHTS = [
    ("<think>\nhm, yes\n</think>\n\nYes.", False, "hm, yes", "Yes."),
    (" <think>a</think>b", False, "a", "b"),
    ("<think>never closed ", False, "never closed", ""),
    ("a</think>b", True, "a", "b"),
    ("  a < b </thin </think> c", True, "a < b </thin", "c"),
    ("<think></think>x", False, "", "x"),
    ("plain <think>", False, "", "plain <think>"),
    ("<thin", False, "", "<thin"),
    (" \n", False, "", " \n"),
    ("<think>x</think> ", False, "x", ""),
]


@pytest.mark.parametrize(("text", "is_open", "thought", "answer"), THOUGHTS)
def test_thinking_is_told_from_the_answer(
    text: str, is_open: bool, thought: str, answer: str
) -> None:
    for pieces in ([text], list(text)):
        splitter = Splitter(is_open)
        parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
        assert all(said for _, said in parts)
        assert "".join(said for thinks, said in parts if thinks) == thought
        assert "".join(said for thinks, said in parts if not thinks) == answer


def test_a_prompt_may_open_the_thinking() -> None:
    assert prompt_opens("assistant\n<think>\n")
    assert not prompt_opens("<think>\n\n</think>\n\n")


def test_thinking_goes_to_a_field_of_its_own(tmp_path: Path) -> None:
    """A template that opens the thinking; every token of this model's reply is then thought."""
    template = "{{ messages[0].content }}<think>{{ '\\n' }}"
    path = write_model(tmp_path / "m", "hm", template=template)
    with serving(path, Settings(reasoning_format="auto")) as served:
        body = served.chat().json
        plain = served.chat(reasoning_format="none").json["choices"][0]["message"]
        events = served.chat(stream=True, reasoning_format="deepseek").events
    message = body["choices"][0]["message"]
    assert message == {"content": "", "reasoning_content": "hm", "role": "assistant"}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert plain == {"content": "hm", "role": "assistant"}
    deltas = [event["choices"][0]["delta"] for event in events[1:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert not any("content" in delta for delta in deltas)
