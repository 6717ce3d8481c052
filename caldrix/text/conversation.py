"""What a chat template expects of its messages, found out by trying it, and messages made to fit.

Owns the shapes of `content` (a string, a list of parts, null), the place of a system text that a
template does not take, and the assistant's own think block, which stays readable to the template.
Must not know jinja2 or tokenizers: it is handed a function that renders.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from caldrix.errors import RefusedError
from caldrix.text.template_limits import LimitError
from caldrix.text.typed_text import TypedText

Message = Mapping[str, Any]

_PROBE = "Qzxprobe"
_USER: Message = {"role": "user", "content": _PROBE}
_OPEN, _CLOSE = "<think>", "</think>"
_THINKS = re.compile(r"\s*" + _OPEN)


class Traits:
    """What one template does, each found with one small rendering when it is first asked."""

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        self._render = render

    def _try(self, *messages: Message) -> str | None:
        try:
            return self._render(messages)
        except LimitError:
            raise
        except RefusedError:
            return None

    @cached_property
    def takes_text(self) -> bool:
        """Whether content as a string reaches the prompt."""
        return _PROBE in (self._try(_USER) or "")

    @cached_property
    def takes_parts(self) -> bool:
        """Whether content as a list of parts reaches the prompt, and not as a list spelled out."""
        text = self._try({"role": "user", "content": [{"type": "text", "text": _PROBE}]}) or ""
        return _PROBE in text and not re.search(r"""['"]text['"]""", text)

    @cached_property
    def takes_null(self) -> bool:
        """Whether an assistant turn of tool calls alone may have null for content."""
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
        text = self._try(_USER, {"role": "assistant", "content": None, "tool_calls": [call]})
        return text is not None and "None" not in text

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message reaches the prompt."""
        return _PROBE in (
            self._try({"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}) or ""
        )

    @cached_property
    def opens_thinking(self) -> bool:
        """Whether a reply begins inside a think block that the template has opened."""
        return (self._try(_USER) or "").rstrip().endswith(_OPEN)


def fitted(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """The messages with contents in the shape that the template takes."""
    return [_fitted(message, i, traits) for i, message in enumerate(messages)]


def _fitted(message: Message, i: int, traits: Traits) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        if traits.takes_text or not traits.takes_parts:
            return message
        return {**message, "content": [{"type": "text", "text": content}]}
    if isinstance(content, list) and not traits.takes_parts:
        return {**message, "content": "\n".join(_part_text(part, i) for part in content)}
    if content is None:
        keeps = message.get("tool_calls") and traits.takes_null
        return {**message, "content": None if keeps else ""}
    return message


def _part_text(part: object, i: int) -> str:
    if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
        return text
    raise RefusedError(f"messages[{i}].content: this model's chat template takes text only")


def system_moved(messages: Sequence[Message]) -> list[Message]:
    """The messages without the leading system messages, whose text goes to the top of the first
    user message."""
    n_system = next((i for i, m in enumerate(messages) if not is_system(m)), len(messages))
    rest = list(messages[n_system:])
    place = next((i for i, m in enumerate(rest) if m.get("role") == "user"), None)
    if place is None:
        place = 0
        rest.insert(0, {"role": "user", "content": ""})
    parts = [part for m in messages[:n_system] for part in _parts(m)]
    own = _parts(rest[place])
    if all(isinstance(part, str) for part in parts + own):
        content: object = "\n\n".join(filter(None, [*parts, *own]))
    else:
        content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts + own]
    rest[place] = {**rest[place], "content": content}
    return rest


def is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, (list, tuple)) else [content or ""]


def hidden(messages: Sequence[Message], typed: TypedText, traits: Traits) -> list[object]:
    """The messages with nothing in them that reads as a control token, but for the think block that
    an assistant's turn begins with: templates look for it, to leave it out of earlier turns."""
    result: list[object] = []
    for message in messages:
        value = typed.hide_all(dict(message))
        assert isinstance(value, dict)
        if message.get("role") == "assistant" and isinstance(text := message.get("content"), str):
            value["content"] = _hidden_reply(text, typed, traits)
        result.append(value)
    return result


def _hidden_reply(text: str, typed: TypedText, traits: Traits) -> str:
    opening = _THINKS.match(text)
    if opening is None and not (_CLOSE in text and traits.opens_thinking):
        return typed.hide(text)
    head = opening[0] if opening else ""
    thought, closing, reply = text[len(head) :].partition(_CLOSE)
    return head + typed.hide(thought) + closing + typed.hide(reply)
