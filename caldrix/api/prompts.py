"""Checked messages and prompts to token ids.

Owns the way through the chat template, the plain text of a model without one, the forms of a
completions prompt, and the refusal of what fills the context. Runs on a thread, since a template
and a long text take their time: touches no engine and no loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caldrix.api.fields import Fields, empty_array, too_many
from caldrix.api.generation import token_id
from caldrix.api.messages import Message, text_of
from caldrix.api.refusals import (
    ApiError,
    context_exceeded,
    from_library,
    missing,
    unsupported_value,
    wrong_type,
    wrong_value,
)
from caldrix.engine.load import LoadedModel
from caldrix.errors import RefusedError
from caldrix.text.infill import infill_ids

MAX_PROMPTS = 64
NO_TEMPLATE = "no chat template"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to continue; `text` is what `echo` gives back."""

    ids: tuple[int, ...]
    text: str = ""


def chat_prompt(
    model: LoadedModel,
    messages: Sequence[Message],
    variables: dict[str, object],
    continues: bool,
) -> Prompt:
    return Prompt(_fitting(chat_ids(model, messages, variables, continues), model, "messages"))


def chat_ids(
    model: LoadedModel,
    messages: Sequence[Message],
    variables: dict[str, object],
    continues: bool,
) -> list[int]:
    """The ids of a conversation; where it `continues`, the last message's text is left open."""
    turns, tail = _turns_and_tail(messages, continues)
    try:
        if model.chat_template is None:
            ids = plain_ids(model, _last_user_text(turns))
        else:
            ids, _ = model.chat_template.encode_with_system_fallback(
                model.tokenizer, turns, **variables
            )
        return ids + (model.tokenizer.encode_text(tail) if tail else [])
    except RefusedError as error:
        raise from_library(error, "messages") from None


def check_continues(f: Fields, messages: Sequence[Message]) -> bool:
    """`continue_final_message`: the reply goes on where the last message, the assistant's, ends."""
    continues = f.boolean("continue_final_message")
    if continues and (messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]):
        reason = "the last message must be assistant text to be continued"
        raise unsupported_value("continue_final_message", reason)
    return continues


def _turns_and_tail(messages: Sequence[Message], continues: bool) -> tuple[Sequence[Message], str]:
    """The whole messages, and the text that the reply continues."""
    return (messages[:-1], text_of(messages[-1])) if continues else (messages, "")


def rendered(
    model: LoadedModel,
    messages: Sequence[Message],
    variables: dict[str, object],
    continues: bool,
) -> str:
    """The prompt of a conversation as text."""
    turns, tail = _turns_and_tail(messages, continues)
    if model.chat_template is None:
        return _last_user_text(turns) + tail
    try:
        return model.chat_template.render(turns, **variables) + tail  # type: ignore[arg-type]
    except RefusedError as error:
        raise from_library(error, "messages") from None


def plain_ids(model: LoadedModel, text: str) -> list[int]:
    """A chat without a template: the text alone, in which nothing becomes a control token."""
    ids = model.tokenizer.encode_text(text)
    bos = model.tokenizer.bos_id if model.tokenizer.adds_bos else None
    return ids if bos is None else [bos, *ids]


def _last_user_text(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return text_of(message)
    raise unsupported_value("messages", "the model has no chat template and takes a user message")


def completion_prompts(f: Fields, model: LoadedModel, suffix: str = "") -> tuple[Prompt, ...]:
    """Every prompt; with a `suffix`, which each of them gets, those that ask for the middle."""
    items = _prompt_list(f.get("prompt"))
    if suffix:
        return tuple(_infill_prompt(item, suffix, model) for item in items)
    return tuple(_completion_prompt(item, model) for item in items)


def check_prompt(f: Fields, vocab_size: int) -> None:
    """What can be said of a prompt before it is encoded."""
    value = f.get("prompt")
    if value is None:
        raise missing("prompt")
    for item in _prompt_list(value):
        if isinstance(item, list):
            if not item:
                raise empty_array("prompt")
            for one in item:
                token_id(one, "prompt", vocab_size)


def _prompt_list(value: object) -> list[object]:
    """One item a prompt: a string or a list of ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, an array of strings or of token ids", value)
    if not value:
        raise empty_array("prompt")
    if not isinstance(value[0], str | list):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise too_many("prompt", MAX_PROMPTS, len(value))
    kind = type(value[0])
    for item in value:
        if type(item) is not kind:
            raise wrong_type("prompt", "all strings or all arrays of token ids", item)
    return value


def _completion_prompt(value: object, model: LoadedModel) -> Prompt:
    if isinstance(value, str):
        try:
            ids = model.tokenizer.encode(value)
        except RefusedError as error:
            raise from_library(error, "prompt") from None
        if not ids:
            raise wrong_value("prompt", "text with at least one token", value)
        return Prompt(_fitting(ids, model, "prompt"), value)
    ids = _given_ids(value)
    return Prompt(_fitting(ids, model, "prompt"), model.tokenizer.decode(ids))


def _infill_prompt(value: object, suffix: str, model: LoadedModel) -> Prompt:
    """Prompt and suffix between the model's tokens for it. Neither is echoed."""
    before = value if isinstance(value, str) else _given_ids(value)
    assert model.infill is not None
    try:
        ids = infill_ids(model.tokenizer, model.infill, before, suffix)
    except RefusedError as error:
        raise from_library(error, "prompt") from None
    return Prompt(_fitting(ids, model, "prompt"))


def _given_ids(value: object) -> list[int]:
    """Of a checked prompt; 5.0 is an integer."""
    assert isinstance(value, list)
    return [int(item) for item in value]


def _fitting(ids: Sequence[int], model: LoadedModel, param: str) -> tuple[int, ...]:
    if len(ids) >= model.context:
        raise context_exceeded(param, len(ids), model.context)
    if not ids:
        message = f"{param} must give at least one token (got none)"
        raise ApiError(400, "invalid_value", message, param)
    return tuple(ids)
