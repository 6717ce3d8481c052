"""What one step holds, who is admitted, and what becomes of a step that does not complete."""

import pytest
from fake_program import FakeProgram

from caldrix import native
from caldrix.engine.scheduler import Admission, Limits, Scheduler, Step
from caldrix.engine.sequence import FinishReason, Request, Sequence, new_sequence
from caldrix.engine.telemetry import DeviceTimes, Level, Phase, Telemetry
from caldrix.engine.worker import rows_of
from caldrix.errors import BusyError

CONTEXT = 64


def sequence_of(n_prompt: int, first: int = 0, **fields: object) -> Sequence:
    """A sequence whose prompt shares nothing with one of another `first`."""
    prompt_ids = tuple((first + 7 * i) % 50 for i in range(n_prompt))
    return new_sequence(Request(prompt_ids, **fields), CONTEXT, 0.0, lambda: None)  # type: ignore[arg-type]


class Driver:
    """A scheduler and a program, stepped by hand."""

    def __init__(
        self,
        admission: Admission = Admission.FILL,
        telemetry: Telemetry | None = None,
        **limits: int,
    ) -> None:
        sizes = {"n_slots": 2, "max_rows": 16, "max_out": 4, "queue_depth": 8} | limits
        self.limits = Limits(**sizes)
        self.scheduler = Scheduler(self.limits, admission, telemetry=telemetry)
        self.program = FakeProgram(
            50, CONTEXT, self.limits.n_slots, self.limits.max_rows, self.limits.max_out
        )

    def add(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.add(sequence)

    def begin(self) -> Step:
        step = self.scheduler.schedule()
        assert step is not None
        return step

    def finish(self, step: Step, device_s: float | None = None) -> None:
        rows = rows_of(step)
        picks = self.program.step(
            rows.tokens, rows.positions, rows.slots, rows.out_rows, rows.sampling
        )
        self.scheduler.complete(picks, device_s)

    def step(self) -> list[tuple[int, int]]:
        """Runs a step; its chunks as (rows, picks)."""
        step = self.begin()
        self.finish(step)
        return [(len(chunk.token_ids), chunk.n_out) for chunk in step.chunks]


def test_a_prompt_is_cut_at_the_step_and_only_its_last_row_picks() -> None:
    driver = Driver()
    driver.add(sequence_of(35))
    assert [driver.step() for _ in range(4)] == [[(16, 0)], [(16, 0)], [(3, 1)], [(1, 1)]]


def test_running_replies_come_first_and_a_long_prompt_takes_small_chunks_beside_them() -> None:
    driver = Driver(mixed_prompt_rows=5)
    driver.add(sequence_of(3))
    driver.step()
    driver.add(sequence_of(12, first=1))
    assert [driver.step() for _ in range(4)] == [
        [(1, 1), (5, 0)],
        [(1, 1), (5, 0)],
        [(1, 1), (2, 1)],
        [(1, 1), (1, 1)],
    ]


def test_the_next_prompt_uses_the_rows_that_the_first_leaves() -> None:
    driver = Driver(n_slots=3)
    driver.add(sequence_of(10), sequence_of(10, first=1), sequence_of(4, first=2))
    assert driver.step() == [(10, 1), (6, 0)]
    assert driver.step() == [(1, 1), (4, 1), (4, 1)]


def test_where_not_all_replies_fit_they_take_turns() -> None:
    driver = Driver(n_slots=3, max_out=2)
    driver.add(*(sequence_of(1, first) for first in range(3)))
    turns = []
    for _ in range(3):
        step = driver.begin()
        turns.append([chunk.slot for chunk in step.chunks])
        driver.finish(step)
    assert turns == [[0, 1], [2, 0], [1, 2]]


def test_a_prompt_advances_even_when_replies_could_fill_the_step() -> None:
    driver = Driver(n_slots=3, max_rows=2)
    driver.add(sequence_of(1), sequence_of(1, first=1))
    driver.step()
    driver.add(sequence_of(4, first=2))
    assert driver.step() == [(1, 1), (1, 0)]


def test_a_long_prompt_takes_no_pick_from_the_replies() -> None:
    driver = Driver(n_slots=3, max_out=2)
    driver.add(sequence_of(1), sequence_of(1, first=1))
    driver.step()
    driver.add(sequence_of(40, first=2))
    assert driver.step() == [(1, 1), (1, 1), (14, 0)]


def test_a_prompt_stops_before_its_last_row_when_no_pick_is_left() -> None:
    driver = Driver(max_out=1)
    driver.add(sequence_of(1), sequence_of(4, first=1))
    assert driver.step() == [(1, 1), (3, 0)]
    driver.step()  # the reply's turn
    assert driver.begin().chunks[0].slot == 1


def test_one_place_of_the_step_is_no_chunk_of_nothing() -> None:
    driver = Driver(max_out=1, max_rows=2)
    driver.add(sequence_of(1), sequence_of(2, first=1))
    assert driver.step() == [(1, 1), (1, 0)]


def test_a_prompt_with_scores_gives_one_for_each_row() -> None:
    driver = Driver()
    scored = sequence_of(11, echo_logprobs=True, n_logprobs=2)
    driver.add(scored, sequence_of(3, first=1))
    assert driver.step() == [(4, 4), (2, 0)]
    assert driver.step() == [(1, 1), (3, 3)]
    assert driver.step() == [(1, 1), (3, 3)]
    assert (len(scored.prompt_logprobs), scored.n_completion) == (11, 0)
    assert driver.step() == [(1, 1), (1, 1)]
    assert (len(scored.prompt_logprobs), scored.n_completion) == (11, 1)


def test_a_prompt_with_scores_gets_its_turn_among_replies() -> None:
    driver = Driver(n_slots=3, max_out=1)
    driver.add(sequence_of(1), sequence_of(1, first=1), sequence_of(3, 2, echo_logprobs=True))
    for _ in range(20):
        driver.step()
    assert [s.n_completion > 3 for s in driver.scheduler.sequences] == [True] * 3


def test_scoring_alone_ends_without_a_token() -> None:
    for n_prompt in (1, 2, 9):
        driver = Driver()
        scored = sequence_of(n_prompt, echo_logprobs=True, max_tokens=0)
        driver.add(scored)
        while not scored.is_finished:
            driver.step()
        assert scored.finish_reason is FinishReason.LENGTH
        assert (len(scored.prompt_logprobs), scored.n_completion) == (n_prompt, 0)
        assert driver.scheduler.n_running == 0


def test_scores_of_a_prompt_that_are_not_finite_end_it() -> None:
    driver = Driver()
    scored = sequence_of(9, echo_logprobs=True)
    driver.program.not_finite = lambda slot, position: position == 2
    driver.add(scored)
    driver.step()
    assert scored.finish_reason is FinishReason.ERROR
    assert "no valid scores for a token of the prompt" in scored.error


@pytest.mark.parametrize("fields", [{"use_cache": False}, {"echo_logprobs": True}])
def test_a_prompt_may_be_computed_whole_beside_what_is_kept(fields: dict[str, bool]) -> None:
    driver = Driver(n_slots=1)
    driver.add(sequence_of(10, max_tokens=1))
    driver.step()
    whole, after = sequence_of(10, max_tokens=1, **fields), sequence_of(10)
    driver.add(whole, after)
    while not whole.is_finished:
        driver.step()
    driver.step()
    assert (whole.n_cached, after.n_cached) == (0, 9)


def test_fill_admits_into_every_free_slot_and_one_admits_one_a_step() -> None:
    for admission, expected in [(Admission.FILL, [2, 2]), (Admission.ONE, [1, 2])]:
        driver = Driver(admission)
        driver.add(*(sequence_of(1, first) for first in range(3)))
        counts = []
        for _ in expected:
            driver.step()
            counts.append(driver.scheduler.n_running)
        assert counts == expected
        assert driver.scheduler.n_waiting == 1


@pytest.mark.parametrize(
    ("depth", "message"),
    [
        (0, "every slot is in use (--queue-depth 0)"),
        (1, "1 request is already waiting (--queue-depth 1)"),
        (8, "8 requests are already waiting (--queue-depth 8)"),
    ],
)
def test_the_queue_holds_its_depth_beyond_the_free_slots(depth: int, message: str) -> None:
    driver = Driver(queue_depth=depth)
    for first in range(2 + depth):
        driver.add(sequence_of(1, first))
    for _ in range(2):  # before the first step, and after it
        with pytest.raises(BusyError) as caught:
            driver.add(sequence_of(1, 40))
        assert str(caught.value) == message
        driver.step()


def test_sequences_of_one_request_take_one_place() -> None:
    driver = Driver(queue_depth=1)
    driver.scheduler.add(*(sequence_of(1, first) for first in range(4)))
    assert driver.scheduler.n_waiting == 1
    driver.add(sequence_of(1, 40))
    assert driver.scheduler.n_waiting == 2  # the first two go into slots with the next step
    with pytest.raises(BusyError):
        driver.add(sequence_of(1, 41))
    driver.step()
    # The rest of the first waits on behind it, and takes no place any more.
    assert (driver.scheduler.n_running, driver.scheduler.n_waiting) == (2, 1)
    with pytest.raises(BusyError):
        driver.add(sequence_of(1, 41))


def test_sequences_of_one_request_go_before_those_that_came_later() -> None:
    driver = Driver(n_slots=1)
    group = [sequence_of(3, max_tokens=2) for _ in range(3)]
    later = sequence_of(1, 40)
    driver.scheduler.add(*group)
    driver.add(later)
    assert [s.n_ahead for s in (*group, later)] == [0, 0, 0, 1]
    while later.slot is None:
        driver.step()
    assert [s.n_completion for s in group] == [2, 2, 2]
    assert [s.n_cached for s in group] == [0, 2, 2]


def test_a_place_is_free_when_the_last_of_its_sequences_is_called_off() -> None:
    driver = Driver(n_slots=1, queue_depth=1)
    driver.add(sequence_of(1))
    driver.step()
    group = [sequence_of(1, first) for first in (1, 2)]
    driver.scheduler.add(*group)
    for sequence in group:
        with pytest.raises(BusyError):
            driver.add(sequence_of(1, 40))
        driver.scheduler.end(sequence, FinishReason.CANCELLED)
    driver.add(sequence_of(1, 40))


def test_a_cancelled_waiting_request_frees_its_place_at_once() -> None:
    driver = Driver(n_slots=1, queue_depth=1)
    waiting = sequence_of(1, 1)
    driver.add(sequence_of(1), waiting)
    driver.scheduler.end(waiting, FinishReason.CANCELLED)
    driver.scheduler.end(waiting, FinishReason.ERROR, "too late")
    driver.add(sequence_of(1, 2))
    assert waiting.finish_reason is FinishReason.CANCELLED
    assert not driver.scheduler.wants_interrupt()


def test_a_cancelled_running_reply_frees_its_slot_between_steps_at_once() -> None:
    driver = Driver(n_slots=1)
    sequence = sequence_of(5)
    driver.add(sequence)
    driver.step()
    driver.scheduler.end(sequence, FinishReason.CANCELLED)
    assert driver.scheduler.n_running == 0
    # The token it picked last was never computed, so the slot does not hold it.
    driver.add(new_sequence(Request((*sequence.token_ids, 1, 2)), CONTEXT, 0.0, lambda: None))
    assert driver.step() == [(3, 1)]


def test_one_cancelled_in_its_step_keeps_the_slot_until_that_is_over_and_its_rows_count() -> None:
    driver = Driver(n_slots=1)
    sequence, again = sequence_of(20), sequence_of(20)
    driver.add(sequence, again)
    step = driver.begin()
    driver.scheduler.end(sequence, FinishReason.CANCELLED)
    assert driver.scheduler.wants_interrupt()
    assert driver.scheduler.n_running == 1
    driver.finish(step)
    assert (driver.scheduler.n_running, sequence.n_completion) == (0, 0)
    driver.step()
    assert again.n_cached == 16


def test_an_interrupted_step_counts_for_nobody() -> None:
    driver = Driver()
    gone, stays = sequence_of(10), sequence_of(6, first=1)
    driver.add(gone, stays)
    driver.begin()
    driver.scheduler.end(gone, FinishReason.CANCELLED)
    assert driver.scheduler.wants_interrupt()
    driver.scheduler.interrupted()
    assert (driver.scheduler.n_running, stays.n_computed) == (1, 0)
    assert driver.step() == [(6, 1)]


def test_a_step_shared_with_others_is_not_interrupted_for_a_few_rows() -> None:
    driver = Driver()
    gone, stays = sequence_of(8), sequence_of(8, first=1)
    driver.add(gone, stays)
    driver.begin()
    driver.scheduler.end(gone, FinishReason.CANCELLED)
    assert not driver.scheduler.wants_interrupt()


def test_others_are_not_interrupted_twice_in_a_row() -> None:
    driver = Driver(mixed_prompt_rows=10)
    stays = sequence_of(1)
    driver.add(stays)
    driver.step()
    for expected in [True, False, True]:
        gone = sequence_of(20, first=1)
        driver.add(gone)
        step = driver.begin()
        driver.scheduler.end(gone, FinishReason.CANCELLED)
        assert driver.scheduler.wants_interrupt() is expected
        driver.scheduler.interrupted() if expected else driver.finish(step)


def test_a_failed_step_ends_those_in_it_and_their_slots_are_not_reused() -> None:
    driver = Driver()
    broken, cancelled, waiting = sequence_of(5), sequence_of(5, first=1), sequence_of(5)
    driver.add(broken, cancelled, waiting)
    driver.begin()
    driver.scheduler.end(cancelled, FinishReason.CANCELLED)
    driver.scheduler.failed("it broke")
    assert (broken.finish_reason, broken.error) == (FinishReason.ERROR, "it broke")
    assert cancelled.finish_reason is FinishReason.CANCELLED
    driver.step()
    assert (waiting.n_cached, waiting.finish_reason) == (0, None)


def test_scores_that_are_not_finite_end_one_reply_and_are_no_token() -> None:
    driver = Driver()
    broken, sound, again = sequence_of(5), sequence_of(5, first=1), sequence_of(5)
    driver.add(broken, sound, again)
    driver.step()
    driver.program.not_finite = lambda slot, position: (slot, position) == (0, 5)
    driver.step()
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.error == (
        "the model gave no valid scores for token 2 of the reply (NaN or infinite)"
    )
    assert broken.n_completion == 1
    assert sound.n_completion == 2
    driver.step()
    assert again.n_cached == 0  # what the slot held is not trusted


def test_a_cancelled_reply_with_bad_scores_leaves_nothing_to_reuse() -> None:
    driver = Driver(n_slots=1)
    gone, again = sequence_of(5), sequence_of(5)
    driver.add(gone, again)
    step = driver.begin()
    driver.scheduler.end(gone, FinishReason.CANCELLED)
    driver.program.not_finite = lambda slot, position: True
    driver.finish(step)
    driver.program.not_finite = lambda slot, position: False
    driver.step()
    assert (gone.finish_reason, again.n_cached) == (FinishReason.CANCELLED, 0)


def test_the_next_turn_of_a_conversation_computes_only_what_is_new() -> None:
    driver = Driver(n_slots=1)
    first = sequence_of(10, max_tokens=4)
    driver.add(first)
    while driver.scheduler.sequences:
        driver.step()
    turn = new_sequence(Request((*first.token_ids, 1, 2)), CONTEXT, 0.0, lambda: None)
    driver.add(turn)
    # The last token of the reply was picked and never computed.
    assert driver.step() == [(3, 1)]
    assert turn.n_cached == 13


def test_abandon_leaves_nobody_waiting() -> None:
    driver = Driver(n_slots=1)
    running, waiting, cancelled = sequence_of(5), sequence_of(5), sequence_of(5)
    driver.add(running, waiting, cancelled)
    driver.begin()
    driver.scheduler.end(cancelled, FinishReason.CANCELLED)
    driver.scheduler.abandon("the end")
    assert [s.error for s in (running, waiting, cancelled)] == ["the end", "the end", ""]
    assert (driver.scheduler.n_running, driver.scheduler.n_waiting) == (0, 0)
    assert driver.scheduler.schedule() is None


def test_steps_are_counted_by_phase_and_sampled_ones_timed() -> None:
    telemetry = Telemetry(Level.SAMPLED, sample_period=2, sample_offset=1)
    driver = Driver(telemetry=telemetry)
    long, short = sequence_of(20, max_tokens=3), sequence_of(2, 1, max_tokens=4)
    driver.add(long, short)
    sampled = []
    while driver.scheduler.sequences:
        step = driver.begin()
        sampled.append(driver.scheduler.is_sampled)
        driver.finish(step, 0.5 if sampled[-1] else None)
    # 16 rows; 4 and 2; two replies; two replies; the short one alone
    assert sampled == [False, True, False, True, False]
    tally = driver.scheduler.tally
    assert tally.n_steps == {Phase.PREFILL: 2, Phase.DECODE: 3}
    assert tally.batch_size.counts == [1, 2, 0, 0, 0]
    assert (tally.device_s[Phase.PREFILL].sum, tally.device_s[Phase.DECODE].sum) == (0.5, 0.5)
    for sequence in (long, short):
        assert sequence.timings.batch_max == 2
        assert sequence.timings.device == DeviceTimes(2, 0.5, 1, 0.5, 0.5)
        assert sequence.timings.device.decode_mean_s == 0.5


@pytest.mark.parametrize("level", [Level.OFF, Level.HOST])
def test_less_telemetry_keeps_less(level: Level) -> None:
    driver = Driver(telemetry=Telemetry(level, sample_period=1, sample_offset=0))
    sequence = sequence_of(2, max_tokens=3)
    driver.add(sequence)
    while driver.scheduler.sequences:
        step = driver.begin()
        assert not driver.scheduler.is_sampled
        driver.finish(step)
    assert driver.scheduler.tally.n_steps == {Phase.PREFILL: 1, Phase.DECODE: 2}
    assert sequence.timings.device is None
    assert sequence.timings.batch_max == (0 if level is Level.OFF else 1)
    assert driver.scheduler.tally.batch_size.count == (0 if level is Level.OFF else 2)


def test_timings_are_the_moments_of_the_steps() -> None:
    now = iter(float(i) for i in range(100))
    limits = Limits(n_slots=1, max_rows=4, max_out=1, queue_depth=8)
    scheduler = Scheduler(limits, clock=lambda: next(now))
    sequence = new_sequence(Request((1, 2, 3, 4, 5), max_tokens=2), CONTEXT, -1.0, lambda: None)
    scheduler.add(sequence)
    for n_picks in (0, 1, 1):
        assert scheduler.schedule() is not None
        scheduler.complete([native.Pick(1, True)] * n_picks)
    timings = sequence.timings
    assert timings.admitted_at == 0
    assert timings.prefill_started_at == 1
    assert timings.prefill_ended_at == 3
    assert list(timings.token_times) == [3, 4]
    assert timings.finished_at == 4
