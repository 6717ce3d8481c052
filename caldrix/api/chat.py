"""POST /v1/chat/completions: messages in, an assistant's message out.

Owns the order in which its fields are read and the shape of its choices. The fields themselves are
generation.py's and messages.py's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caldrix.api import generation, prompts, thinking
from caldrix.api.call import Call
from caldrix.api.choices import Delta, Draft, Ended, Event, Opened, Plan, draft
from caldrix.api.fields import Fields
from caldrix.api.logprobs import chat_logprobs
from caldrix.api.messages import Message, messages
from caldrix.api.reasoning import Part, Splitter, prompt_opens
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
    splits_thinking: bool


async def chat(call: Call) -> Response | StreamResponse:
    service = call.service
    fields = await call.body()
    drafted, splits = await call.prepare(lambda: _draft(call, fields))
    job = call.admit(drafted)
    shape = ChatShape(service, job.plan, splits)
    if job.plan.options.streaming.is_on:
        return stream(job, shape, service.settings.ping_interval_s)
    return await answer(job, shape, call.gone)


def _draft(call: Call, fields: Fields) -> tuple[Draft, bool]:
    """And whether thinking is shown apart."""
    service = call.service
    request = read(fields, service)
    call.ignored = fields.ignored
    prompt = prompts.chat_prompt(
        service.model, request.messages, request.variables, request.continues
    )
    plan = Plan((prompt,), request.options, "chatcmpl-", "messages", notes=notes(service))
    return draft(service, plan), request.splits_thinking


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
    max_tokens = generation.chat_max_tokens(f, default)
    streaming = generation.streaming(f)
    stops = generation.stops(f)
    n = generation.n_choices(f)
    n_logprobs = generation.chat_logprobs(f)
    logit_bias = generation.logit_bias(f, vocab_size)
    presence = generation.penalty(f, "presence_penalty")
    frequency = generation.penalty(f, "frequency_penalty")
    generation.response_format(f)
    tools(f)
    variables = thinking.template_variables(f)
    form = f.choice("reasoning_format", ("none", "auto", "deepseek"))
    continues = prompts.check_continues(f, conversation)
    options = generation.Options(
        sampling=sampling,
        max_tokens=max_tokens,
        streaming=streaming,
        stops=stops,
        n=n,
        n_logprobs=n_logprobs,
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
    best_of(f)
    splits = (form or service.settings.reasoning_format) != "none"
    return ChatFields(conversation, options, variables, continues, splits)


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

    def __init__(self, service: Service, plan: Plan, splits: bool) -> None:
        """`splits`: thinking is shown apart from the answer."""
        self._tokenizer = service.model.tokenizer
        self._shows_logprobs = plan.options.n_logprobs is not None
        self._splits = splits
        self._opens = splits and prompt_opens(self._end_of(plan.prompts[0].ids))
        # The choice that runs
        self._splitter = Splitter(self._opens)
        self.n_reasoning = 0  # tokens of all choices so far

    def _end_of(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids[-16:], skip_special_tokens=False)

    def opening(self, event: Opened) -> list[Choice]:
        self._splitter = Splitter(self._opens)
        return [_delta(event.index, {"content": "", "role": "assistant"})]

    def piece(self, event: Delta) -> list[Choice]:
        parts = self._parts(event)
        choices = [_delta(event.index, {_NAMES[thinks]: text}) for thinks, text in parts]
        if self._shows_logprobs and event.tokens:
            if not choices:  # tokens that are not shown
                choices = [_delta(event.index, {})]
            choices[0]["logprobs"] = chat_logprobs(event.tokens, self._tokenizer)
        return choices

    def _parts(self, event: Delta) -> list[Part]:
        if not self._splits:
            return [(False, event.text)] if event.text else []
        was_thinking = self._splitter.is_thinking
        parts = self._splitter.push(event.text)
        if was_thinking or self._splitter.is_thinking:
            self.n_reasoning += event.n_tokens
        return parts

    def _rest(self) -> list[Part]:
        return self._splitter.finish() if self._splits else []

    def closing(self, event: Ended) -> list[Choice]:
        rest = [_delta(event.index, {_NAMES[thinks]: text}) for thinks, text in self._rest()]
        return [*rest, _delta(event.index, {}, event.reason)]

    def whole(self, events: Sequence[Event], reason: str) -> Choice:
        self._splitter = Splitter(self._opens)
        deltas = [event for event in events if isinstance(event, Delta)]
        parts = [part for event in deltas for part in self._parts(event)] + self._rest()
        message: dict[str, object] = {
            "content": "".join(text for thinks, text in parts if not thinks),
            "role": "assistant",
        }
        if thought := "".join(text for thinks, text in parts if thinks):
            message["reasoning_content"] = thought
        choice: Choice = {"finish_reason": reason, "index": events[0].index, "message": message}
        if self._shows_logprobs:
            tokens = [token for event in deltas for token in event.tokens]
            choice["logprobs"] = chat_logprobs(tokens, self._tokenizer)
        return choice


_NAMES = {True: "reasoning_content", False: "content"}


def _delta(index: int, delta: dict[str, object], reason: str | None = None) -> Choice:
    return {"delta": delta, "finish_reason": reason, "index": index}
