"""The messages of a chat: checked, and in the shape that the text layer takes.

Owns roles, content parts and tool calls of earlier turns, each with its refusal naming its place
(`messages[2].content[0].type`). Knows no template: whether the model's template takes a shape is
found out there. Image parts are refused: this server's models take text only.
"""

from typing import Any

from caldrix.api.fields import Fields, as_object, empty_array, too_many
from caldrix.api.refusals import missing, unsupported_value, wrong_type, wrong_value

MAX_MESSAGES = 2048
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text")
_NOT_TEXT = {
    "image_url": "the model takes text only; image_url parts need a vision model",
    "input_image": "the model takes text only; image parts need a vision model",
    "input_audio": "audio is not read by this server; send text parts",
    "file": "files are not read by this server; send text parts",
    "input_video": "video is not read by this server; send text parts",
}

Message = dict[str, Any]


def messages(f: Fields) -> list[Message]:
    value = f.get("messages")
    if value is None:
        raise missing("messages")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array of messages", value)
    if not value:
        raise empty_array("messages")
    if len(value) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES, len(value))
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def text_of(message: Message) -> str:
    """The text of a checked message's content, its parts on lines of their own."""
    content = message["content"]
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _message(value: object, param: str) -> Message:
    fields = Fields(as_object(value, param), param)
    role = fields.required_string("role")
    if role not in ROLES:
        raise wrong_value(f"{param}.role", f"one of {', '.join(ROLES)}", role)
    message: Message = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(fields) if role == "assistant" else None
    message["content"] = _content(fields, may_be_absent=bool(calls))
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = fields.required_string("tool_call_id")
    for name in ("name", "reasoning_content", "reasoning"):
        if (text := fields.string(name)) is not None:
            message[name] = text
    return message


def _content(fields: Fields, may_be_absent: bool) -> str | list[dict[str, str]] | None:
    param = fields.param("content")
    value = fields.get("content")
    if value is None and may_be_absent:
        return None
    if value is None:
        raise missing(param)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(param, "a string or an array of parts", value)
    if not value:
        raise empty_array(param)
    return [_part(part, f"{param}[{i}]") for i, part in enumerate(value)]


def _part(value: object, param: str) -> dict[str, str]:
    fields = Fields(as_object(value, param), param)
    kind = fields.required_string("type")
    if kind in _NOT_TEXT:
        raise unsupported_value(f"{param}.type", _NOT_TEXT[kind])
    if kind not in TEXT_PARTS:
        raise wrong_value(f"{param}.type", "text", kind)
    return {"type": "text", "text": fields.required_string("text")}


def _tool_calls(fields: Fields) -> list[dict[str, object]] | None:
    calls = fields.array("tool_calls", 128)
    if not calls:
        return None
    place = fields.param("tool_calls")
    return [_tool_call(call, f"{place}[{i}]") for i, call in enumerate(calls)]


def _tool_call(value: object, param: str) -> dict[str, object]:
    fields = Fields(as_object(value, param), param)
    fields.choice("type", ("function",))
    function = fields.object("function")
    if function is None:
        raise missing(f"{param}.function")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = "{}"
    if not isinstance(arguments, str | dict):
        raise wrong_type(f"{param}.function.arguments", "a JSON string", arguments)
    called = {"name": function.required_string("name"), "arguments": arguments}
    call: dict[str, object] = {"type": "function", "function": called}
    if (call_id := fields.string("id")) is not None:
        call["id"] = call_id
    return call
