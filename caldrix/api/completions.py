"""POST /v1/completions: text or token ids in, their continuation out.

Owns the order in which its fields are read, `echo`, and the shape of its choices. The fields that
it shares with chat are generation.py's.
"""

from dataclasses import dataclass

from caldrix.api import generation, prompts
from caldrix.api.call import Call
from caldrix.api.choices import Delta, Ended, Opened, Plan
from caldrix.api.fields import Fields
from caldrix.api.refusals import unsupported, unsupported_value, wrong_type, wrong_value
from caldrix.api.reply import Choice, answer, stream
from caldrix.api.service import Service
from caldrix.http.messages import Response, StreamResponse

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CompletionFields:
    """A completions request, checked, its prompts not yet encoded."""

    options: generation.Options
    echo: bool


async def completions(call: Call) -> Response | StreamResponse:
    service = call.service
    fields = await call.body()
    encoded, request = await call.encode(lambda: _read_all(fields, service))
    call.ignored = fields.ignored
    plan = Plan(encoded, request.options, "cmpl-", "prompt", echo=request.echo)
    job = call.admit(plan)
    shape = CompletionShape(plan)
    if request.options.streaming.is_on:
        return stream(job, shape, service.settings.ping_interval_s)
    return await answer(job, shape, call.gone)


def _read_all(
    fields: Fields, service: Service
) -> tuple[tuple[prompts.Prompt, ...], CompletionFields]:
    """A prompt in strings is encoded after every field has been read."""
    request = read(fields, service)
    return prompts.completion_prompts(fields, service.model), request


def read(f: Fields, service: Service) -> CompletionFields:
    """Every field in the documented order: the first fault is the one reported."""
    vocab_size = service.model.program.vocab_size
    sampling = generation.sampling(f, service.settings.sampling)
    prompts.check_prompt(f)
    max_tokens = generation.max_tokens(f, ("max_tokens",), DEFAULT_MAX_TOKENS, least=0)
    streaming = generation.streaming(f)
    stops = generation.stops(f)
    n = generation.n_choices(f)
    echo = f.boolean("echo")
    if max_tokens == 0 and not echo:
        raise wrong_value("max_tokens", "an integer >= 1 (0 only with echo)", 0)
    logprobs = _logprobs(f)
    logit_bias = generation.logit_bias(f, vocab_size)
    presence = generation.penalty(f, "presence_penalty")
    frequency = generation.penalty(f, "frequency_penalty")
    generation.response_format(f)
    if f.get("suffix") is not None:
        raise unsupported("suffix", "the model has no tokens for filling in the middle")
    best_of = f.integer("best_of", 1, generation.MAX_CHOICES, f"equal to n, which is {n}")
    if best_of not in (None, n):
        raise unsupported_value("best_of", f"must be equal to n, which is {n} (got {best_of})")
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
    return CompletionFields(options, echo)


def _logprobs(f: Fields) -> generation.Logprobs | None:
    most = generation.MAX_TOP_LOGPROBS
    if isinstance(f.get("logprobs"), bool):
        raise wrong_type("logprobs", f"an integer from 0 to {most}", f.get("logprobs"))
    n_top = f.integer("logprobs", 0, most, f"an integer from 0 to {most}")
    return None if n_top is None else generation.Logprobs(n_top)


class CompletionShape:
    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def opening(self, event: Opened) -> list[Choice]:
        text = self._echo(event.index)
        return [_choice(event.index, text, None)] if text else []

    def piece(self, event: Delta) -> list[Choice]:
        return [_choice(event.index, event.text, None)]

    def closing(self, event: Ended) -> list[Choice]:
        return [_choice(event.index, "", event.reason)]

    def whole(self, index: int, text: str, event: Ended) -> Choice:
        return _choice(index, self._echo(index) + text, event.reason)

    def _echo(self, index: int) -> str:
        return self._plan.prompt_of(index).text if self._plan.echo else ""


def _choice(index: int, text: str, reason: str | None) -> Choice:
    return {"finish_reason": reason, "index": index, "text": text}
