"""Runs one admitted request: its prompts and choices, one after the other, in one queue place.

Owns what is asked of the engine for each choice and what came back, as events; and the sums for
`usage`. Knows no JSON. Whoever reads the events must close them: a reply nobody reads is cancelled.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from caldrix.api.generation import Options
from caldrix.api.prompts import Prompt
from caldrix.api.refusals import ApiError, called_off
from caldrix.api.service import Service
from caldrix.engine.generate import TextStream
from caldrix.engine.generation import Generation
from caldrix.engine.sampler import LogitBias
from caldrix.engine.sequence import CancelReason, FinishReason, Request, SequenceStatus
from caldrix.engine.telemetry import Timings
from caldrix.errors import EngineError
from caldrix.native import TokenLogprob


@dataclass(frozen=True, slots=True)
class Plan:
    """One checked request: every prompt gets `options.n` choices."""

    prompts: tuple[Prompt, ...]
    options: Options
    prefix: str  # of the reply's id
    param: str  # the field that holds the prompt
    echo: bool = False
    notes: tuple[tuple[str, str], ...] = ()  # headers of the reply
    end_ids: frozenset[int] = frozenset()  # end a reply as the model's own end tokens do

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are scored; a reply of none is a score alone."""
        return self.echo and (self.options.n_logprobs is not None or self.options.max_tokens == 0)

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.options.n

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.options.n]


@dataclass(frozen=True, slots=True)
class Opened:
    """Choice `index` begins; the scores of its prompt, where they are echoed."""

    index: int
    prompt_tokens: Sequence[TokenLogprob | None] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of choice `index`."""

    index: int
    text: str
    tokens: Sequence[TokenLogprob] = ()  # those whose text this is, where scores are asked for
    n_tokens: int = 0  # read since the last piece


@dataclass(frozen=True, slots=True)
class Ended:
    """Choice `index` is complete."""

    index: int
    reason: str


Event = Opened | Delta | Ended


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt: int
    cached: int
    completion: int

    @property
    def body(self) -> dict[str, object]:
        counts: dict[str, object] = {
            "completion_tokens": self.completion,
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
        }
        if self.cached:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return counts

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that has all it needs but its place in the queue."""

    plan: Plan
    streams: list[TextStream]  # one for each choice


def draft(service: Service, plan: Plan) -> Draft:
    """Checks every choice and makes its stream; on any thread. Raises what the engine refuses."""
    bias = LogitBias(dict(plan.options.logit_bias))
    ends = service.model.eos_token_ids | plan.end_ids
    requests = (_request(service, plan, index, bias, ends) for index in range(plan.n_choices))
    return Draft(plan, service.prepare(requests, plan.options.stops, plan.param))


def _request(
    service: Service, plan: Plan, index: int, bias: LogitBias, ends: frozenset[int]
) -> Request:
    options = plan.options
    return Request(
        plan.prompt_of(index).ids,
        options.sampling.of_choice(index % options.n),
        options.max_tokens,
        options.stop_token_ids,
        eos_token_ids=ends,
        ignore_eos=options.ignore_eos,
        min_tokens=options.min_tokens,
        logit_bias=bias,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        n_logprobs=options.n_logprobs,
        echo_logprobs=plan.scores_prompt,
        use_cache=options.use_cache and service.settings.prefix_cache,
        deadline_s=service.settings.deadline_s,
    )


