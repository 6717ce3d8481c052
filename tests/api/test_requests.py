"""Every field's type and range, the order of the checks, and the one error form."""

import json
from typing import Any

import pytest
from served import CHAT, COMPLETIONS, Served

LONG = "x" * 700


def test_an_error_has_four_keys_and_its_bytes(quick: Served) -> None:
    answer = quick.chat(min_p=1.5)
    assert answer.body.decode() == (
        '{"error":{"code":"invalid_value","message":"min_p must be a number from 0 to 1 (got 1.5)"'
        ',"param":"min_p","type":"invalid_request_error"}}'
    )
    assert answer.headers["content-type"] == "application/json"


WRONG_TYPES: dict[str, list[Any]] = {
    "temperature": ["1", True, [], {}],
    "top_p": ["1", True],
    "top_k": ["5", 1.5, True, []],
    "min_p": ["0", False],
    "repetition_penalty": ["1", True],
    "repeat_penalty": ["1"],
    "seed": ["1", 1.5, True],
    "max_tokens": ["5", 1.5, True],
    "max_completion_tokens": ["5", 2.5],
    "stream": ["true", 1, []],
    "stream_options": [5, "x", []],
    "n": ["1", 1.5, True],
    "stop": [5, {}, [5], [None], True],
    "logprobs": ["yes", 1],
    "logit_bias": [[], "x", {"1": "x"}, {"1": None}],
    "presence_penalty": ["0", True],
    "frequency_penalty": ["0", []],
    "response_format": ["text", []],
    "tools": [{}, "x"],
    "tool_choice": [1, []],
    "parallel_tool_calls": ["yes"],
    "reasoning_effort": [1],
    "chat_template_kwargs": [[]],
    "enable_thinking": ["yes"],
    "thinking": [True],
    "reasoning_format": [1],
    "continue_final_message": [1],
    "stop_token_ids": [1, ["a"], [1.5]],
    "min_tokens": ["1", 1.5],
    "ignore_eos": [1],
    "timings": [1],
    "cache_prompt": [1],
    "modalities": ["text"],
    "use_beam_search": [1],
    "messages": ["hi", 5, {}, True, [5], ["hi"], [[]], [None]],
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(quick: Served, name: str) -> None:
    for value in WRONG_TYPES[name]:
        fields = {name: value, **({"stream": True} if name == "stream_options" else {})}
        answer = quick.ask("POST", CHAT, {**_body(quick), **fields})
        assert answer.status == 400, value
        assert answer.error["code"] == "invalid_type", (value, answer.body)
        assert answer.error["param"].startswith(name)
        assert name in answer.error["message"]


OUT_OF_RANGE: dict[str, list[Any]] = {
    "temperature": [-0.1, 10**400],
    "top_p": [0, 1.1],
    "top_k": [-1, -(2**70)],
    "min_p": [-0.1, 1.5],
    "repetition_penalty": [0, -1],
    "max_tokens": [0, -5],
    "max_completion_tokens": [0, -2],
    "seed": [2**63, -(2**63) - 1],
    "n": [0, 17],
    "stop": ["", [""], LONG],
    "top_logprobs": [3],
    "logit_bias": [{"999999": 1}, {"-1": 1}, {"a": 1}, {"1": 101}, {"²": 1}],
    "presence_penalty": [3, -3],
    "frequency_penalty": [2.5],
    "reasoning_effort": ["most"],
    "reasoning_format": ["other"],
    "thinking": [{"type": "sometimes"}],
    "stop_token_ids": [[-1], [999999]],
    "min_tokens": [-1],
    "stream_options": [{}],
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(quick: Served, name: str) -> None:
    for value in OUT_OF_RANGE[name]:
        answer = quick.ask("POST", CHAT, {**_body(quick), name: value})
        assert answer.status == 400, value
        assert answer.error["code"] in ("invalid_value", "string_above_max_length"), answer.body
        assert answer.error["param"].startswith(name)


UNSUPPORTED: list[tuple[dict[str, Any], str, str]] = [
    ({"audio": {}}, "unsupported_parameter", "audio"),
    ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    ({"functions": []}, "unsupported_parameter", "functions"),
    ({"grammar": "x"}, "unsupported_parameter", "grammar"),
    ({"guided_anything": 1}, "unsupported_parameter", "guided_anything"),
    ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ({"best_of": 2}, "unsupported_parameter", "best_of"),
    ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    ({"tool_choice": "required"}, "unsupported_value", "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "unsupported_value", "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "unsupported_value", "response_format.type"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"thinking": {}}, "missing_required_parameter", "thinking.type"),
    (
        {"chat_template_kwargs": {"messages": []}},
        "unsupported_parameter",
        "chat_template_kwargs.messages",
    ),
    ({"enable_thinking": True, "reasoning_effort": "none"}, "invalid_value", "reasoning_effort"),
    (
        {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
        "invalid_value",
        "thinking",
    ),
    ({"continue_final_message": True}, "unsupported_value", "continue_final_message"),
    ({"stop": ["x"] * 17}, "array_above_max_length", "stop"),
    ({"stop_token_ids": [1] * 17}, "array_above_max_length", "stop_token_ids"),
    (
        {"logit_bias": {str(i): 1 for i in range(1025)}},
        "array_above_max_length",
        "logit_bias",
    ),
]


@pytest.mark.parametrize(("fields", "code", "param"), UNSUPPORTED)
def test_what_would_change_the_reply_and_cannot_is_refused(
    quick: Served, fields: dict[str, Any], code: str, param: str
) -> None:
    answer = quick.ask("POST", CHAT, {**_body(quick), **fields})
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, param)


NO_EFFECT: dict[str, Any] = {
    "user": "u",
    "store": True,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "response_format": {"type": "text"},
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "n": 1.0,
    "stop": [],
    "use_beam_search": False,
    "seed": -(2**63),
    "top_k": 2**40,
    "max_tokens": -1,
    "min_tokens": 0,
    "reasoning_effort": "high",
    "thinking": {"type": "enabled"},
    "enable_thinking": True,
    "chat_template_kwargs": {"enable_thinking": True, "x": [1]},
    "reasoning_format": "none",
    "cache_prompt": True,
}


def test_fields_without_effect_on_this_model_change_nothing(quick: Served) -> None:
    plain = quick.chat().json["choices"]
    answer = quick.chat(**NO_EFFECT)
    assert answer.json["choices"] == plain
    assert "x-caldrix-ignored" not in answer.headers


def test_null_is_absent(quick: Served) -> None:
    names = {*WRONG_TYPES, *OUT_OF_RANGE, *NO_EFFECT, "audio", "grammar"} - {"messages"}
    answer = quick.chat(**dict.fromkeys(names))
    assert answer.json["choices"] == quick.chat().json["choices"]
    for name in ("messages", "model"):
        answer = quick.ask("POST", CHAT, {**_body(quick), name: None})
        assert (answer.status, answer.error["param"]) == (400, name)


MESSAGES: list[tuple[Any, str, str]] = [
    ([], "empty_array", "messages"),
    ([{}], "missing_required_parameter", "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], "invalid_value", "messages[0].role"),
    ([{"role": 5, "content": "x"}], "invalid_type", "messages[0].role"),
    ([{"role": "function", "content": "x"}], "invalid_value", "messages[0].role"),
    ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
    ([{"role": "user", "content": 5}], "invalid_type", "messages[0].content"),
    ([{"role": "user", "content": []}], "empty_array", "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "invalid_type", "messages[0].content[0]"),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    (
        [{"role": "user", "content": [{"type": "file"}]}],
        "unsupported_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "unsupported_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "user", "content": [{"type": "smell"}]}],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "tool", "content": "x"}],
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
    (
        [{"role": "assistant", "tool_calls": []}],
        "missing_required_parameter",
        "messages[0].content",
    ),
    (
        [{"role": "assistant", "tool_calls": [{}]}],
        "missing_required_parameter",
        "messages[0].tool_calls[0].function",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        "missing_required_parameter",
        "messages[0].tool_calls[0].function.name",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
        "invalid_type",
        "messages[0].tool_calls[0].function.arguments",
    ),
    ([{"role": "user", "content": "x"}] * 2049, "array_above_max_length", "messages"),
    ([{"role": "user", "content": "x" * 600}], "context_length_exceeded", "messages"),
]


