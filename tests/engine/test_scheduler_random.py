"""Random arrivals, cancels, broken steps, limits: every reply is the one its request gets alone."""

from dataclasses import dataclass, field, replace

from any_request import requests
from fake_program import SPOILT, FakeProgram, expected_prompt_logprobs, expected_scored
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.scheduler import Admission, Limits, Scheduler
from caldrix.engine.sequence import (
    FinishReason,
    Request,
    Sequence,
    new_sequence,
)
from caldrix.engine.worker import rows_of
from caldrix.errors import BusyError

CONTEXT, VOCAB = 40, 30


@dataclass
class Arrival:
    at_step: int
    request: Request
    cancel_at: int | None  # even: before a step, odd: while it is in flight
    n_choices: int  # sequences in one place
    continues: int | None  # the prompt is an earlier sequence's tokens so far, then the request's


@dataclass
class Scenario:
    limits: Limits
    admission: Admission
    arrivals: list[Arrival]
    broken: dict[int, str] = field(default_factory=dict)  # step number: how it ends


arrivals = st.builds(
    Arrival,
    at_step=st.integers(0, 25),
    request=requests(CONTEXT, VOCAB),
    cancel_at=st.one_of(st.none(), st.none(), st.integers(0, 80)),
    n_choices=st.sampled_from([1, 1, 1, 3]),
    continues=st.one_of(st.none(), st.integers(0, 7)),
)
scenarios = st.builds(
    Scenario,
    limits=st.builds(
        Limits,
        n_slots=st.integers(1, 4),
        max_rows=st.integers(1, 20),
        max_out=st.integers(1, 4),
        queue_depth=st.integers(0, 8),
        mixed_prompt_rows=st.integers(1, 6),
    ),
    admission=st.sampled_from(Admission),
    arrivals=st.lists(arrivals, min_size=1, max_size=8),
    broken=st.dictionaries(
        st.integers(0, 40), st.sampled_from(["interrupt", "interrupt", "fail"]), max_size=6
    ),
)


class Run:
    """Plays a scenario against a scheduler, with the engine's part played here."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        limits = scenario.limits
        self.scheduler = Scheduler(limits, scenario.admission)
        self.program = FakeProgram(VOCAB, CONTEXT, limits.n_slots, limits.max_rows, limits.max_out)
        self.sequences: list[Sequence] = []
        self.cancels: list[tuple[int, Sequence]] = []
        self.failed: set[int] = set()

    def play(self) -> None:
        number, todo = 0, list(self.scenario.arrivals)
        while todo or self.scheduler.n_running or self.scheduler.sequences:
            for arrival in [a for a in todo if a.at_step <= number]:
                todo.remove(arrival)
                self.arrive(arrival)
            self.cancel_due(2 * number)
            step = self.scheduler.schedule()
            self.cancel_due(2 * number + 1)
            if step is not None:
                self.end_step(number, step)
            number += 1
            assert number < 3000

    def arrive(self, arrival: Arrival) -> None:
        request = arrival.request
        if arrival.continues is not None and self.sequences:
            earlier = self.sequences[arrival.continues % len(self.sequences)]
            prompt_ids = (*earlier.token_ids, *request.prompt_ids)[: CONTEXT - 1]
            request = replace(request, prompt_ids=prompt_ids)
        sequences = [
            new_sequence(request, CONTEXT, 0.0, lambda: None) for _ in range(arrival.n_choices)
        ]
        try:
            self.scheduler.add(*sequences)
        except BusyError:
            assert self.scheduler.n_waiting >= self.scenario.limits.queue_depth
            return
        self.sequences += sequences
        if arrival.cancel_at is not None:
            self.cancels.append((arrival.cancel_at, sequences[0]))

    def cancel_due(self, moment: int) -> None:
        for cancel_at, sequence in self.cancels:
            if cancel_at == moment:
                self.scheduler.end(sequence, FinishReason.CANCELLED)
                assert sequence.is_finished

    def end_step(self, number: int, step) -> None:
        how = self.scenario.broken.get(number)
        rows = rows_of(step)
        picks = self.program.step(
            rows.tokens, rows.positions, rows.slots, rows.out_rows, rows.sampling
        )
        if how is None and not self.scheduler.wants_interrupt():
            self.scheduler.complete(picks)
            return
        for slot, position in zip(rows.slots, rows.positions, strict=True):
            self.program.held[slot, position] = SPOILT
        if how == "fail":
            self.failed |= {id(c.sequence) for c in step.chunks if not c.sequence.is_finished}
            self.scheduler.failed("the step broke")
        else:
            self.scheduler.interrupted()


@settings(max_examples=150)
@given(scenarios)
def test_every_reply_is_the_one_its_request_gets_alone(scenario: Scenario) -> None:
    run = Run(scenario)
    run.play()
    for sequence in run.sequences:
        start = sequence.n_prompt
        visible = sequence.token_ids[start : start + sequence.n_visible]
        request = sequence.request
        reply, reason, scores = expected_scored(request, CONTEXT, VOCAB, sequence.seed)
        prompt_scores = expected_prompt_logprobs(request)
        if id(sequence) in run.failed:
            assert sequence.finish_reason is FinishReason.ERROR
        if sequence.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            assert visible == reply[: len(visible)]
        else:
            assert (visible, sequence.finish_reason) == (reply, reason)
            assert (sequence.logprobs, sequence.prompt_logprobs) == (scores, prompt_scores)
            assert sequence.n_completion == len(reply) + (reason is FinishReason.STOP)
        assert len(sequence.timings.token_times) == sequence.n_completion
        assert sequence.n_cached < sequence.n_prompt
        if request.echo_logprobs or not request.use_cache:
            assert sequence.n_cached == 0
    assert run.scheduler._kv.n_free == scenario.limits.n_slots
    assert run.scheduler.sequences == []