class Job:
    """One request from its place in the queue to its last token."""

    def __init__(self, service: Service, draft: Draft) -> None:
        """Takes the place; raises what admission refuses."""
        self.service = service
        self.plan = draft.plan
        self.id = f"{draft.plan.prefix}{service.next_number}"
        self._streams = draft.streams
        service.submit(self._streams, self.id)
        service.admit()
        self.created = int(time.time())

        # So far
        self.is_cancelled = False
        self.error_code: str | None = None
        self.reasons: list[str] = []  # of the choices that are complete
        self._counted = Usage(0, 0, 0)  # the choices that are complete

    def cancel(self) -> None:
        """Ends the reply now; no effect on one that has ended."""
        self.is_cancelled = self.is_cancelled or self.is_running
        self._drop()

    def _drop(self) -> None:
        for stream in self._streams:
            stream.cancel()

    @property
    def model_name(self) -> str:
        return self.service.name

    @property
    def _current(self) -> Generation:
        """The choice that runs, else the last one."""
        index = min(len(self.reasons), self.plan.n_choices - 1)
        return self._streams[index].generation

    @property
    def status(self) -> SequenceStatus:
        return self._current.status

    @property
    def progress(self) -> str:
        """What a silent stream waits for."""
        generation = self._current
        if generation.status is SequenceStatus.WAITING:
            return f"queued {generation.n_ahead}"
        if generation.status is SequenceStatus.PREFILL:
            return f"prefill {generation.n_computed}/{generation.n_prompt}"
        return "ping"

    @property
    def is_running(self) -> bool:
        return len(self.reasons) < self.plan.n_choices and self.error_code is None

    @property
    def slot(self) -> int | None:
        return self._current.slot

    @property
    def timings(self) -> list[Timings]:
        """Of each choice."""
        return [stream.generation.timings for stream in self._streams]

    @property
    def finish_reason(self) -> str | None:
        return self.reasons[-1] if self.reasons and not self.is_running else None

    @property
    def usage(self) -> Usage:
        """The tokens so far, those of the choice that runs included."""
        index = len(self.reasons)
        if index == self.plan.n_choices:
            return self._counted
        generation = self._current
        return self._counted + self._usage_of(index, generation, generation.n_completion)

    @property
    def most_tokens(self) -> int:
        """Of the prompt and reply of one choice."""
        found = (stream.generation for stream in self._streams)
        return max(one.n_prompt + one.n_completion for one in found)

    def _usage_of(self, index: int, generation: Generation, n_completion: int) -> Usage:
        if index % self.plan.options.n:  # a prompt counts once
            return Usage(0, 0, n_completion)
        return Usage(generation.n_prompt, generation.n_cached, n_completion)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Raises ApiError when the engine fails or the request was called off."""
        try:
            for index, stream in enumerate(self._streams):
                async for event in self._choice(index, stream):
                    yield event
        except EngineError as error:
            raise self._failed(self.service.engine_error(error)) from None
        except ApiError as error:
            raise self._failed(error) from None
        finally:
            self._drop()

    async def _choice(self, index: int, stream: TextStream) -> AsyncGenerator[Event, None]:
        generation, n_read = stream.generation, 0
        await generation.started()
        # With scores, once the prompt has them; one that never started may be refused below.
        is_open = generation.has_started and not self.plan.scores_prompt
        if is_open:
            yield Opened(index)
        async for piece in stream.pieces():
            if not is_open:
                is_open = True
                yield Opened(index, generation.prompt_logprobs)
            yield Delta(index, piece.text, piece.tokens, stream.n_read - n_read)
            n_read = stream.n_read
        ended = self._ended(index, stream)
        if not is_open:
            yield Opened(index, generation.prompt_logprobs)
        yield ended

    def _failed(self, error: ApiError) -> ApiError:
        self.error_code = error.code
        return error

    def _ended(self, index: int, stream: TextStream) -> Ended:
        result, reason = stream.result, stream.result.finish_reason
        if reason is FinishReason.CANCELLED:
            self._check_deadline(stream.generation)
            reason = FinishReason.LENGTH
        self._counted += self._usage_of(index, stream.generation, result.n_completion)
        self.reasons.append(reason.value)
        return Ended(index, reason.value)

    def _check_deadline(self, generation: Generation) -> None:
        """Of a reply that was called off, only a deadline leaves something worth giving: what there
        is of its text, if any, but no part of the scores of a prompt."""
        if generation.cancel_reason is not CancelReason.DEADLINE:
            raise called_off()
        has_text = self._counted.completion + generation.n_completion > 0
        if self.plan.scores_prompt:
            has_text = len(generation.prompt_logprobs) == generation.n_prompt
        if not has_text:
            raise self.service.deadline_error(generation.has_started)
