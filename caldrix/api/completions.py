"""POST /v1/completions: text or token ids in, their continuation out.

Owns the order in which its fields are read, `echo`, `suffix`, and the shape of its choices. The
fields that it shares with chat are generation.py's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caldrix.api import generation, prompts
from caldrix.api.call import Call
from caldrix.api.choices import Delta, Draft, Ended, Event, Opened, Plan, draft
from caldrix.api.fields import Fields
from caldrix.api.logprobs import CompletionLogprobs, Lists
from caldrix.api.refusals import shown, unsupported, unsupported_value, wrong_type, wrong_value
from caldrix.api.reply import Choice, answer, stream
from caldrix.api.service import Service
from caldrix.http.messages import Response, StreamResponse

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CompletionFields:
    """A completions request, checked, its prompts not yet encoded."""

    options: generation.Options
    echo: bool
    suffix: str


async def completions(call: Call) -> Response | StreamResponse:
    service = call.service
    fields = await call.body()
    job = call.admit(await call.prepare(lambda: _draft(call, fields)))
    shape = CompletionShape(service, job.plan)
    if job.plan.options.streaming.is_on:
        return stream(job, shape, service.settings.ping_interval_s)
    return await answer(job, shape, call.gone)


def _draft(call: Call, fields: Fields) -> Draft:
    """A prompt in strings is encoded after every field has been read."""
    service = call.service
    request = read(fields, service)
    call.ignored = fields.ignored
    infill = service.model.infill
    plan = Plan(
        prompts.completion_prompts(fields, service.model, request.suffix),
        request.options,
        "cmpl-",
        "prompt",
        echo=request.echo,
        end_ids=infill.end_ids if infill and request.suffix else frozenset(),
    )
    return draft(service, plan)


def read(f: Fields, service: Service) -> CompletionFields:
    """Every field in the documented order: the first fault is the one reported."""
    vocab_size = service.model.program.vocab_size
    sampling = generation.sampling(f, service.settings.sampling)
    prompts.check_prompt(f, vocab_size)
    max_tokens = generation.completion_max_tokens(f, DEFAULT_MAX_TOKENS)
    streaming = generation.streaming(f)
    stops = generation.stops(f)
    n = generation.n_choices(f)
    echo = f.boolean("echo")
    if max_tokens == 0 and not echo:
        raise wrong_value("max_tokens", "an integer >= 1 (0 only with echo)", 0)
    n_logprobs = _logprobs(f)
    logit_bias = generation.logit_bias(f, vocab_size)
    presence = generation.penalty(f, "presence_penalty")
    frequency = generation.penalty(f, "frequency_penalty")
    generation.response_format(f)
    suffix = _suffix(f, service, echo)
    best_of = f.integer("best_of", None, None, "an integer")
    if best_of not in (None, n):
        raise unsupported_value(
            "best_of", f"must be equal to n, which is {n} (got {shown(best_of)})"
        )
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
    return CompletionFields(options, echo, suffix)


def _suffix(f: Fields, service: Service, echo: bool) -> str:
    """What comes after the text to write; an empty one is none."""
    suffix = f.string("suffix")
    if not suffix:
        return ""
    if service.model.infill is None:
        raise unsupported("suffix", "the model has no tokens for filling in the middle")
    if echo:
        raise unsupported("suffix", "the reply would not follow the prompt that echo repeats")
    return suffix


def _logprobs(f: Fields) -> int | None:
    most = generation.MAX_TOP_LOGPROBS
    if isinstance(f.get("logprobs"), bool):
        raise wrong_type("logprobs", f"an integer from 0 to {most}", f.get("logprobs"))
    return f.integer("logprobs", 0, most, f"an integer from 0 to {most}")


class CompletionShape:
    object_name = "text_completion"
    chunk_name = "text_completion"
    n_reasoning = 0

    def __init__(self, service: Service, plan: Plan) -> None:
        self._tokenizer = service.model.tokenizer
        self._plan = plan
        self._shows_logprobs = plan.options.n_logprobs is not None
        # The choice that runs
        self._logprobs = CompletionLogprobs(self._tokenizer)

    def opening(self, event: Opened) -> list[Choice]:
        """The echoed prompt, where there is one."""
        self._logprobs = CompletionLogprobs(self._tokenizer)
        if not self._plan.echo:
            return []
        choice = _choice(event.index, self._plan.prompt_of(event.index).text, None)
        return [self._scored(choice, self._prompt_scores(event))]

    def piece(self, event: Delta) -> list[Choice]:
        choice = _choice(event.index, event.text, None)
        return [self._scored(choice, self._logprobs.reply(event.tokens))]

    def closing(self, event: Ended) -> list[Choice]:
        return [_choice(event.index, "", event.reason)]

    def whole(self, events: Sequence[Event], reason: str) -> Choice:
        opened = events[0]
        assert isinstance(opened, Opened)
        self._logprobs = CompletionLogprobs(self._tokenizer)
        text = self._plan.prompt_of(opened.index).text if self._plan.echo else ""
        scores = self._prompt_scores(opened)
        for event in events[1:]:
            assert isinstance(event, Delta)
            text += event.text
            for name, values in self._logprobs.reply(event.tokens).items():
                scores[name] += values
        return self._scored(_choice(opened.index, text, reason), scores)

    def _prompt_scores(self, event: Opened) -> Lists:
        if not event.prompt_tokens:
            return self._logprobs.reply(())
        prompt = self._plan.prompt_of(event.index)
        return self._logprobs.prompt(prompt.ids, event.prompt_tokens, prompt.text)

    def _scored(self, choice: Choice, scores: Lists) -> Choice:
        if self._shows_logprobs:
            choice["logprobs"] = scores
        return choice


def _choice(index: int, text: str, reason: str | None) -> Choice:
    return {"finish_reason": reason, "index": index, "text": text}
