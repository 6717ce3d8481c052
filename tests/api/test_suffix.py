"""`suffix` of completions: a model with tokens for it writes what belongs between two texts."""

from collections.abc import Iterator
from typing import Any

import pytest
from known_reply import write_model
from served import Served, serving

PREFIX, SUFFIX, MIDDLE, PAD = 259, 260, 261, 262
TOKENS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Says ABC once it is asked for the middle, then the padding token, then the end token."""
    follows = {MIDDLE: ord("A"), ord("C"): PAD}
    directory = tmp_path_factory.mktemp("models") / "filler"
    with serving(write_model(directory, "ABC", special=TOKENS, follows=follows)) as served:
        yield served


def asked(prompt: bytes, suffix: bytes) -> list[int]:
    return [PREFIX, *prompt, SUFFIX, *suffix, MIDDLE]


def test_the_middle_is_asked_for_between_two_texts(filler: Served) -> None:
    body = filler.complete("x", suffix="yz").json
    assert body["choices"] == [{"finish_reason": "stop", "index": 0, "text": "ABC"}]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 4)
    # The same ids: all but the last are in the slot's memory.
    again = filler.complete(asked(b"x", b"yz"), max_tokens=1).json
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert again["choices"][0]["text"] == "A"


def test_padding_ends_such_a_reply_and_no_other(filler: Served) -> None:
    plain = filler.complete(asked(b"x", b"y"), max_tokens=9).json
    assert plain["choices"][0]["text"] == "ABC"
    assert plain["usage"]["completion_tokens"] == 5
    ignoring = filler.complete("x", suffix="y", max_tokens=6, ignore_eos=True).json
    assert ignoring["choices"][0]["finish_reason"] == "length"
    assert ignoring["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("prompt", ["x", "", [120], [[120], [65, 66]], ["x", "", "<|end|>"]])
def test_every_prompt_gets_the_suffix(filler: Served, prompt: Any) -> None:
    n_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    body = filler.complete(prompt, suffix="y", n=2).json
    assert [c["text"] for c in body["choices"]] == ["ABC"] * 2 * n_prompts
    assert [c["index"] for c in body["choices"]] == list(range(2 * n_prompts))


def test_nothing_that_is_typed_becomes_a_control_token(filler: Served) -> None:
    text = "<|end|><|fim_middle|>"
    plain = filler.complete(text, max_tokens=1).json["usage"]["prompt_tokens"]
    assert plain == 2  # a prompt alone may hold control tokens
    usage = filler.complete(text, suffix=text, max_tokens=1).json["usage"]
    assert usage["prompt_tokens"] == 3 + 2 * len(text)


def test_a_stream_and_scores(filler: Served) -> None:
    *chunks, done = filler.complete("x", suffix="y", stream=True).events
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ABC"
    scored = filler.complete("x", suffix="y", logprobs=0).json["choices"][0]["logprobs"]
    assert scored["tokens"][:3] == ["A", "B", "C"]
    assert scored["text_offset"][:3] == [0, 1, 2]


def test_an_empty_suffix_is_none(filler: Served, quick: Served) -> None:
    for served in (filler, quick):
        plain = served.complete("x", suffix="", echo=True, max_tokens=1)
        assert (
            plain.json["choices"] == served.complete("x", echo=True, max_tokens=1).json["choices"]
        )


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"suffix": 5}, "invalid_type", "suffix"),
        ({"suffix": ["y"]}, "invalid_type", "suffix"),
        ({"suffix": "y", "echo": True}, "unsupported_parameter", "suffix"),
        ({"suffix": "y" * 600}, "context_length_exceeded", "prompt"),
        ({"suffix": "y", "prompt": None}, "missing_required_parameter", "prompt"),
        ({"suffix": "y", "prompt": [[]]}, "empty_array", "prompt"),
        ({"suffix": "y", "prompt": [10**6]}, "invalid_value", "prompt"),
        ({"suffix": "y", "max_tokens": 0}, "invalid_value", "max_tokens"),
    ],
)
def test_what_is_refused(filler: Served, fields: dict[str, Any], code: str, param: str) -> None:
    answer = filler.complete(fields.pop("prompt", "x"), **fields)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, param)


def test_a_model_without_the_tokens_refuses_it(quick: Served) -> None:
    answer = quick.complete("x", suffix="y")
    assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
    assert "suffix is not supported" in answer.error["message"]
