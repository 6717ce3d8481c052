"""Tools over the tokenizer and the chat template: /tokenize, /detokenize, /apply-template and the
count of a chat's input tokens.

Owns both spellings of /tokenize that clients use. None of these takes a place in the queue; all
run on a thread.
"""

from caldrix.api import generation, prompts, thinking
from caldrix.api.call import Call
from caldrix.api.fields import Fields
from caldrix.api.messages import messages
from caldrix.api.refusals import missing
from caldrix.api.reply import json_response
from caldrix.api.service import Service
from caldrix.http.messages import Response

MAX_IDS = 1 << 20


async def tokenize(call: Call) -> Response:
    service, fields = call.service, await call.tool_body()
    ids, pieces = await service.off_loop(lambda: _tokenize(fields, service))
    call.ignored = fields.ignored
    tokens: list[object] = list(ids)
    if pieces:
        tokens = [{"id": i, "piece": _piece(service, i)} for i in ids]
    body = {"count": len(ids), "max_model_len": service.model.context, "tokens": tokens}
    return json_response(body)


def _tokenize(f: Fields, service: Service) -> tuple[list[int], bool]:
    tokenizer = service.model.tokenizer
    with_pieces = f.boolean("with_pieces")
    if (text := f.string("content")) is not None:
        adds = f.boolean("add_special")
        if f.boolean("parse_special", True):
            return tokenizer.encode(text, adds), with_pieces
        plain = prompts.plain_ids(service.model, text) if adds else tokenizer.encode_text(text)
        return plain, with_pieces
    if (text := f.string("prompt")) is not None:
        return tokenizer.encode(text, f.boolean("add_special_tokens", True)), with_pieces
    if f.get("messages") is None:
        raise missing("content")
    return _chat_ids(f, service), with_pieces


def _chat_ids(f: Fields, service: Service) -> list[int]:
    conversation = messages(f)
    variables = thinking.template_variables(f)
    if not f.boolean("add_generation_prompt", True):
        variables["add_generation_prompt"] = False
    continues = prompts.check_continues(f, conversation)
    return prompts.chat_ids(service.model, conversation, variables, continues)


def _piece(service: Service, token_id: int) -> object:
    """A token's text; its bytes where they are only a part of a character."""
    raw = service.model.tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(call: Call) -> Response:
    service, fields = call.service, await call.tool_body()
    values = fields.array("tokens", MAX_IDS)
    call.ignored = fields.ignored
    if values is None:
        raise missing("tokens")
    ids = [generation.token_id(v, "tokens", service.model.program.vocab_size) for v in values]
    tokenizer = service.model.tokenizer
    text = await service.off_loop(lambda: tokenizer.decode(ids, skip_special_tokens=False))
    return json_response({"content": text, "prompt": text})


async def apply_template(call: Call) -> Response:
    service, fields = call.service, await call.tool_body()
    conversation = messages(fields)
    variables = thinking.template_variables(fields)
    text = await service.off_loop(lambda: prompts.rendered(service.model, conversation, variables))
    return json_response({"prompt": text})


async def input_tokens(call: Call) -> Response:
    service, fields = call.service, await call.body()
    ids = await service.off_loop(lambda: _chat_ids(fields, service))
    return json_response({"input_tokens": len(ids), "object": "response.input_tokens"})
