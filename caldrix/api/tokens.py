"""Tools over the tokenizer and the chat template: /tokenize, /detokenize, /apply-template and the
count of a chat's input tokens.

Owns both spellings of /tokenize that clients use. The routes that take a chat take all its fields,
checked as chat checks them. None of these takes a place in the queue; all of it runs on a thread,
and a long list is written in pieces, between which the event loop gets its turn.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from caldrix.api import chat, generation, prompts, thinking
from caldrix.api.call import Call
from caldrix.api.fields import Fields
from caldrix.api.messages import messages
from caldrix.api.refusals import dumps_in_pieces, from_library, missing
from caldrix.api.reply import JSON_HEADERS, json_response
from caldrix.api.service import Service
from caldrix.errors import RefusedError
from caldrix.http.messages import Response

Value = TypeVar("Value")

MAX_IDS = 1 << 20


async def tokenize(call: Call) -> Response:
    service, fields = call.service, await call.tool_body()

    def work() -> bytes:
        ids, with_pieces = _tokenize(fields, service)
        call.ignored = fields.ignored
        return _tokens_body(ids, with_pieces, service)

    return Response(200, [JSON_HEADERS], await call.off_loop(work))


def _tokenize(f: Fields, service: Service) -> tuple[list[int], bool]:
    tokenizer = service.model.tokenizer
    with_pieces = f.boolean("with_pieces")
    if (text := f.string("content")) is not None:
        adds = f.boolean("add_special")
        if f.boolean("parse_special", True):
            return _encoded(service, text, "content", adds), with_pieces
        plain = prompts.plain_ids(service.model, text) if adds else tokenizer.encode_text(text)
        return plain, with_pieces
    if (text := f.string("prompt")) is not None:
        adds = f.boolean("add_special_tokens", True)
        return _encoded(service, text, "prompt", adds), with_pieces
    if f.get("messages") is None:
        raise missing("content")
    return _conversation_ids(f, service), with_pieces


def _encoded(service: Service, text: str, param: str, adds: bool) -> list[int]:
    try:
        return service.model.tokenizer.encode(text, adds)
    except RefusedError as error:
        raise from_library(error, param) from None


def _conversation_ids(f: Fields, service: Service) -> list[int]:
    conversation = messages(f)
    chat.tools(f)
    variables = thinking.template_variables(f)
    if not f.boolean("add_generation_prompt", True):
        variables["add_generation_prompt"] = False
    continues = prompts.check_continues(f, conversation)
    return prompts.chat_ids(service.model, conversation, variables, continues)


def _tokens_body(ids: Sequence[int], with_pieces: bool, service: Service) -> bytes:
    tokens: list[object] = list(ids)
    if with_pieces:
        tokens = [{"id": i, "piece": _piece(service, i)} for i in ids]
    body = {"count": len(ids), "max_model_len": service.model.context, "tokens": tokens}
    return dumps_in_pieces(body)


def _piece(service: Service, token_id: int) -> object:
    """A token's text; its bytes where they are only a part of a character."""
    raw = service.model.tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(call: Call) -> Response:
    service, fields = call.service, await call.tool_body()

    def work() -> Response:
        values = fields.array("tokens", MAX_IDS)
        call.ignored = fields.ignored
        if values is None:
            raise missing("tokens")
        ids = [generation.token_id(v, "tokens", service.model.program.vocab_size) for v in values]
        text = service.model.tokenizer.decode(ids, skip_special_tokens=False)
        return json_response({"content": text, "prompt": text})

    return await call.off_loop(work)


async def apply_template(call: Call) -> Response:
    return await _of_chat(call, prompts.rendered, lambda text: {"prompt": text})


async def input_tokens(call: Call) -> Response:
    return await _of_chat(
        call,
        prompts.chat_ids,
        lambda ids: {"input_tokens": len(ids), "object": "response.input_tokens"},
    )


async def _of_chat(
    call: Call, prompt_of: Callable[..., Value], body_of: Callable[[Value], dict[str, object]]
) -> Response:
    """What `prompt_of` (of prompts.py) gives for a chat, shown by `body_of`."""
    service, fields = call.service, await call.tool_body()

    def work() -> Response:
        request = chat.read(fields, service)
        call.ignored = fields.ignored
        found = prompt_of(service.model, request.messages, request.variables, request.continues)
        return json_response(body_of(found), headers=chat.notes(service))

    return await call.off_loop(work)
