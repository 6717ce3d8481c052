"""POST /v1/chat/completions: messages in, an assistant's message out.

Owns the order in which its fields are read and the shape of its choices. The fields themselves are
generation.py's and messages.py's.
"""

from dataclasses import dataclass

from caldrix.api import generation, prompts, thinking
from caldrix.api.call import Call
from caldrix.api.choices import Delta, Ended, Opened, Plan
from caldrix.api.fields import Fields
from caldrix.api.messages import Message, messages
from caldrix.api.refusals import ApiError, shown, unsupported, unsupported_value, wrong_type
from caldrix.api.reply import Choice, answer, json_response, stream
from caldrix.api.service import Service
from caldrix.http.messages import Response, StreamResponse

NO_TEMPLATE_MAX_TOKENS = 256  # a base model rarely ends its own reply


@dataclass(frozen=True, slots=True)
class ChatFields:
    """A chat request, checked, not yet encoded."""

    messages: list[Message]
    options: generation.Options
    variables: dict[str, object]
    continues: bool


async def chat(call: Call) -> Response | StreamResponse:
    service = call.service
    fields = await call.body()
    request = read(fields, service)
    call.ignored = fields.ignored

    def encode() -> prompts.Prompt:
        return prompts.chat_prompt(
            service.model, request.messages, request.variables, request.continues
        )

    prompt = await call.encode(encode)
    plan = Plan((prompt,), request.options, "chatcmpl-", "messages", notes=notes(service))
    job = call.admit(plan)
    shape = ChatShape()
    if request.options.streaming.is_on:
        return stream(job, shape, service.settings.ping_interval_s)
    return await answer(job, shape, call.gone)


def notes(service: Service) -> tuple[tuple[str, str], ...]:
    if service.model.chat_template is None:
        return (("x-caldrix-note", prompts.NO_TEMPLATE),)
    return ()


def read(f: Fields, service: Service) -> ChatFields:
    """Every field in the documented order: the first fault is the one reported."""
    vocab_size = service.model.program.vocab_size
    default = NO_TEMPLATE_MAX_TOKENS if service.model.chat_template is None else None
    sampling = generation.sampling(f, service.settings.sampling)
    conversation = messages(f)
    max_tokens = generation.max_tokens(f, ("max_completion_tokens", "max_tokens"), default, least=1)
    streaming = generation.streaming(f)
    stops = generation.stops(f)
    n = generation.n_choices(f)
    logprobs = generation.chat_logprobs(f)
    logit_bias = generation.logit_bias(f, vocab_size)
    presence = generation.penalty(f, "presence_penalty")
    frequency = generation.penalty(f, "frequency_penalty")
    generation.response_format(f)
    tools(f)
    variables = thinking.template_variables(f)
    f.choice("reasoning_format", ("none", "auto", "deepseek"))
    continues = prompts.check_continues(f, conversation)
    options = generation.Options(
        sampling=sampling,
        max_tokens=max_tokens,
        streaming=streaming,
        stops=stops,
        n=n,
        logprobs=logprobs,
        logit_bias=logit_bias,
        presence_penalty=presence,
        frequency_penalty=frequency,
        stop_token_ids=generation.stop_token_ids(f, vocab_size),
        min_tokens=generation.min_tokens(f),
        ignore_eos=f.boolean("ignore_eos"),
        timings=generation.timings(f),
        use_cache=f.boolean("cache_prompt", True),
    )
    generation.refuse_others(f)
    generation.refuse_missing(options)
    best_of(f)
    return ChatFields(conversation, options, variables, continues)


def tools(f: Fields) -> None:
    """Known, and refused where they would change the reply."""
    if f.array("tools", 128):
        raise unsupported("tools", "this version does not call tools; send text messages only")
    choice = f.get("tool_choice")
    if choice is not None and choice not in ("none", "auto"):
        if not isinstance(choice, str | dict):
            raise wrong_type("tool_choice", "a string or an object", choice)
        raise unsupported_value("tool_choice", "this version does not call tools; use none or auto")
    f.boolean("parallel_tool_calls")


def best_of(f: Fields) -> None:
    if f.get("best_of") is not None:
        raise unsupported("best_of", "use n")


async def cancel(call: Call) -> Response:
    """POST /v1/chat/completions/{id}/cancel: calls off a request that is still going on."""
    reply_id, slash, verb = call.tail.partition("/")
    jobs = call.records.live_jobs() if (slash, verb) == ("/", "cancel") else []
    for job in jobs:
        if job.id == reply_id and job.is_running:
            job.cancel()
            return json_response({"cancelled": True, "id": job.id})
    raise ApiError(404, "unknown_url", f"no running request {shown(reply_id)[1:-1]}")


class ChatShape:
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def opening(self, event: Opened) -> list[Choice]:
        return [_delta(event.index, {"content": "", "role": "assistant"})]

    def piece(self, event: Delta) -> list[Choice]:
        return [_delta(event.index, {"content": event.text})]

    def closing(self, event: Ended) -> list[Choice]:
        return [_delta(event.index, {}, event.reason)]

    def whole(self, index: int, text: str, event: Ended) -> Choice:
        message = {"content": text, "role": "assistant"}
        return {"finish_reason": event.reason, "index": index, "message": message}


def _delta(index: int, delta: dict[str, object], reason: str | None = None) -> Choice:
    return {"delta": delta, "finish_reason": reason, "index": index}