@pytest.mark.parametrize(("messages", "code", "param"), MESSAGES)
def test_a_message_is_refused_by_its_place(
    quick: Served, messages: Any, code: str, param: str
) -> None:
    answer = quick.chat(messages)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, param)


def test_a_conversation_with_tool_calls_reaches_the_template(quick: Served) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    bare = {"function": {"name": "f"}}
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "name": "me", "content": "2+3?"},
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [call, bare]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]
    assert quick.chat(messages, max_tokens=1).status == 200


def test_a_prompt_over_the_context_says_both_numbers(quick: Served) -> None:
    error = quick.chat("x" * 600).error
    assert error["message"].startswith("prompt is too long: ")  # clients look for either
    assert "this model's maximum context length is 512 tokens" in error["message"]
    assert str(error["n_prompt_tokens"]) in error["message"]
    assert error["n_ctx"] == 512


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        (None, 400, "missing_required_parameter"),
        (5, 400, "invalid_type"),
        ("QUICK", 404, "model_not_found"),
        ("", 404, "model_not_found"),
    ],
)
def test_the_model_is_named_first(
    quick: Served, path: str, model: Any, status: int, code: str
) -> None:
    answer = quick.ask("POST", path, {"model": model, "temperature": -1})
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["param"] == "model"


def test_the_first_fault_in_the_documented_order_is_reported(quick: Served) -> None:
    body = {"model": "quick", "n": 0, "messages": [], "temperature": -1}
    order = []
    while len(body) > 1:
        order.append(quick.ask("POST", CHAT, body).error["param"])
        if order[-1] == "messages":
            body["messages"] = [{"role": "user", "content": "x"}]
            continue
        body.pop(order[-1])
        if order[-1] == "n":
            break
    assert order == ["temperature", "messages", "n"]


def test_values_are_cut_in_messages(quick: Served) -> None:
    answer = quick.chat(reasoning_effort="\n" + "é" * 500)
    assert len(answer.error["message"]) < 200
    assert "\n" not in answer.error["message"]
    assert json.loads(answer.body)["error"]["param"] == "reasoning_effort"


def _body(served: Served) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": served.model.name, "messages": messages, "max_completion_tokens": 1}
