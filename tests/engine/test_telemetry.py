"""Durations are differences of the moments that have come."""

from array import array

from caldrix.engine.telemetry import DeviceTimes, Histogram, Level, Phase, Telemetry, Timings


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


def test_a_bound_counts_itself() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 2], 6, 16.5)


def test_one_step_of_each_period_is_sampled() -> None:
    sampled = [n for n in range(20) if Telemetry(Level.SAMPLED, 8, 4).samples(n)]
    assert sampled == [4, 12]
    assert not any(Telemetry(Level.HOST, 1, 0).samples(n) for n in range(5))


def test_no_decode_step_has_no_mean() -> None:
    times = DeviceTimes()
    times.add(Phase.PREFILL, 2.0)
    assert (times.decode_mean_s, times.prefill_s) == (None, 2.0)
    for seconds in (1.0, 3.0):
        times.add(Phase.DECODE, seconds)
    assert (times.decode_mean_s, times.decode_max_s, times.n_steps) == (2.0, 3.0, 3)
