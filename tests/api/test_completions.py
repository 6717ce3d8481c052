"""Completions: the forms of a prompt, several at once, echo, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from known_reply import write_model
from served import Served, serving


def test_a_reply_has_the_documented_fields_and_bytes(quick: Served) -> None:
    answer = quick.complete("T", max_tokens=2)
    created, reply_id = answer.json["created"], answer.json["id"]
    expected = (
        '{"choices":[{"finish_reason":"length","index":0,"text":"he"}],'
        f'"created":{created},"id":"{reply_id}","model":"quick","object":"text_completion",'
        '"usage":{"completion_tokens":2,"prompt_tokens":1,"total_tokens":3}}'
    )
    assert answer.body.decode() == expected
    assert reply_id.startswith("cmpl-")


def test_a_stream_has_no_role_and_ends_with_a_reason(quick: Served) -> None:
    *chunks, done = quick.complete("T", max_tokens=2, stream=True).events
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [(c["text"], c["finish_reason"]) for c in choices] == [
        ("h", None),
        ("e", None),
        ("", "length"),
    ]


def test_sixteen_tokens_unless_told_otherwise(endless: Served) -> None:
    usage = endless.complete("A").json["usage"]
    assert usage["completion_tokens"] == 16


def test_ids_are_taken_as_they_are(quick: Served) -> None:
    ids = quick.model.tokenizer.encode("Th")
    body = quick.complete(ids, max_tokens=1).json
    assert body["choices"][0]["text"] == "e"
    assert quick.complete([float(ids[0])], max_tokens=1).json["choices"][0]["text"] == "h"


@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_are_answered_in_order(quick: Served, as_ids: bool) -> None:
    prompts: list[Any] = ["T", "q", "The qui"]
    if as_ids:
        prompts = [quick.model.tokenizer.encode(text) for text in prompts]
    body = quick.complete(prompts, max_tokens=2, n=2).json
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [c["text"] for c in body["choices"]] == ["he", "he", "ui", "ui", "ck", "ck"]
    assert body["usage"]["prompt_tokens"] == 1 + 1 + 7


def test_echo_puts_the_prompt_first(quick: Served) -> None:
    assert quick.complete("T", max_tokens=2, echo=True).json["choices"][0]["text"] == "The"
    ids = quick.model.tokenizer.encode("T")
    assert quick.complete(ids, max_tokens=2, echo=True).json["choices"][0]["text"] == "The"
    events = quick.complete("T", max_tokens=1, echo=True, stream=True).events
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["T", "h", ""]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (None, "missing_required_parameter"),
        ([], "empty_array"),
        ([[]], "empty_array"),
        ("", "invalid_value"),
        ([""], "invalid_value"),
        (5, "invalid_type"),
        ({}, "invalid_type"),
        (True, "invalid_type"),
        ([1.5], "invalid_type"),
        ([True], "invalid_type"),
        ([-1], "invalid_value"),
        ([10**9], "invalid_value"),
        (["a", 1], "invalid_type"),
        ([1, "a"], "invalid_type"),
        ([[1], "a"], "invalid_type"),
        (["a"] * 65, "array_above_max_length"),
    ],
)
def test_what_is_no_prompt(quick: Served, prompt: Any, code: str) -> None:
    answer = quick.complete(prompt, max_tokens=1)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, "prompt")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_value", "best_of"),
        ({"echo": "yes"}, "invalid_type", "echo"),
        ({"prompt": "x" * 600}, "context_length_exceeded", "prompt"),
    ],
)
def test_what_is_refused(quick: Served, fields: dict[str, Any], code: str, param: str) -> None:
    answer = quick.complete(fields.pop("prompt", "T"), **fields)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, param)


def test_best_of_may_repeat_n(quick: Served) -> None:
    assert len(quick.complete("T", max_tokens=1, n=2, best_of=2).json["choices"]) == 2


def test_a_prompt_that_the_tokenizer_cannot_spell_is_refused(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "m", "ABC", template=None)) as served:
        tokenizer = served.model.tokenizer

        def refuse(text: str, add_special_tokens: bool = True) -> list[int]:
            from caldrix.errors import RefusedError

            raise RefusedError("cannot be spelled")

        tokenizer.encode = refuse  # type: ignore[method-assign]
        assert served.complete("A").error["message"] == "cannot be spelled"
