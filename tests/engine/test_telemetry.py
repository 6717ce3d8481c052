"""Durations are differences of the moments that have come."""

from array import array

from caldrix.engine.telemetry import Timings


def test_nothing_has_a_duration_before_it_happened() -> None:
    timings = Timings(queued_at=5.0)
    assert timings.queue_s is None
    assert timings.prefill_s is None
    assert timings.first_token_s is None
    assert timings.token_s is None
    assert timings.total_s is None
    timings.prefill_started_at = 6.0
    assert timings.prefill_s is None


def test_durations_of_a_whole_reply() -> None:
    timings = Timings(5.0, 6.0, 6.5, 8.0, array("d", [8.0, 8.5, 10.0]), 11.0)
    assert timings.queue_s == 1.0
    assert timings.prefill_s == 1.5
    assert timings.first_token_s == 3.0
    assert timings.token_s == 1.0
    assert timings.total_s == 6.0


def test_one_token_has_no_time_between_tokens() -> None:
    assert Timings(0.0, token_times=array("d", [1.0])).token_s is None
